"""Why a photo gets its answer, in one call and as a page: bars by attribute, heat maps, strongest heads, the sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from dear.backbone.clip import short_name
from dear.model.explanation import MLPS, START, UNKNOWN, Explanation
from dear.model.model import Model
from dear.reports.evidence_charts import bar_chart, heat_legend
from dear.reports.heat import faded, overlay, png
from dear.reports.render import render
from dear.roles.grid import head_word
from dear.roles.known import is_chosen, named_roles
from dear.roles.rolemap import ROLES, RoleMap

HEADS = 10
"""Heads that are listed."""
LEAST = 0.005
"""Logits below this are not worth naming in a caption."""
SHOWN_REST = 5e-4
"""A rest below this is rounding, and shown as a number only."""


@dataclass(frozen=True)
class HeatMap:
    """A picture with its evidence, what it is of, and the numbers below it."""

    name: str
    png: bytes
    caption: str


@dataclass(frozen=True)
class ClassMaps:
    """The heat maps of one class, on one scale."""

    title: str
    legend: str
    maps: tuple[HeatMap, ...]


@dataclass(frozen=True)
class View:
    """An explanation as a page shows it."""

    title: str
    lead: str
    """The answer and what spoke for it, in a sentence."""
    picture: bytes
    faded: Image.Image
    answers: list[list[str]]
    sum: str
    how: str
    chart: str
    classes: tuple[ClassMaps, ...]
    heads: list[list[str]]
    groups: list[list[str]]
    readings: list[list[str]]
    notes: tuple[str, ...]
    class_names: tuple[str, ...]


def roles_of(model: Model, roles: str | Path | RoleMap | None = None) -> RoleMap | None:
    """The map that was asked for, else the one saved with the method, else the one shipped for the CLIP, else none."""
    if not is_chosen(roles) and ROLES in model.method.files:
        return RoleMap.from_json(model.method.files[ROLES], where=ROLES)
    return named_roles(model.clip, roles)


def explanation_html(found: Explanation, picture: Image.Image, model: Model, roles: RoleMap | None) -> str:
    """The page as text; it needs no other file and no network."""
    view = view_of(found, picture, roles)
    title = f"Why “{found.classes[0]}”?"
    subtitle = f"{found.image}; {found.method} on {short_name(model.clip.name)}, readout {found.readout}"
    return render("explain.html", title=title, subtitle=subtitle, view=view)


def view_of(found: Explanation, picture: Image.Image, roles: RoleMap | None, title: str = "") -> View:
    """What a page shows of an explanation."""
    groups = {name: one for name, one in found.by_group().items() if name != "rest" or _is_seen(one)}
    drawn = {name: found.against_average(one).tolist() for name, one in groups.items()}
    lines = {f"for “{name}”": [one[i] for one in drawn.values()] for i, name in enumerate(found.classes)}
    what = "beyond the average class" if found.average else "for the class"
    readings = found.by_reading()
    return View(
        title=title,
        lead=_lead(found, {name: one[0] for name, one in drawn.items()}),
        picture=png(picture.resize((224, 224), Image.Resampling.BICUBIC)),
        faded=faded(picture),
        answers=_answers(found),
        sum=_sum(found),
        how=found.how,
        chart=bar_chart(f"Logits {what}, by what the heads do", list(drawn), lines),
        classes=tuple(_class_maps(found, at) for at in range(len(found.classes))),
        heads=_heads(found, roles),
        groups=_rows(found, groups),
        readings=_rows(found, readings) if len(readings) > 2 else [],
        notes=_notes(found, roles),
        class_names=found.classes,
    )


def signed(value: float, digits: int = 3) -> str:
    """A number with its sign; zero has +."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def _lead(found: Explanation, said: Mapping[str, float]) -> str:
    """The likeliest class, how likely it is, and the parts that spoke most for it."""
    best = [name for name in sorted(said, key=lambda name: -said[name]) if said[name] > 0][:3]
    told = ", ".join(f"{name} ({signed(said[name], 1)})" for name in best)
    most = f" What spoke most for it, in logits: {told}." if told else ""
    return f"“{found.classes[0]}”, {100 * found.probabilities[0]:.0f} % likely.{most}"


