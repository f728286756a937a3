"""The report of a run: everything on one page, nothing from elsewhere."""

import re

import pytest
import torch

from dear.data.splits import few_shot
from dear.datasets import open_dataset
from dear.engine.job import describe, make_job
from dear.evaluation.tested import TestData
from dear.reports.charts import line_chart, round_step, spread_places, tick_labels
from dear.reports.colors import ATTRIBUTES, ROLES, UNKNOWN, contrast, heat_fill, ink_on
from dear.reports.run_data import _searches, confusion, evaluate_halves, run_page, score_rows
from dear.reports.run_page import Confusion, RunPage, curves_chart, run_html
from helpers import build


@pytest.fixture
def small_world():
    from dataclasses import replace

    whole = open_dataset("world-textures")
    few = [item for item in whole.test if int(item.id.rsplit("/", 1)[1]) < 2]
    return replace(whole, test=tuple(few))


@pytest.mark.parametrize("half", ["base", "all"])
def test_everything_is_on_the_page(clip, roles, small_world, half):
    job = make_job(small_world, shots=1, seed=1, half=half, config={"roles": roles})
    model = job.build(clip)
    told = describe(job, model)
    data = TestData(small_world, few_shot(small_world.train, 1, 1), told)
    halves = evaluate_halves(model, data)
    metrics = [{"step": i, "total": 2.0 / i, "ce": 1.0 / i, "weight_cls": 0.7, "weight_color": 0.1} for i in (1, 2, 3)]
    html = run_html(run_page(model, data, told, metrics, halves))
    titles = re.findall(r"<h2>(.*?)</h2>", html)
    assert titles == [
        "Scores",
        "Learned weights",
        "Training",
        "Examples",
        "Confusion",
        "Roles of the adapted layers",
        "Settings",
    ]  # no search by each feature: those of tokens by the paper's mask are nearly the same
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    rows = score_rows(halves, model)
    assert [len(row) for row in rows] == [4 if half == "base" else 2] * 4
    assert html == run_html(run_page(model, data, told, metrics, halves))


@pytest.mark.covers("F2")
def test_searches_are_shown_by_features_that_differ(clip, roles, small_world):
    gains = build("role_gains", clip, small_world.class_names, roles=roles, mask="roles")
    tokens = build("dear", clip, small_world.class_names, roles=roles, mask="roles")
    items = small_world.test[:12]
    found = _searches(gains, small_world, items, 1)
    assert len(found) == 2
    assert {"cls", "color", "shape"} <= found[0].found.keys()
    assert _searches(tokens, small_world, items, 1) == []


def test_confusion_counts_unreadable_images_as_nothing():
    truth, picks = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, -1])
    found = confusion(truth, picks)
    assert Confusion(("a", "b"), found).rows == [[50.0, 50.0], [0.0, 50.0]]


def test_a_page_leaves_out_what_there_is_none_of():
    html = run_html(RunPage("a run", "", [["top-1"], ["plain CLIP"]], {"seed": "1"}))
    assert re.findall(r"<h2>(.*?)</h2>", html) == ["Scores", "Settings"]


def test_curves_of_many_steps_are_thinned_and_named_by_round_steps():
    chart = curves_chart("loss", {"total": [1.0] * 1537, "late": [0.5] * 100, "empty": []})
    assert "total 1" in chart
    assert "empty" not in chart
    assert all(label in chart for label in (">500<", ">1000<", ">1500<"))
    assert chart.count(",") < 1000
    assert "<circle" in curves_chart("loss", {"total": [1.0]})


def test_round_steps():
    assert [round_step(least) for least in (0.2, 1, 1.5, 3, 6, 11, 201)] == [1, 1, 2, 5, 10, 20, 500]
    assert spread_places(["1", "2", "4"], 100) == [0, 1, 2]
    assert spread_places([str(i) for i in range(1, 101)], 300) == [9, 19, 29, 39, 49, 59, 69, 79, 89, 99]


def test_ticks_are_told_exactly_and_stand_clear_of_the_title():
    assert tick_labels([78.25, 78.5, 78.75]) == ["78.25", "78.50", "78.75"]
    assert tick_labels([77.5, 80.0, 82.5]) == ["77.5", "80.0", "82.5"]
    assert tick_labels([0, 20, 40]) == ["0", "20", "40"]
    chart = line_chart("x", ["1", "2"], {"a": [78.3, 78.7]}, x_title="shots", y_title="accuracy")
    ends = {float(x): label for x, label in re.findall(r'<text x="([\d.]+)"[^>]*anchor="end"[^>]*>([\d.]+)<', chart)}
    assert all(x - 6 * len(label) > 18 for x, label in ends.items())


def test_every_colour_can_be_read_on():
    fills = [*ATTRIBUTES.values(), *ROLES.values(), UNKNOWN, *(heat_fill(i / 20) for i in range(-1, 22))]
    assert min(contrast(fill, ink_on(fill)) for fill in fills) >= 4.5
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
