"""How commands end: what was made and what to type next, and what a test means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dear.cli.console import columns, printable

if TYPE_CHECKING:
    from dear.evaluation.evaluate import Evaluation
    from dear.workflows.train import Trained


def print_trained(trained: Trained, out: Path) -> None:
    """Print where the adapter is, how large it is, and what to type next."""
    from dear.workflows.next_steps import adapter_size, next_commands

    method, steps = trained.job.method, trained.progress.step
    what = f"{method}, {steps:,} step{'' if steps == 1 else 's'}" if steps else method
    typer.echo(printable(f"done: {out} ({adapter_size(out)}; {what})"))
    typer.echo(printable(next_commands(trained.job, out)))


def tell_scores(found: Evaluation, *, everything: bool = False) -> None:
    """One sentence, then the table; with `everything` every readout of the method."""
    from dear.evaluation.verdict import balance_sentence, sentence

    judged = found.verdict()
    typer.echo(sentence(judged))
    if more := balance_sentence(judged):
        typer.echo(more)
    typer.echo(printable("\n" + columns(score_rows(found, everything=everything))))


def score_rows(found: Evaluation, *, everything: bool = False) -> list[tuple[str, ...]]:
    """Plain CLIP and the method by its default readout, or by all; beside it the mean per class if they differ much."""
    from dear.evaluation.verdict import mean_per_class

    scores, plain = found.scores, found.plain
    assert plain is not None
    unbalanced = found.verdict().balance is not None
    half = "" if scores.half == "all" else f", {scores.half}"
    head = [f"{scores.data}{half}: {scores.images:,} images, {len(scores.per_class)} classes", "correct"]
    rows = [(*head, "mean per class") if unbalanced else tuple(head)]
    named = [("plain CLIP", plain, next(iter(plain.accuracy)))]
    for readout in scores.accuracy:
        if everything or readout == found.readout:
            label = found.method if readout == found.readout else f"{found.method}, {readout}"
            named.append((label, scores, readout))
    for label, one, readout in named:
        numbers = [one.accuracy[readout], *([mean_per_class(one, readout)] if unbalanced else [])]
        rows.append((label, *(f"{number:6.2f} %" for number in numbers)))
    return rows


def scores_json(found: Evaluation) -> str:
    """The scores of each class by every readout, plain CLIP's, and the verdict."""
    assert found.plain is not None
    content: dict[str, Any] = {"adapted": found.scores.model_dump(mode="json")}
    content["plain"] = found.plain.model_dump(mode="json")
    content["verdict"] = found.verdict().as_dict()
    return json.dumps(content, indent=1, ensure_ascii=False)
