"""How a training ends: what was made, and what to type next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dear.cli.console import printable

if TYPE_CHECKING:
    from dear.workflows.train import Trained


def print_trained(trained: Trained, out: Path) -> None:
    """Print where the adapter is, how large it is, and what to type next."""
    from dear.workflows.next_steps import adapter_size, next_commands

    method, steps = trained.job.method, trained.progress.step
    what = f"{method}, {steps:,} step{'' if steps == 1 else 's'}" if steps else method
    typer.echo(printable(f"done: {out} ({adapter_size(out)}; {what})"))
    typer.echo(printable(next_commands(trained.job, out)))
