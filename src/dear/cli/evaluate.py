"""`dear eval`: how good a run is."""

from __future__ import annotations

import typer

from dear.cli.commands import single_command
from dear.cli.console import columns, json_line, printable, say
from dear.options.commands import Evaluate


def evaluate(options: Evaluate) -> None:
    """Say how good a run is: test it on images it was not trained on, beside plain CLIP."""
    from dear.workflows.evaluate import evaluate, score_rows, scores_as_dict, verdict_sentences

    found = evaluate(
        options.run,
        options.data,
        half=options.half,
        data_root=options.data_root,
        template=options.template,
        descriptions=options.descriptions,
        cache=options.cache,
        workers=options.workers,
        batch_size=options.batch_size,
        device=options.device,
        threads=options.threads,
        allow_pickled=options.allow_pickled,
    )
    for problem in found.problems.values():
        say(f"counted as wrong: {problem}")
    for warning in found.warnings:
        say(f"note: {warning}")
    if options.as_json:
        typer.echo(json_line(scores_as_dict(found, options.run), indent=1))
        return
    for sentence in verdict_sentences(found):
        typer.echo(printable(sentence))
    typer.echo("\n" + columns(score_rows(found, everything=options.everything)))


app = single_command(evaluate, Evaluate, plugins=True)
