"""`dear predict`: classify images, write the labels to a table, put copies or links into folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dear.cli.commands import single_command
from dear.cli.console import json_line, printable, say
from dear.errors import ImageError
from dear.options.commands import Predict

if TYPE_CHECKING:
    from dear.model.predict import Prediction


def predict(options: Predict) -> None:
    """Classify images, among the run's classes or any others."""
    from dear.workflows.predict import chosen_classes, label_files, predictions

    files, images, unreadable = label_files(options), 0, 0
    for one in predictions(options.run, options.images, chosen_classes(options.classes, options.names), options):
        images += 1
        if isinstance(one, ImageError):
            unreadable += 1
            say(f"not predicted: {one}")
        else:
            _show(options, one)
            files.add(one)
    for sentence in files.finish():
        typer.echo(printable(sentence))
    if unreadable:
        say(f"{unreadable:,} of {images:,} images could not be read.")
        raise typer.Exit(1)


def _show(options: Predict, one: Prediction) -> None:
    """Print a prediction as soon as it is made, unless it is only written to files."""
    if options.as_json:
        typer.echo(json_line(one.as_dict()))
    elif options.out is None and options.sort_into is None:
        typer.echo(printable(f"{one.image}: {one.text()}"))


app = single_command(predict, Predict, plugins=True)
