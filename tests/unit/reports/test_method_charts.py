"""Charts that compare methods: labels beside each other, intervals only where there are several results."""

import random
import re

import pytest

from cells import SETS, some_cells
from dear.reports.compare_data import make_comparison
from dear.reports.compare_page import page
from dear.reports.method_charts import NAMED, Mark, Point, interval_chart, scatter_chart
from dear.reports.svg import LETTER

LABEL = re.compile(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="start" fill="#1d2630">([^<]+)</text>')


def label_boxes(chart):
    found = [(float(x), float(y), text) for x, y, text in LABEL.findall(chart)]
    return {text: (x, y - 10, x + LETTER * len(text), y + 2) for x, y, text in found}


def overlaps(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@pytest.mark.covers("T17")
@pytest.mark.parametrize("count", [5, NAMED, 29])
def test_labels_do_not_cover_labels_or_dots(count):
    chance = random.Random(1)
    points = [
        Point(f"method_{place}", str(place), 40 * chance.uniform(1, 1.4), 60 + 5 * chance.random())
        for place in range(count)
    ]
    chart = scatter_chart("HM", points, x_title="seconds", y_title="HM")
    boxes = label_boxes(chart)
    assert len(boxes) == count
    dots = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', chart)]
    shapes = [*boxes.values(), *((x - 4, y - 4, x + 4, y + 4) for x, y in dots)]
    for box in boxes.values():
        assert sum(overlaps(box, other) for other in shapes) == 1, "only itself"
    assert chart == scatter_chart("HM", points, x_title="seconds", y_title="HM")


@pytest.mark.covers("T17")
def test_points_of_equal_cost_and_value_have_labels_of_their_own():
    points = [Point(name, "1", 48.7, 26.3) for name in ("zero_shot", "coop", "clip_adapter")]
    boxes = list(label_boxes(scatter_chart("HM", points, x_title="x", y_title="y")).values())
    assert not any(overlaps(one, other) for one in boxes for other in boxes if one is not other)


@pytest.mark.parametrize("letters", [4, 31, 80])
def test_an_interval_chart_has_room_beside_its_labels(letters):
    """Labels of more than 61 letters were wider than the chart, which was then mirrored."""
    marks = [Mark("x" * letters, -2.0, -3.0, -1.0, False), Mark("y", 0.0, 0.0, 0.0, True)]
    chart = interval_chart("HM", marks, x_title="points")
    low, high = map(float, re.search(r'<line x1="([\d.]+)" y1="[\d.]+" x2="([\d.]+)"[^>]+stroke-width', chart).groups())
    assert 15.9 + LETTER * letters < low < high < int(re.search(r'width="(\d+)"', chart)[1])


@pytest.mark.covers("T17")
def test_one_result_has_no_interval():
    alone = page(make_comparison(some_cells(seeds=(1,), sets=SETS[:1]), {}))
    assert "interval" not in alone
    assert "on the 1 result," in alone
    assert "95 % interval" in page(make_comparison(some_cells(seeds=(1, 2), sets=SETS[:1]), {}))
