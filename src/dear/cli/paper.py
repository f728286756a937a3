"""`dear paper`: every table and figure of the paper in one resumable command."""

from __future__ import annotations

import typer

from dear.cli.commands import single_command
from dear.cli.console import say
from dear.options.parts import Paper


def paper(options: Paper) -> None:
    """Make every table and figure of the paper, its own numbers beside ours; give --mini or --full."""
    from dear.workflows.paper import make, paper_plan

    typer.echo(paper_plan(options) if options.plan else make(options, say=say, record_options=True))


app = single_command(paper, Paper, config=True, plugins=True)
