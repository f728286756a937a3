"""The four protocols as plain data: what each cell trains on and what it is tested on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from dear.errors import ConfigError, did_you_mean
from dear.methods.registry import get_method
from dear.protocols.results import Part, Protocol

FEW_SHOTS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Cell:
    """One training and its tests."""

    protocol: Protocol
    method: str
    choices: tuple[tuple[str, Any], ...]
    data: str
    seed: int
    shots: int
    half: Part
    """The classes that are learned."""
    tests: tuple[tuple[str, Part], ...]

    @property
    def variant(self) -> str:
        """What sets this cell apart from the method as it is, "" where nothing does."""
        told = [(name, value) for name, value in self.choices if (name, value) != ("mask", "roles") and name != "roles"]
        return ",".join(f"{name}={value}" for name, value in told)

    @property
    def slug(self) -> str:
        """A file name of its own."""
        variant = f"-{self.variant}" if self.variant else ""
        plain = f"{self.method}{variant}-{self.data}-{self.shots}shots-seed{self.seed}"
        return "".join(letter if letter.isalnum() or letter in "-_=.," else "_" for letter in plain)


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

    `data` are the data sets to learn, or, for the protocols that transfer, the targets of what `source` taught.
    """
    if not data or not methods or not seeds or not shots:
        raise ConfigError("A grid needs at least one data set, one method, one seed and one number of shots.")
    if (protocol in ("cross-dataset", "domain")) != (source is not None):
        raise ConfigError("The protocols cross-dataset and domain, and only they, need a source to learn from.")
    check_choices(methods, choices or {})
    cells = []
    for learned, method in product([source] if source else data, methods):
        names = [name for name in choices or {} if name in get_method(method).choice_names]
        for values in product(*((choices or {})[name] for name in names)):
            chosen = tuple(zip(names, values, strict=True))
            for number, seed in product(shots, seeds):
                half, tests = plan(protocol, learned, [one for one in data if one != source])
                cells.append(Cell(protocol, method, chosen, learned, seed, number, half, tests))
    return cells


def plan(protocol: Protocol, learned: str, targets: Sequence[str]) -> tuple[Part, tuple[tuple[str, Part], ...]]:
    """Which classes a protocol learns, and what it tests."""
    if protocol == "base-to-novel":
        return "base", ((learned, "base"), (learned, "novel"))
    if protocol == "few-shot":
        return "all", ((learned, "all"),)
    return "all", tuple((name, "all") for name in (learned, *targets))


def check_choices(methods: Sequence[str], choices: Mapping[str, Sequence[Any]]) -> None:
    """Refuse a choice that none of the methods knows."""
    known = {name for method in methods for name in get_method(method).choice_names}
    for name in choices:
        if name not in known:
            raise ConfigError(
                f"None of the methods {', '.join(methods)} has a setting {name!r}.{did_you_mean(name, known)}"
            )
