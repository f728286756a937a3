"""`dear report` and `dear quickstart`: a run as a page, and the first five minutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dear.cli import options as ask
from dear.cli.console import columns, printable, say
from dear.errors import ConfigError

if TYPE_CHECKING:
    from dear.engine.job import Job
    from dear.workflows.report import Report


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    data: Annotated[
        str | None, typer.Option(metavar="DATA", help="Where the run's data set is now, if it was moved.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="HTML file to write; by default RUN/report.html.")
    ] = None,
    data_root: ask.DataRoot = None,
    workers: ask.Workers = 2,
    device: ask.Device = None,
    threads: ask.Threads = None,
) -> None:
    """Test a run and write a page about it: how good it is, what it corrects and confuses; details for experts."""
    from dear.engine.run import read_run
    from dear.workflows.report import write_report

    read_run(run)
    ask.use_threads(threads)
    say("testing …")
    _tell(write_report(run, data, out=out, data_root=data_root, workers=workers, device=device))


def quickstart(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the run and its report.")] = Path(
        "runs/quickstart"
    ),
    data: Annotated[str, typer.Option(metavar="NAME", help="A data set of the embedded world.")] = "world-blooms",
    epochs: Annotated[int, typer.Option(metavar="N", min=1, help="Number of epochs.")] = 10,
    workers: ask.Workers = 2,
    threads: ask.Threads = None,
) -> None:
    """Adapt the embedded world's CLIP to half of a data set's classes, test both halves, write a report."""
    from dear.backbone.load import load_clip
    from dear.data.open import open_dataset
    from dear.engine.job import make_job
    from dear.engine.run import run_job
    from dear.engine.settings import TrainSettings
    from dear.workflows.report import write_report

    ask.use_threads(threads)
    dataset = open_dataset(data)
    job = make_job(dataset, shots=16, seed=1, half="base", train=TrainSettings(epochs=epochs))
    if out.exists() and any(out.iterdir()) and not _is_quickstart(out, job):
        raise ConfigError(f"{out} holds something else: choose another folder with --out.")
    clip = load_clip("world")
    say(f"training on {len(job.class_names)} classes of {dataset.name}, 16 images per class …")
    model, _ = run_job(job, clip, out, overwrite=True, workers=workers)
    say("testing …")
    _tell(write_report(out, model=model, workers=workers))


def _is_quickstart(folder: Path, job: Job) -> bool:
    """Whether a folder holds a run of this very data, which may be made again."""
    from dear.engine.run import RUN, read_run

    if not (folder / RUN).is_file():
        return False
    made = read_run(folder)["description"]
    wanted = (job.dataset.name, list(job.class_names), job.shots, job.seed, job.method)
    return (made["data"], made["classes"], made["shots"], made["seed"], made["method"]) == wanted


def _tell(written: Report) -> None:
    for sentence in written.verdict:
        typer.echo(sentence)
    typer.echo("\n" + columns([tuple(row) for row in written.scores]) + "\n")
    typer.echo(printable(f"report: {written.path}"))
