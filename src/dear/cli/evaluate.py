"""`dear eval`: how good a run is."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dear.cli import options as ask
from dear.cli.console import say
from dear.cli.results import scores_json, tell_scores


def evaluate(
    run: ask.Run,
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="Data set to test on; by default the one that the run was made from."),
    ] = None,
    half: ask.Half = "all",
    template: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Prompt around a class name; by default the run's or the data set's."),
    ] = None,
    descriptions: ask.Descriptions = None,
    data_root: ask.DataRoot = None,
    batch_size: ask.BatchSize = 250,
    cache: ask.EvalCache = None,
    workers: ask.Workers = 2,
    device: ask.Device = None,
    threads: ask.Threads = None,
    everything: Annotated[bool, typer.Option("--all", help="Show the method's other readouts, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with the scores of each class.")] = False,
) -> None:
    """Say how good a run is: test it on images it was not trained on, beside plain CLIP."""
    from dear.workflows.evaluate import evaluate as measure

    ask.use_threads(threads)
    how: dict[str, Any] = {"half": half, "template": template, "data_root": data_root, "cache": cache}
    how["descriptions"] = descriptions
    found = measure(run, data, batch_size=batch_size, workers=workers, device=device, **how)
    for problem in found.problems.values():
        say(f"counted as wrong: {problem}")
    for warning in found.warnings:
        say(f"note: {warning}")
    if as_json:
        typer.echo(scores_json(found))
    else:
        tell_scores(found, everything=everything)
