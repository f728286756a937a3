"""The command line as objects: every command that can be typed, by its words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from dear.cli import app

ROOT_COMMAND = typer.main.get_command(app)


def tree(command: Any, path: tuple[str, ...] = (), *, hidden: bool = True) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A command and everything below it, groups after their members; former names only if `hidden`."""
    for name, child in getattr(command, "commands", {}).items():
        if hidden or not child.hidden:
            yield from tree(child, (*path, name), hidden=hidden)
    yield path, command


LEAVES = {path: command for path, command in tree(ROOT_COMMAND) if not hasattr(command, "commands")}
"""Commands that do something, former names included."""
GROUPS = {path[:1] for path in LEAVES if len(path) > 1}
