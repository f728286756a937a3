"""The page of an explanation: why a photo gets its answer, as bars per attribute, heat maps, heads and a sum."""

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
"""Number of heads in the list."""
LEAST = 0.005
"""Logits below this are left out of a caption."""
SHOWN_REST = 5e-4
"""A remainder below this is rounding, and is left out of the chart."""


@dataclass(frozen=True)
class HeatMap:
    """A heat map with its name and a caption with numbers."""

    name: str
    png: bytes
    caption: str


@dataclass(frozen=True)
class ClassMaps:
    """The heat maps of one class, on a common scale."""

    title: str
    legend: str
    maps: tuple[HeatMap, ...]


@dataclass(frozen=True)
class ExplanationView:
    """The content of an explanation page."""

    title: str
    lead: str
    """The answer and the strongest evidence for it, in a sentence."""
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
    """The requested map, else the one saved with the method, else the one shipped for the CLIP, else None."""
    if not is_chosen(roles) and ROLES in model.method.files:
        return RoleMap.from_json(model.method.files[ROLES], where=ROLES)
    return named_roles(model.clip, roles)


def explanation_html(explanation: Explanation, picture: Image.Image, model: Model, roles: RoleMap | None) -> str:
    """Return the page as one self-contained HTML file."""
    view = view_of(explanation, picture, roles)
    title = f"Why “{explanation.classes[0]}”?"
    subtitle = (
        f"{explanation.image}; {explanation.method} on {short_name(model.clip.name)}, readout {explanation.readout}"
    )
    return render("explain.html", title=title, subtitle=subtitle, view=view)


def view_of(explanation: Explanation, picture: Image.Image, roles: RoleMap | None, title: str = "") -> ExplanationView:
    """Convert an explanation to the content of a page."""
    groups = {name: one for name, one in explanation.by_group().items() if name != "rest" or _is_seen(one)}
    logits = {name: explanation.against_average(one).tolist() for name, one in groups.items()}
    lines = {f"for “{name}”": [one[i] for one in logits.values()] for i, name in enumerate(explanation.classes)}
    what = "beyond the average class" if explanation.average else "for the class"
    readings = explanation.by_reading()
    return ExplanationView(
        title=title,
        lead=_lead(explanation, {name: one[0] for name, one in logits.items()}),
        picture=png(picture.resize((224, 224), Image.Resampling.BICUBIC)),
        faded=faded(picture),
        answers=_answers(explanation),
        sum=_sum(explanation),
        how=explanation.how,
        chart=bar_chart(f"Logits {what}, by what the heads do", list(logits), lines),
        classes=tuple(_class_maps(explanation, at) for at in range(len(explanation.classes))),
        heads=_heads(explanation, roles),
        groups=_rows(explanation, groups),
        readings=_rows(explanation, readings) if len(readings) > 2 else [],
        notes=_notes(explanation, roles),
        class_names=explanation.classes,
    )


def signed(value: float, digits: int = 3) -> str:
    """A number with its sign; zero has +."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def _lead(explanation: Explanation, logits: Mapping[str, float]) -> str:
    """The likeliest class with its probability, and the strongest evidence for it."""
    best = [name for name in sorted(logits, key=lambda name: -logits[name]) if logits[name] > 0][:3]
    strongest = ", ".join(f"{name} ({signed(logits[name], 1)})" for name in best)
    most = f" Strongest evidence for it, in logits: {strongest}." if strongest else ""
    return f"“{explanation.classes[0]}”, {100 * explanation.probabilities[0]:.0f} % likely.{most}"


def _is_seen(values: Tensor) -> bool:
    return bool(values.abs().max() > SHOWN_REST)


def _answers(explanation: Explanation) -> list[list[str]]:
    rows = zip(explanation.classes, explanation.probabilities, explanation.logits, explanation.sums(), strict=True)
    return [[name, f"{100 * p:.1f} %", f"{z:.4f}", f"{total:.4f}"] for name, p, z, total in rows]


def _sum(explanation: Explanation) -> str:
    text = f"The parts sum to {explanation.sums()[0]:.3f}; the logit is {explanation.logits[0]:.3f}."
    if not explanation.average:
        return text
    return (
        f"{text} The average class has {explanation.average:.3f}; the charts show the difference of "
        f"{explanation.logits[0] - explanation.average:.3f}."
    )


def _rows(explanation: Explanation, values: dict[str, Tensor]) -> list[list[str]]:
    """Logits by name for each shown class and the average class, with the sum as the last row."""
    total = torch.stack(list(explanation.by_group().values())).sum(0)
    rows = [[name, *(signed(one) for one in each.tolist())] for name, each in (*values.items(), ("sum", total))]
    return rows if explanation.average else [row[:-1] for row in rows]


def _heads(explanation: Explanation, roles: RoleMap | None) -> list[list[str]]:
    """The heads with the strongest evidence for or against the likeliest class."""
    known = {(head.layer, head.head): head for head in roles.heads} if roles else {}
    logits = {place: explanation.against_average(values).tolist() for place, values in explanation.by_place().items()}
    strongest = sorted(logits, key=lambda place: (-abs(logits[place][0]), place))[:HEADS]
    rows = []
    for place in strongest:
        head = known.get(place)
        phrases = ", ".join(head.phrases[:3]) if head else ""
        does = head_word(head) if head else "no role"
        rows.append([f"{place[0]}.{place[1]}", does, phrases, *(signed(one) for one in logits[place])])
    return rows


def _class_maps(explanation: Explanation, at: int) -> ClassMaps:
    """One heat map per attribute with heads, on a common scale; without any, one for all heads."""
    groups: dict[str, str | None] = {name: name for name in explanation.attributes if name in explanation.groups}
    groups = groups or {"all heads": None}
    heats = {name: explanation.heat(group)[at] for name, group in groups.items()}
    largest = max((float(one.abs().max()) for one in heats.values()), default=0.0)
    maps = []
    for name, heat in heats.items():
        taken = {where: float(one[at]) for where, one in explanation.elsewhere(groups[name]).items()}
        total, patches = float(heat.sum()) + sum(taken.values()), float(heat.sum())
        others = "".join(f", {where} {value:+.2f}" for where, value in taken.items() if abs(value) >= LEAST)
        caption = f"{name} {signed(total, 2)}" + (f" (patches {signed(patches, 2)}{others})" if others else "")
        maps.append(HeatMap(name, overlay(heat, largest), caption))
    return ClassMaps(f"For “{explanation.classes[at]}”", heat_legend(largest), tuple(maps))


def _notes(explanation: Explanation, roles: RoleMap | None) -> tuple[str, ...]:
    notes = []
    if roles is None:
        notes.append(
            "There is no role map for this CLIP, so heads have numbers only: create one with 'dear roles discover' "
            "and pass it as --roles."
        )
    if explanation.without_heads:
        missing = ", ".join(explanation.without_heads)
        notes.append(f"The role map has no head for {missing}, so the influence of this is unknown.")
    if explanation.average:
        notes.append(
            "Bars, heat maps and heads are differences from the average class: logits that all classes share do not "
            "influence the answer."
        )
    notes.append(
        f"{UNKNOWN}: layers that the role map does not describe. {MLPS}: they have no attention, and therefore no heat "
        f"map. {START}: the initial value of the row that the readout uses."
    )
    if roles is not None:
        notes.append(
            "A heat map shows which patches a group of heads reads in its own layer. At this layer the row of a patch "
            "already contains information from other patches, so evidence can appear beside the object that it is "
            "about."
        )
    return tuple(notes)
