"""The report of a run: everything on one page, nothing from elsewhere."""

import re
from dataclasses import replace

import pytest
import torch

from dear.data.open import open_dataset
from dear.data.splits import few_shot
from dear.engine.job import describe, make_job
from dear.errors import ImageError
from dear.evaluation.evaluate import Evaluation
from dear.evaluation.results import Scores
from dear.evaluation.test_data import TestData
from dear.reports.colors import ATTRIBUTES, ROLES, UNKNOWN, contrast, heat_fill, ink_on
from dear.reports.glossary import GLOSSARY, anchor, terms_in
from dear.reports.line_charts import line_chart, spread_labels
from dear.reports.run_page import Confusion, RunPage, curves_chart, run_html
from dear.reports.run_pictures import Answers, confused, corrections, corrections_note
from dear.reports.svg import round_step, tick_labels
from dear.workflows.report_data import _searches, confusion, evaluate_halves, run_page, score_rows
from helpers import build


@pytest.fixture
def small_world():
    whole = open_dataset("world-textures")
    few = [item for item in whole.test if int(item.id.rsplit("/", 1)[1]) < 2]
    return replace(whole, test=tuple(few))


@pytest.mark.covers("F7")
@pytest.mark.parametrize("half", ["base", "all"])
def test_everything_is_on_the_page(clip, roles, small_world, half):
    job = make_job(small_world, shots=1, seed=1, half=half, config={"roles": roles})
    model = job.build(clip)
    told = describe(job, model)
    data = TestData(small_world, few_shot(small_world.train, 1, 1), told)
    halves = evaluate_halves(model, data)
    metrics = [{"step": i, "total": 2.0 / i, "ce": 1.0 / i, "weight_cls": 0.7, "weight_color": 0.1} for i in (1, 2, 3)]
    html = run_html(run_page(model, data, told, metrics, halves))
    first, folded = html.split('<details class="experts">')
    folded, _, last = folded.partition("</div></details>")
    assert re.findall(r"<h2>(.*?)</h2>", first) == [
        "What the adapter changes",
        "Which classes are confused",
        "How well each class is named",
        "Examples",
        "Why: examples explained",
    ]
    assert re.findall(r"<h[23]>(.*?)</h[23]>", folded) == [
        "For experts",
        "Scores",
        "Learned weights",
        "Training",
        "Confusion",
        "Roles of the adapted layers",
        "Settings",
    ]  # no search by each feature: those of tokens by the paper's mask are nearly the same
    assert re.findall(r"<h2>(.*?)</h2>", last) == ["Glossary"]
    assert first.count('class="says lead"') == len(halves)
    assert re.search(r"named correctly, .*; plain CLIP", first)
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    assert "The parts sum to" in html
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


@pytest.mark.parametrize("readable", [0, 1])
def test_a_page_of_images_that_cannot_be_read(clip, roles, small_world, readable):
    left = {item.id for item in small_world.test[:readable]}

    def damaged(item_id):
        if item_id in left:
            return small_world.open(item_id)
        raise ImageError(f"{item_id} cannot be read.")

    world = replace(small_world, open=damaged)
    job = make_job(world, shots=1, seed=1, config={"roles": roles})
    model = job.build(clip)
    data = TestData(world, (), describe(job, model))
    page = run_page(model, data, describe(job, model), [], evaluate_halves(model, data))
    assert page.nearest == []
    assert "Scores" in run_html(page)


def test_confusion_counts_unreadable_images_as_nothing():
    truth, picks = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, -1])
    found = confusion(truth, picks)
    assert Confusion(("a", "b"), found).rows == [[50.0, 50.0], [0.0, 50.0]]


def test_a_page_leaves_out_what_there_is_none_of():
    html = run_html(RunPage("a run", "", [["top-1"], ["plain CLIP"]], {"seed": "1"}))
    assert re.findall(r"<h[23]>(.*?)</h[23]>", html) == ["For experts", "Scores", "Settings", "Glossary"]


@pytest.mark.covers("F16")
def test_a_curve_of_one_point_is_not_drawn():
    def drawn(points):
        page = RunPage("a run", "", [["top-1"], ["plain CLIP"]], {}, curves={"loss": {"total": points}})
        return "<svg" in run_html(page)

    assert drawn([1.0, 0.5])
    assert not drawn([1.0])
    assert not drawn([])


