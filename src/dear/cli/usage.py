"""Mistakes in a command line that typer finds, in one sentence each."""

from __future__ import annotations

import re
from typing import Any

import typer

from dear.errors import DearError, did_you_mean

UsageError: Any = typer.BadParameter.__base__
"""Click's class, or that of the click inside newer versions of typer."""


def in_words(error: Any) -> str:
    """What was typed wrong, in one sentence of bounded length, whatever was typed."""
    return str(DearError(" ".join(_sentence(error).split())))


def _sentence(error: Any) -> str:
    kind, command = type(error).__name__, getattr(error.ctx, "command", None)
    path = f"'{error.ctx.command_path}'" if error.ctx else "dear"
    if kind == "NoSuchOption":
        shown = [one for one in getattr(command, "params", ()) if not getattr(one, "hidden", False)]
        known = [name for one in shown for name in one.opts]
        near = did_you_mean(error.option_name, known, most=1)
        more = [name for name in error.possibilities or () if name in known]
        near = near or (f" Did you mean {more[0]!r}?" if more else "")
        return f"{path} has no option {error.option_name}.{near}"
    text = " ".join(str(error.format_message()).split())
    if named := re.fullmatch(r"No such command '(.*?)'\..*", text):
        known = [name for name, one in getattr(command, "commands", {}).items() if not one.hidden]
        return f"{path} has no command {named[1]!r}.{did_you_mean(named[1], known, most=1)}"
    if kind == "BadOptionUsage":
        return f"{error.option_name} needs a value."
    if extra := re.fullmatch(r"Got unexpected extra argument\S* \((.*)\)", text):
        return f"{path} takes no further argument, but got {extra[1]!r}."
    return text if text.endswith((".", "?")) else f"{text}."
