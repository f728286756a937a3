"""`dear doctor` and `dear cache`: help oneself."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dear.cli.console import Group, columns, printable

if TYPE_CHECKING:
    from dear.storage.user_cache import CacheEntry

cache_app = typer.Typer(help="List and clear caches: everything in them can be made again.", cls=Group)

Folders = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FOLDER", help="Caches, or folders of runs with one; by default the user's cache."),
]


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a bug report.")] = False,
) -> None:
    """Print versions, device, threads, memory, caches and extras: what a bug report needs."""
    from dear.storage.user_cache import readable
    from dear.workflows.doctor import doctor as look

    found = look()
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    device, threads, memory, caches = (found[name] for name in ("device", "threads", "memory", "caches"))
    missing = [name for name, there in found["extras"].items() if not there]
    rows: list[tuple[str, ...]] = [
        ("dear", f"{found['dear']}, Python {found['python']}, {found['system']}"),
        ("packages", ", ".join(f"{name} {number or 'missing'}" for name, number in found["packages"].items())),
        ("extras", ", ".join(name for name, there in found["extras"].items() if there) or "none"),
        ("", f'not installed: {", ".join(missing)} (pip install "dear-vlm[{missing[0]}]")' if missing else "all there"),
        ("device", f"{device['chosen']}; CUDA: {', '.join(device['cuda']) or 'none'}; MPS: {_yes(device['mps'])}"),
        ("threads", f"{threads['torch']} of {threads['usable']} usable cores, load {threads['load']}"),
        ("memory", " of ".join(readable(one) for one in (memory["available"], memory["total"]) if one) + " free"),
        ("cache", f"{caches['dear']['folder']}, {readable(caches['dear']['bytes'])}"),
        ("weights", f"{caches['weights']['folder']}, {caches['weights']['models']} models"),
        *((name, value) for name, value in found["environment"].items()),
    ]
    typer.echo(printable(columns(rows)))
    for remark in found["remarks"]:
        typer.echo(f"note: {remark}")


def _yes(there: bool) -> str:
    return "yes" if there else "no"


@cache_app.command("list")
def list_caches(folders: Folders = None) -> None:
    """List what caches hold: size, days since it was used, place."""
    from dear.storage.user_cache import list_cache, readable

    found = list_cache(*(folders or ()))
    rows = [(readable(one.bytes), f"{_days(one):.0f} days", str(one.path)) for one in found]
    typer.echo(printable(columns([("size", "unused", "what"), *rows])) if rows else "nothing is cached")
    if rows:
        typer.echo(f"{readable(sum(one.bytes for one in found))} in all")


@cache_app.command("clear")
def clear_caches(
    folders: Folders = None,
    max_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Keep what was used last, up to a size such as 2GB; by default nothing.")
    ] = "0",
) -> None:
    """Remove what was unused the longest, until at most --max-size is left."""
    from dear.storage.user_cache import clear_cache, readable

    gone = clear_cache(*(folders or ()), max_size=max_size)
    typer.echo(f"{len(gone)} entries removed, {readable(sum(one.bytes for one in gone))}")


def _days(entry: CacheEntry) -> float:
    return max(0.0, time.time() - entry.used) / 86400
