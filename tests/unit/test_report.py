"""The report of a run: everything on one page, nothing from elsewhere."""

import re

import pytest
import torch

from dear.data.splits import few_shot
from dear.datasets import open_dataset
from dear.engine.fit import make_job
from dear.engine.run import describe
from dear.reports.html import curves, heat_map
from dear.reports.run_report import confusion, evaluate_halves, run_report, score_rows


@pytest.fixture
def small_world():
    from dataclasses import replace

    whole = open_dataset("world-textures")
    few = [item for item in whole.test if int(item.id.rsplit("/", 1)[1]) < 2]
    return replace(whole, test=tuple(few))


@pytest.mark.parametrize("half", ["base", "all"])
def test_everything_is_on_the_page(clip, roles, small_world, half):
    job = make_job(small_world, shots=1, seed=1, half=half, choices={"roles": roles})
    model = job.build(clip)
    drawn = few_shot(small_world.train, 1, 1)
    halves = evaluate_halves(model, small_world, describe(job, model), drawn)
    metrics = [{"step": i, "total": 2.0 / i, "ce": 1.0 / i, "alpha_0": 0.7, "alpha_1": 0.1} for i in (1, 2, 3)]
    html = run_report(model, small_world, describe(job, model), metrics, halves)
    titles = re.findall(r"<h2>(.*?)</h2>", html)
    assert titles == [
        "Scores",
        "Fusion weights",
        "Training",
        "Examples",
        "Confusion",
        "Roles of the adapted layers",
        "Nearest images by each feature",
        "Setting",
    ]
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    rows = score_rows(halves, "dear")
    assert [len(row) for row in rows] == [4 if half == "base" else 2] * 4
    assert html == run_report(model, small_world, describe(job, model), metrics, halves)


def test_confusion_counts_unreadable_images_as_nothing():
    truth, picks = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, -1])
    assert confusion(truth, picks, 2) == [[50.0, 50.0], [0.0, 50.0]]


def test_parts_escape_what_people_write():
    assert "<script>" not in heat_map(["<script>"], ["<b>"], [[1.0]])
    assert "<script>" not in curves("<script>", {"<script>": [1.0, 2.0]})
    assert curves("empty", {}) == ""
