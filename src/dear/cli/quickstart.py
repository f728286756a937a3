"""`dear quickstart`: the first five minutes."""

from __future__ import annotations

from dear.cli.commands import single_command
from dear.cli.console import say
from dear.cli.report import print_report
from dear.options.parts import Quickstart


def quickstart(options: Quickstart) -> None:
    """Adapt the embedded world's CLIP to half of a data set's classes, test both halves, write a report."""
    from dear.workflows.quickstart import run_quickstart

    print_report(run_quickstart(options, say=say))


app = single_command(quickstart, Quickstart)
