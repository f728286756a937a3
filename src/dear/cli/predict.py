"""`dear predict`: classify images, write the labels to a table, put copies or links into folders."""

from __future__ import annotations

from functools import partial
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
    from dear.model.predict import label_threshold
    from dear.workflows.predict import Computing, Listing, chosen_classes, label_files, predict_each

    found = predict_each(
        options.run,
        options.images,
        chosen_classes(options.classes, options.names),
        template=options.template,
        descriptions=options.descriptions,
        listing=Listing(options.readout, options.top_k, label_threshold(options.multi_label, options.threshold)),
        files=label_files(
            options.out, options.sort_into, top_k=options.top_k, link=options.link, multi_label=options.multi_label
        ),
        computing=Computing(
            options.batch_size, options.workers, options.device, options.threads, options.allow_pickled
        ),
        each=partial(_show, options),
    )
    for sentence in found.written:
        typer.echo(printable(sentence))
    if found.problems:
        raise typer.Exit(1)


def _show(options: Predict, one: Prediction | ImageError) -> None:
    """Print a prediction as soon as it is made, unless it is only written to files."""
    if isinstance(one, ImageError):
        say(f"not predicted: {one}")
    elif options.as_json:
        typer.echo(json_line(one.as_dict()))
    elif options.out is None and options.sort_into is None:
        typer.echo(printable(f"{one.image}: {one.text()}"))


app = single_command(predict, Predict, plugins=True)
