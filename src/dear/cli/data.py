"""`dear ls` and `dear check`: what there is, and whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dear.errors import ConfigError

list_app = typer.Typer(help="List data sets and methods.", no_args_is_help=True)
check_app = typer.Typer(help="Check that things are there and whole.", no_args_is_help=True)

Root = Annotated[Path, typer.Option(help="Folder that holds the paper's data sets, in CoOp's layout.")]


@list_app.command("datasets")
def list_datasets(root: Root = Path("data")) -> None:
    """Every data set with a name, and which of the paper's are present below ROOT."""
    from dear.data.catalog import declarations
    from dear.data.check import is_present
    from dear.world.catalog import DATASETS

    rows = [
        (one.name, "yes" if is_present(one, root) else "no", f"{one.classes} classes", one.title)
        for one in declarations().values()
    ]
    rows += [(w.name, "yes", f"{len(w.classes)} classes", f"stands for {w.stands_for}") for w in DATASETS.values()]
    typer.echo(columns([("data set", "present", "size", "what"), *rows]))


@list_app.command("methods")
def list_all_methods() -> None:
    """Every adaptation method."""
    from dear.methods.registry import list_methods

    typer.echo("\n".join(list_methods()))


@check_app.command("data")
def check_data(
    name: Annotated[str, typer.Argument(help="A data set's name, a folder of class folders, or a .csv or .json list.")],
    root: Root = Path("data"),
    quick: Annotated[bool, typer.Option("--quick", help="Only read the lists; do not open the images.")] = False,
) -> None:
    """Compare a data set with what it should hold, and open every image once."""
    from dear.cli.talk import progress_bar
    from dear.data.catalog import declarations
    from dear.data.check import check_dataset
    from dear.datasets import open_dataset

    declared = declarations().get(name)
    with progress_bar("opening images", declared.train + declared.val + declared.test if declared else 0) as advance:
        health = check_dataset(name, lambda: open_dataset(name, root), declared, decode=not quick, progress=advance)
    for note in health.notes:
        typer.echo(f"note: {note}")
    if health.problems:
        raise ConfigError(f"{name} has {len(health.problems)} problem(s):\n- " + "\n- ".join(health.problems))
    counts = ", ".join(f"{count:,} {split}" for split, count in health.counts.items())
    typer.echo(f"{name} is in order: {health.classes} classes, {counts} images.")


def columns(rows: list[tuple[str, ...]]) -> str:
    """Rows as aligned text."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)
