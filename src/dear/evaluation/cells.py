"""The four protocols as plain data: what each cell trains on and what it is tested on."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from dear.config import named_now, renamings
from dear.data.splits import Half
from dear.errors import ConfigError, DearWarning, did_you_mean
from dear.evaluation.results import Protocol
from dear.methods.base import Method
from dear.methods.registry import get_method
from dear.methods.resource import resource_fields
from dear.options.parts import Bench, Compute, Fit, Source, Training
from dear.storage.files import sha256

LONGEST_NAME = 150


@dataclass(frozen=True)
class Cell:
    """One training and its tests."""

    protocol: Protocol
    method: str
    choices: tuple[tuple[str, Any], ...]
    data: str
    seed: int
    shots: int
    half: Half
    """The classes that are learned."""
    tests: tuple[tuple[str, Half], ...]
    variant: str = ""
    """What sets this cell apart from the method as it is, "" if nothing does."""
    also: tuple[str, ...] = field(default=(), compare=False)
    """Frozen quantities of test images that other cells of the grid read: they are cached in the same pass."""

    @property
    def slug(self) -> str:
        """A file name of its own; if letters had to be replaced, a hash distinguishes it from others."""
        variant = f"-{self.variant}" if self.variant else ""
        plain = f"{self.method}{variant}-{self.data}-{self.shots}shots-seed{self.seed}"
        safe = "".join(letter if letter.isalnum() or letter in "-_=.," else "_" for letter in plain)[:LONGEST_NAME]
        return safe if safe == plain else f"{safe}-{sha256(plain.encode())[:8]}"


def fit_options(cell: Cell, shared: Bench) -> Fit:
    """The options of a cell's training: those that all cells of a grid share, and its own."""
    return Fit(
        **{name: getattr(shared, name) for part in (Training, Compute, Source) for name in part.model_fields}
        | {
            "data": cell.data,
            "method": cell.method,
            "set": dict(cell.choices),
            "roles": None,  # among the choices
            "shots": cell.shots,
            "seed": cell.seed,
            "half": cell.half,
            "epochs": shared.epochs_of.get(cell.method, shared.epochs),
        }
    )


def make_cells(
    protocol: Protocol,
    data: Sequence[str],
    *,
    methods: Sequence[str],
    seeds: Sequence[int],
    shots: Sequence[int],
    source: str | None = None,
    choices: Mapping[str, Sequence[Any]] | None = None,
) -> list[Cell]:
    """All cells of a grid: data sets × methods × choices × shots × seeds, in that order.

    `data` are the data sets to train on; for the protocols that transfer, those to test after training on `source`.
    """
    data, methods = tuple(dict.fromkeys(data)), tuple(dict.fromkeys(methods))
    seeds, shots = tuple(dict.fromkeys(seeds)), tuple(dict.fromkeys(shots))
    if not data or not methods or not seeds or not shots:
        raise ConfigError("A grid needs at least one data set, one method, one seed and one number of shots.")
    if (protocol in ("cross-dataset", "domain")) != (source is not None):
        raise ConfigError("The protocols cross-dataset and domain, and only they, need a source to learn from.")
    choices = _named_now(methods, choices or {})
    check_choices(methods, choices)
    cells = []
    for learned, method in product([source] if source else data, methods):
        known = get_method(method)
        names = [name for name in choices if name in known.Config.model_fields]
        shown = [name for name in names if name not in resource_fields(known.Config) or len(choices[name]) > 1]
        labels = _without_folders(known, choices)
        half, tests = plan(protocol, learned, [one for one in data if one != source])
        for values in product(*(_each_once(choices[name]) for name in names)):
            chosen = dict(zip(names, values, strict=True))
            variant = _variant({name: labels.get(f"{name}={chosen[name]}", chosen[name]) for name in shown}, known)
            for number, seed in product(shots, seeds):
                cells.append(Cell(protocol, method, tuple(chosen.items()), learned, seed, number, half, tests, variant))
    return cells


def _named_now(methods: Sequence[str], choices: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Choices under former names under today's, with a hint."""
    renamed = dict(choices)
    for config in (get_method(method).Config for method in methods):
        for name, former in config.former.items():
            values = [named_now(config, {former.name: value}) for value in renamed.get(former.name, ())]
            if values and name not in renamed and all(name in one for one in values):
                renamed = {name if key == former.name else key: one for key, one in renamed.items()}
                renamed[name] = [one[name] for one in values]
                for old, new in zip(choices[former.name], values, strict=True):
                    warnings.warn(renamings({former.name: old}, new)[0], DearWarning, stacklevel=3)
    return renamed


def _each_once(values: Sequence[Any]) -> list[Any]:
    """Values in their order, none twice; compared by their JSON text."""
    return list({json.dumps(value, sort_keys=True, default=str): value for value in values}.values())


def _without_folders(method: type[Method], choices: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """`SETTING=LOCATION` → the location's last part, for external resources whose last parts all differ."""
    found: dict[str, str] = {}
    for name in resource_fields(method.Config, external=True):
        last = {f"{name}={one}": Path(str(one)).name for one in choices.get(name, ())}
        found |= last if len(set(last.values())) == len(last) else {}
    return found


def _variant(chosen: Mapping[str, Any], method: type[Method]) -> str:
    """Choices as a person would type them; with its defaults a method is as it is."""
    fields = method.Config.model_fields
    changed = {name: value for name, value in chosen.items() if value != fields[name].default}
    return ",".join(f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in changed.items())


def plan(protocol: Protocol, learned: str, targets: Sequence[str]) -> tuple[Half, tuple[tuple[str, Half], ...]]:
    """Which classes a protocol learns, and what it tests."""
    if protocol == "base-to-novel":
        return "base", ((learned, "base"), (learned, "novel"))
    if protocol == "few-shot":
        return "all", ((learned, "all"),)
    return "all", tuple((name, "all") for name in (learned, *targets))


def _known(names: set[str]) -> str:
    return f" Known: {', '.join(sorted(names))}." if names else " They have no settings at all."


def check_choices(methods: Sequence[str], choices: Mapping[str, Sequence[Any]]) -> None:
    """Refuse a choice that none of the methods knows."""
    known = {name for method in methods for name in get_method(method).Config.model_fields}
    for name in choices:
        if name not in known:
            raise ConfigError(
                f"None of the methods {', '.join(methods)} has a setting {name!r}."
                f"{did_you_mean(name, known) or _known(known)}"
            )
