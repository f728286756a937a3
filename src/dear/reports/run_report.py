"""The report of a run as one HTML file: what `run_data` gathers, drawn by `run_page`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dear.data.dataset import Dataset
from dear.methods.base import Method
from dear.reports.run_data import HalfScores, evaluate_halves, run_page, score_rows
from dear.reports.run_page import run_html

__all__ = ["HalfScores", "evaluate_halves", "run_report", "score_rows"]


def run_report(
    model: Method,
    dataset: Dataset,
    description: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    halves: Sequence[HalfScores],
    *,
    workers: int = 2,
) -> str:
    """The page as text. `description` is the run's, `halves` come from `evaluate_halves`."""
    return run_html(run_page(model, dataset, description, metrics, halves, workers=workers))
