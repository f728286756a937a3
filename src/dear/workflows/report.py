"""The page of a run, in one call."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dear.engine.run_folder import read_metrics, read_run
from dear.evaluation.choice import read_choice
from dear.evaluation.test_data import data_of_run
from dear.model.model import Model
from dear.options.commands import Report as ReportOptions
from dear.options.reading import check_values
from dear.reports.run_page import run_html
from dear.storage.files import as_folder, write_result
from dear.workflows.machine import using_threads
from dear.workflows.opened_run import model_of
from dear.workflows.report_data import evaluate_halves, run_page, score_rows, verdict_sentences

PAGE = "report.html"


class Report(NamedTuple):
    """A page that was written, its sentences, and its table of scores; the first row is the head."""

    path: Path
    scores: list[list[str]]
    verdict: list[str]


def report(
    run: str | Path,
    data: str | Path | None = None,
    *,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    workers: int = 2,
    device: str | None = None,
    threads: int | None = None,
    allow_pickled: bool = False,
) -> Path:
    """Test a run and write a page about it; returns the page's path.

    Args:
        run: folder of a run.
        data: where the run's data set is now, if it was moved.
        out: HTML file to write; by default RUN/report.html.
        data_root: folder that contains the paper's data sets.
        workers: number of image-loading threads.
        device: "cpu", "cuda"; by default a GPU if there is one.
        threads: threads to compute with on a CPU; by default all.
        allow_pickled: also read a backbone's weights from a pickled file (tensors only, never code).
    """
    return write_report(
        run,
        data,
        out=out,
        data_root=data_root,
        workers=workers,
        device=device,
        threads=threads,
        allow_pickled=allow_pickled,
    ).path


def write_report(
    run: str | Path,
    data: str | Path | None = None,
    *,
    model: Model | None = None,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    workers: int = 2,
    device: str | None = None,
    threads: int | None = None,
    allow_pickled: bool = False,
) -> Report:
    """As `report`, with the scores; `model` is the run's own, if it is loaded already."""
    check_values(ReportOptions, workers=workers, device=device, threads=threads)
    folder = as_folder(run)
    description = read_run(folder)["description"]
    tested = data_of_run(folder, data, data_root)
    page = Path(out) if out is not None else folder / PAGE
    with using_threads(threads):
        model = model_of(model or folder, device, allow_pickled=allow_pickled)
        halves = evaluate_halves(model, tested, workers=workers)
        found = run_page(
            model, tested, description, read_metrics(folder), halves, choice=read_choice(folder), workers=workers
        )
        write_result(page, run_html(found))
    return Report(page, score_rows(halves, model, everything=False), verdict_sentences(halves))