def a_test(small_world, picks, plain):
    """Answers to the first images: the number of the picked class, as the adapter and plain CLIP give them."""
    items = small_world.test[: len(picks)]
    labels = torch.tensor([item.label for item in items])
    confidence = torch.linspace(0.9, 0.1, len(picks))
    scores = Scores(data="x", half="all", images=len(picks), unreadable=0, accuracy={"logits": 50.0}, per_class={})
    found = Evaluation(
        scores, torch.tensor(picks), confidence, {}, labels=labels, plain_picks=torch.tensor(plain), readout="logits"
    )
    return Answers(small_world, items, small_world.class_names, found)


@pytest.mark.covers("F7")
def test_what_is_corrected_and_confused_comes_with_pictures(small_world):
    assert [item.label for item in small_world.test[:6]] == [0, 0, 1, 1, 2, 2]
    answers = a_test(small_world, picks=[0, 0, 2, 2, 2, -1], plain=[1, 0, 1, 0, 1, 2])
    names = small_world.class_names
    strips = corrections(answers)
    assert [one.caption for one in strips["Corrected"]] == [
        f"{names[0]} (plain CLIP: {names[1]})",
        f"{names[2]} (plain CLIP: {names[1]})",
    ]
    assert [one.caption for one in strips["New mistakes"]] == [f"{names[2]} (is {names[1]})"]
    assert corrections_note(answers) == (
        "The adapter corrects 2 of plain CLIP's 3 mistakes and makes 2 new ones."  # one of them cannot be read
    )
    (pair,) = confused(answers)
    assert (pair.is_, pair.taken_for, pair.says) == (names[1], names[2], "2 of 2 images (100 %)")
    assert [one.caption for one in pair.pictures] == [
        f"{names[1]}, taken for {names[2]}",
        f"{names[2]}, named correctly",
    ]


def test_strips_show_every_class_before_one_twice(small_world):
    answers = a_test(small_world, picks=[1] * 6, plain=[0] * 6)
    assert [answers.items[i].label for i in answers.varied(range(6))] == [0, 1, 2, 0, 1, 2]


def test_the_glossary_explains_what_a_page_says():
    found = terms_in(
        "plain CLIP 82 %, ± 6 points; dear, decoupled; 16 training images per class, seed 1; harmonic mean"
    )
    assert {"plain CLIP", "± points", "decoupled", "class", "seed", "harmonic mean"} <= set(found)
    assert "epoch" not in found
    assert len({anchor(term) for term in GLOSSARY}) == len(GLOSSARY)
    assert all(meaning.endswith(".") for meaning in GLOSSARY.values())


def test_curves_of_many_steps_are_thinned_and_named_by_round_steps():
    chart = curves_chart("loss", {"total": [1.0] * 1537, "late": [0.5] * 100, "empty": []})
    assert "total 1" in chart
    assert "empty" not in chart
    assert all(label in chart for label in (">500<", ">1000<", ">1500<"))
    assert chart.count(",") < 1000
    assert "<circle" in curves_chart("loss", {"total": [1.0]})


def test_round_steps():
    assert [round_step(least) for least in (0.2, 1, 1.5, 3, 6, 11, 201)] == [1, 1, 2, 5, 10, 20, 500]
    assert spread_labels(["1", "2", "4"], 100) == [0, 1, 2]
    assert spread_labels([str(i) for i in range(1, 101)], 300) == [9, 19, 29, 39, 49, 59, 69, 79, 89, 99]


@pytest.mark.covers("F23")
def test_ticks_are_told_exactly_and_stand_clear_of_the_title():
    assert tick_labels([78.25, 78.5, 78.75]) == ["78.25", "78.50", "78.75"]
    assert tick_labels([77.5, 80.0, 82.5]) == ["77.5", "80.0", "82.5"]
    assert tick_labels([0, 20, 40]) == ["0", "20", "40"]
    chart = line_chart("x", ["1", "2"], {"a": [78.3, 78.7]}, x_title="shots", y_title="accuracy")
    ends = {float(x): label for x, label in re.findall(r'<text x="([\d.]+)"[^>]*anchor="end"[^>]*>([\d.]+)<', chart)}
    assert all(x - 6 * len(label) > 18 for x, label in ends.items())


@pytest.mark.covers("F23")
def test_every_colour_can_be_read_on():
    fills = [*ATTRIBUTES.values(), *ROLES.values(), UNKNOWN, *(heat_fill(i / 20) for i in range(-1, 22))]
    assert min(contrast(fill, ink_on(fill)) for fill in fills) >= 4.5
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
