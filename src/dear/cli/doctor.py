"""`dear doctor` and `dear cache`: what a machine has, and what caches contain."""

from __future__ import annotations

import json
import time
from typing import Any

import typer

from dear.cli.commands import add_command, single_command
from dear.cli.console import Group, columns, printable
from dear.options.tools import ClearCache, Doctor, ListCache
from dear.storage.user_cache import CacheEntry, clear_cache, list_cache, readable

cache_app = typer.Typer(
    help="List and clear caches: everything in them can be made again.", cls=Group, add_completion=False
)


def doctor(options: Doctor) -> None:
    """Print versions, device, threads, memory, caches and extras: what a bug report needs."""
    from dear.workflows.doctor import doctor as look

    found = look()
    if options.as_json:
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
        ("weights", _weights_text(caches["weights"])),
        *((name, value) for name, value in found["environment"].items()),
    ]
    typer.echo(columns(rows))
    for remark in found["remarks"]:
        typer.echo(printable(f"note: {remark}"))


def _weights_text(cache: dict[str, Any]) -> str:
    damaged = f", {len(cache['damaged'])} damaged" if cache["damaged"] else ""
    return f"{cache['folder']}, {cache['models']} models, {cache['checked']} files checked{damaged}"


def _yes(there: bool) -> str:
    return "yes" if there else "no"


def list_caches(options: ListCache) -> None:
    """List what caches contain: size, days since it was used, place."""
    found = list_cache(*options.folders)
    rows = [(readable(one.bytes), f"{_days(one):.0f} days", str(one.path)) for one in found]
    typer.echo(columns([("size", "unused", "what"), *rows]) if rows else "nothing is cached")
    if rows:
        typer.echo(f"{readable(sum(one.bytes for one in found))} in all")


def clear_caches(options: ClearCache) -> None:
    """Remove what was unused the longest, until at most --max-size is left."""
    removed = clear_cache(*options.folders, max_size=options.max_size)
    typer.echo(f"{len(removed)} entries removed, {readable(sum(one.bytes for one in removed))}")


def _days(entry: CacheEntry) -> float:
    return max(0.0, time.time() - entry.used) / 86400


add_command(cache_app, list_caches, ListCache, "list")
add_command(cache_app, clear_caches, ClearCache, "clear")
app = single_command(doctor, Doctor)
