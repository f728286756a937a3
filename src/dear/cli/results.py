"""How a training ends: what was made, and what to type next."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dear.cli.console import printable, terminal_width

if TYPE_CHECKING:
    from dear.evaluation.choice import Choice
    from dear.workflows.train import Trained


def print_trained(trained: Trained, out: Path) -> None:
    """Print where the adapter is, how large it is, and what to type next."""
    from dear.workflows.next_steps import adapter_size, next_commands

    method, steps = trained.job.method, trained.progress.step
    what = f"{method}, {steps:,} step{'' if steps == 1 else 's'}" if steps else method
    typer.echo(printable(f"done: {out} ({adapter_size(out)}; {what})"))
    typer.echo(printable(next_commands(trained.job, out)))


def print_choice(choice: Choice) -> None:
    """Print how methods were ranked, which one was taken and why."""
    from dear.evaluation.choice_words import notes, summary, table
    from dear.storage.markdown import aligned

    if rows := table(choice):
        typer.echo(aligned(rows[0], rows[1:], width=terminal_width()))
    for sentence in (*notes(choice), "", *summary(choice)):
        typer.echo(textwrap.fill(printable(sentence), terminal_width(), break_on_hyphens=False))
