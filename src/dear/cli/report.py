"""`dear report` and `dear quickstart`: a run as a page, and the first five minutes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dear.cli.talk import say, step_bar
from dear.cli.train import Device, Root, Workers, data_of_run
from dear.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dear.data.dataset import Dataset, Item
    from dear.engine.run import Job
    from dear.methods.base import Method

REPORT = "report.html"


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    data: Annotated[str | None, typer.Option(help="Where the run's data lies now, if it was moved.")] = None,
    out: Annotated[Path | None, typer.Option(help="HTML file to write; by default RUN/report.html.")] = None,
    root: Root = None,
    workers: Workers = 2,
    device: Device = None,
) -> None:
    """Write a page about a run: scores, weights, curves, confusion, examples, roles, nearest images."""
    from dear.artefact import load
    from dear.engine.ranks import local_device
    from dear.engine.run import read_run

    description = read_run(run)["description"]
    dataset, drawn = data_of_run(run, data, root, None)
    model = load(run, device=local_device(device))
    _write_report(run, out or run / REPORT, model, dataset, description, drawn, workers)


def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for the run and its report.")] = Path("runs/quickstart"),
    data: Annotated[str, typer.Option(help="A world data set, or any other that fits.")] = "world-blooms",
    epochs: Annotated[int, typer.Option(min=1, help="Rounds through the images.")] = 10,
    workers: Workers = 2,
) -> None:
    """Adapt the embedded world's CLIP to half of a data set's classes, test both halves, write a report."""
    from dear.backbone.load import load_clip
    from dear.data.splits import few_shot
    from dear.datasets import open_dataset
    from dear.engine.fit import make_job
    from dear.engine.loop import TrainSettings
    from dear.engine.run import describe, run_job

    dataset = open_dataset(data)
    job = make_job(dataset, shots=16, seed=1, half="base", train=TrainSettings(epochs=epochs))
    if out.exists() and any(out.iterdir()) and not _is_quickstart(out, job):
        raise ConfigError(f"{out} holds something else: choose another folder with --out.")
    clip = load_clip("world")
    say(f"learning {len(job.class_names)} classes of {dataset.name} from 16 images each …")
    with step_bar() as show:
        model, _ = run_job(job, clip, out, overwrite=True, workers=workers, on_step=show)
    drawn = few_shot(dataset.train, job.shots, job.seed)
    _write_report(out, out / REPORT, model, dataset, describe(job, model), drawn, workers)


def _is_quickstart(folder: Path, job: Job) -> bool:
    """Whether a folder holds a run of this very data, which may be made again."""
    from dear.engine.run import RUN, read_run

    if not (folder / RUN).is_file():
        return False
    made = read_run(folder)["description"]
    wanted = (job.dataset.name, list(job.class_names), job.shots, job.seed, job.method)
    return (made["data"], made["classes"], made["shots"], made["seed"], made["method"]) == wanted


def _write_report(
    run: Path,
    out: Path,
    model: Method,
    dataset: Dataset,
    description: dict[str, Any],
    drawn: Sequence[Item],
    workers: int,
) -> None:
    from dear.cli.data import columns
    from dear.engine.run import METRICS
    from dear.files import write_result
    from dear.reports.run_report import evaluate_halves, run_report, score_rows

    say("testing …")
    halves = evaluate_halves(model, dataset, description, drawn, workers=workers)
    log = run / METRICS  # a method that trains nothing writes none
    metrics = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.is_file() else []
    write_result(out, run_report(model, dataset, description, metrics, halves, workers=workers))
    typer.echo(columns([tuple(row) for row in score_rows(halves, model.name)]))
    typer.echo(f"report: {out}")