def _is_seen(values: Tensor) -> bool:
    return bool(values.abs().max() > SHOWN_REST)


def _answers(found: Explanation) -> list[list[str]]:
    rows = zip(found.classes, found.probabilities, found.logits, found.sums(), strict=True)
    return [[name, f"{100 * p:.1f} %", f"{z:.4f}", f"{total:.4f}"] for name, p, z, total in rows]


def _sum(found: Explanation) -> str:
    text = f"The parts sum to {found.sums()[0]:.3f}; the logit is {found.logits[0]:.3f}."
    if not found.average:
        return text
    return (
        f"{text} The average class has {found.average:.3f}: what is {found.logits[0] - found.average:.3f} above it is "
        f"drawn here."
    )


def _rows(found: Explanation, values: dict[str, Tensor]) -> list[list[str]]:
    """Logits by name, for each class that is shown and for the average one, with the sum as the last row."""
    total = torch.stack(list(found.by_group().values())).sum(0)
    rows = [[name, *(signed(one) for one in each.tolist())] for name, each in (*values.items(), ("sum", total))]
    return rows if found.average else [row[:-1] for row in rows]


def _heads(found: Explanation, roles: RoleMap | None) -> list[list[str]]:
    """The heads that speak most for or against the likeliest class."""
    known = {(head.layer, head.head): head for head in roles.heads} if roles else {}
    said = {place: found.against_average(values).tolist() for place, values in found.by_place().items()}
    strongest = sorted(said, key=lambda place: (-abs(said[place][0]), place))[:HEADS]
    rows = []
    for place in strongest:
        head = known.get(place)
        phrases = ", ".join(head.phrases[:3]) if head else ""
        does = head_word(head) if head else "no role"
        rows.append([f"{place[0]}.{place[1]}", does, phrases, *(signed(one) for one in said[place])])
    return rows


def _class_maps(found: Explanation, at: int) -> ClassMaps:
    """A heat map for each attribute that has heads, on one scale; without any, one for all heads."""
    groups: dict[str, str | None] = {name: name for name in found.attributes if name in found.groups}
    groups = groups or {"all heads": None}
    heats = {name: found.heat(group)[at] for name, group in groups.items()}
    largest = max((float(one.abs().max()) for one in heats.values()), default=0.0)
    maps = []
    for name, heat in heats.items():
        taken = {where: float(one[at]) for where, one in found.elsewhere(groups[name]).items()}
        total, patches = float(heat.sum()) + sum(taken.values()), float(heat.sum())
        others = "".join(f", {where} {value:+.2f}" for where, value in taken.items() if abs(value) >= LEAST)
        caption = f"{name} {signed(total, 2)}" + (f" (patches {signed(patches, 2)}{others})" if others else "")
        maps.append(HeatMap(name, overlay(heat, largest), caption))
    return ClassMaps(f"For “{found.classes[at]}”", heat_legend(largest), tuple(maps))


def _notes(found: Explanation, roles: RoleMap | None) -> tuple[str, ...]:
    notes = []
    if roles is None:
        notes.append(
            "There is no role map for this CLIP, so that heads have numbers only: make one with 'dear roles discover' "
            "and give it as --roles."
        )
    if found.without_heads:
        missing = ", ".join(found.without_heads)
        notes.append(f"The role map has no head for {missing}: nothing can be said about how much that counted.")
    if found.average:
        notes.append(
            "Bars, heat maps and heads are differences from the average class: what all classes get alike decides "
            "nothing."
        )
    notes.append(
        f"{UNKNOWN}: layers that the role map does not describe. {MLPS}: no head looks anywhere in them, so they have "
        f"no map. {START}: what the row that is read begins with."
    )
    if roles is not None:
        notes.append(
            "A heat map shows which patches a group of heads took its evidence from in its own layer. By then a "
            "patch's row has seen other patches, so that evidence can lie beside what it is about."
        )
    return tuple(notes)
