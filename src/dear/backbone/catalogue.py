"""What can be done with every backbone that is listed, without building it: a table that a test keeps true."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from dear.backbone.names import list_backbones
from dear.backbone.support import Can

TABLE = "backbones.json"


@dataclass(frozen=True)
class ListedBackbone:
    """A backbone that can be loaded by its name."""

    name: str
    tags: tuple[str, ...]
    """Tags of its weights, for `pretrained`; () if it comes with this package."""
    can: frozenset[Can]
    pool: str
    """How the image feature is read: token, average or map; "" if the image tower's layers cannot be reached."""
    pixels: int
    """Height and width of its images."""
    parameters: int | None
    """Numbers of both towers; None if the text tower is a model of transformers."""
    extra: str
    """The extra of this package that it needs, or ""."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        can = [one.value for one in Can if one in self.can]
        return {**self.__dict__, "tags": list(self.tags), "can": can}


def list_known() -> list[ListedBackbone]:
    """Every backbone that has weights, in the order of `list_backbones`."""
    table = _table()
    return [_listed(name, tags, table[name]) for name, tags in list_backbones().items() if name in table]


def known_can(name: str) -> frozenset[Can] | None:
    """What can be done with a backbone, by its name alone; None for folders, repositories and unknown names."""
    lower = {known.lower(): row for known, row in _table().items()}
    row = lower.get(name.replace("/", "-").lower())
    return None if row is None else _can(row)


@cache
def _table() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(
        (resources.files("dear") / "assets" / TABLE).read_text(encoding="utf-8")
    )
    return found


def _can(row: dict[str, Any]) -> frozenset[Can]:
    return frozenset({Can.FEATURES, Can.WORDS, *(Can(one) for one in row["layers"])})


def _listed(name: str, tags: tuple[str, ...], row: dict[str, Any]) -> ListedBackbone:
    return ListedBackbone(name, tags, _can(row), row["pool"], row["pixels"], row["parameters"], row["extra"])
