"""`dear convert`: pickled weights as a folder with a safetensors file."""

from __future__ import annotations

import typer

from dear.cli.commands import single_command
from dear.cli.console import printable
from dear.errors import backbone
from dear.options.tools import Convert


def convert(options: Convert) -> None:
    """Write the weights of a CLIP to OUT as safetensors; pickled files are read as tensors only, never as code."""
    from dear.workflows.convert import convert

    folder = convert(options.source, options.out, clip=options.clip)
    typer.echo(printable(f"converted: {folder}"))
    typer.echo(printable(f"next: dear train DATA {backbone(f'local-dir:{folder}')} --out RUN"))


app = single_command(convert, Convert)
