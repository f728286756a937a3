"""How commands end: what was made and what to type next, and what a test means."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dear.cli.console import columns, printable
from dear.errors import DataError

if TYPE_CHECKING:
    from dear.data.dataset import Dataset
    from dear.engine.job import Job
    from dear.evaluation.evaluate import Evaluation

IMAGE = "IMAGE"
"""Stands for a file where none is known, as with data sets that are drawn."""


def tell_trained(job: Job, out: Path, steps: int) -> None:
    """Say where the adapter is, how large it is, and what to type next."""
    size = _megabytes(_adapter_bytes(out))
    trained = f"{job.method}, {steps:,} step{'' if steps == 1 else 's'}" if steps else job.method
    typer.echo(printable(f"done: {out} ({size}; {trained})"))
    typer.echo(printable(next_commands(job, out)))


def next_commands(job: Job, out: Path) -> str:
    """The next commands as they can be typed, each with a remark that a shell takes for a comment."""
    from dear.methods.registry import get_method

    run, tested = f"{_word(out)}{_extended()}", _tested(job)
    image = IMAGE if tested is None else _word(_file(job.dataset, tested.id) or IMAGE)
    rows = [(f"dear predict {run} {image}", "what an image shows")]
    if tested is not None:
        half = "" if job.half == "all" or get_method(job.method).needs.novel else f" --half {job.half}"
        rows = [
            (f"dear eval {run}{half}", "how good it is, beside plain CLIP"),
            (f"dear report {run}", "a page about it, with images"),
            *rows,
        ]
    elif job.dataset.train:
        return "All images were trained on, so none is left to test it with.\nnext:\n" + _remarked(rows)
    return "next:\n" + _remarked(rows)


def _extended() -> str:
    """The options by which methods and data sets of others were added."""
    from dear.methods.plugins import added

    files, catalogs = added()
    words = [("--import", file) for file in files] + [("--catalog", file) for file in catalogs]
    return "".join(f" {name} {_word(Path(file))}" for name, file in words)


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


def _remarked(rows: Sequence[tuple[str, str]]) -> str:
    width = max(len(command) for command, _ in rows)
    return "\n".join(f"  {command:<{width}}  # {remark}" for command, remark in rows)


def _word(path: Path | str) -> str:
    """A path as a shell takes it."""
    return shlex.quote(str(path))


def _tested(job: Job) -> Any:
    """The first image that `dear eval` would test; None if there is none."""
    from dear.evaluation.test_data import items_to_test

    try:
        return items_to_test(job.dataset, "all", trained_items=job.items)[0]
    except DataError:
        return None


def _file(dataset: Dataset, item_id: str) -> Path | None:
    """The file of an image, as it is reached from here."""
    places = (Path(dataset.source), Path(dataset.source).parent) if dataset.source else ()
    found = next((place / item_id for place in places if (place / item_id).is_file()), None)
    here = Path.cwd()
    return found.relative_to(here) if found and found.is_relative_to(here) else found


def _adapter_bytes(folder: Path) -> int:
    from dear.model.artefact import MANIFEST, read_manifest

    return (folder / MANIFEST).stat().st_size + sum(entry.bytes for entry in read_manifest(folder).files.values())


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:,.0f} kB"
