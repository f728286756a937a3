"""Which role maps and other resources the cells of a table were trained with, and where these come from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dear.errors import ConfigError
from dear.evaluation.results import CellResult
from dear.methods.registry import get_method
from dear.roles.rolemap import ROLES, MapRecord
from dear.storage.markdown import plain

NEEDED = "a role map"
"""How a method's description names what it needs."""
UNKNOWN = "not recorded by the version that made these cells"


class UsedMap(NamedTuple):
    """A role map, and the cells of one method that were trained with it."""

    method: str
    data: tuple[str, ...]
    sha256: str
    """The first digits of the hash, "" if unknown."""
    source: str
    rule: str
    """The rule that decided the roles, and whether resampling confirms them; "" if unknown."""

    def __str__(self) -> str:
        """The map in one sentence."""
        which = f" {self.sha256}…" if self.sha256 else ""
        rule = f"; {self.rule}" if self.rule else ""
        return f"Role map of {self.method} on {', '.join(self.data)}:{which} {self.source}{rule}."


def used_maps(cells: Iterable[CellResult]) -> list[UsedMap]:
    """The role maps of methods that use one, by method and map, in the order of the cells."""
    found: dict[tuple[str, str, MapRecord | None], dict[str, None]] = {}
    for cell in cells:
        digest = cell.role_map.sha256 if cell.role_map else cell.files.get(ROLES, "")
        if digest or (cell.training is None and _needs_map(cell.method)):
            name = ", ".join(filter(None, (cell.method, cell.variant)))
            found.setdefault((name, digest, cell.role_map), {})[cell.data] = None
    return [
        UsedMap(name, tuple(data), digest[:12], record.source if record else UNKNOWN, _rule(record))
        for (name, digest, record), data in found.items()
    ]


def resource_notes(cells: Iterable[CellResult]) -> list[str]:
    """What methods used besides CLIP and labelled photos, such as a language model: one sentence per method."""
    found = {
        f"{', '.join(filter(None, (cell.method, cell.variant)))}: {name} {plain(one)}."
        for cell in cells
        for name, one in cell.resources.items()
    }
    return sorted(found)


def _rule(record: MapRecord | None) -> str:
    rule = f"{record.rule} rule" if record and record.rule else ""
    stable = {True: "not confirmed by resampling", False: "confirmed by resampling"}
    return ", ".join(
        filter(None, (rule, stable.get(record.unstable) if record and record.unstable is not None else ""))
    )


def _needs_map(name: str) -> bool:
    try:
        about = get_method(name).about
    except ConfigError:
        return False
    return about is not None and NEEDED in about.needs.split("; ")
