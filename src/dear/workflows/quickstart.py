"""The first five minutes: adapt the embedded CLIP to half of a data set's classes, test both halves, write a report."""

from __future__ import annotations

from pathlib import Path

from dear.engine.run_folder import RUN, read_run
from dear.engine.workspace import Say, Workspace, log
from dear.errors import ConfigError, option
from dear.model.artefact import MANIFEST
from dear.options.parts import Fit, Quickstart
from dear.storage.locks import kind_of
from dear.workflows.report import Report, write_report
from dear.workflows.train import train_run


def quickstart(out: str | Path = "runs/quickstart", data: str = "world-blooms", *, epochs: int = 10) -> Report:
    """Adapt the embedded world's CLIP to half of a data set's classes, test both halves, write a report.

    Args:
        out: folder for the run and its report.
        data: a data set of the embedded world.
        epochs: number of epochs.
    """
    return run_quickstart(Quickstart(out=Path(out), data=data, epochs=epochs))


def run_quickstart(options: Quickstart, say: Say = log) -> Report:
    """What `dear.quickstart` and `dear quickstart` do."""
    wanted = Fit(
        data=options.data,
        clip="world",
        out=options.out,
        half="base",
        epochs=options.epochs,
        workers=options.workers,
        threads=options.threads,
        overwrite=True,
    )
    workspace = Workspace()
    job = workspace.job(wanted)
    if options.out.exists() and any(options.out.iterdir()) and not _is_just_begun(options.out):
        made = read_run(options.out)["description"] if (options.out / RUN).is_file() else {}
        same = {"data": job.dataset.name, "classes": list(job.class_names), "shots": job.shots, "seed": job.seed}
        if {name: made.get(name) for name in (*same, "method")} != {**same, "method": job.method}:
            raise ConfigError(
                f"{options.out} contains something else: choose another folder with {option(out='FOLDER')}."
            )
    say(f"training on {len(job.class_names)} classes of {job.dataset.name}, {job.shots} images per class …")
    model = train_run(wanted, workspace=workspace, say=say, record_options=True).model
    say("testing …")
    return write_report(options.out, model=model, workers=options.workers)


def _is_just_begun(folder: Path) -> bool:
    """Whether a folder is that of a run that was stopped before it had saved anything."""
    return kind_of(folder) == "run" and not (folder / RUN).exists() and not (folder / MANIFEST).exists()
