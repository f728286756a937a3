"""What `--method auto` knows of methods before it sees a photo comes from our own tables, as a script computes it."""

import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ("expected_gains", "documented_numbers", "auto_regret")


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import expected_gains

    yield expected_gains
    sys.path.remove(str(ROOT / "benchmarks"))
    for name in SCRIPTS:
        sys.modules.pop(name, None)


def test_stored_gains_are_those_of_the_tables(script):
    written = script.expected().model_dump_json(indent=1) + "\n"
    assert script.FILE.read_text() == written, "run python benchmarks/expected_gains.py --write"


def test_gain_is_a_mean_difference_of_log_odds(script):
    table = {
        "one": {"zero_shot": (50.0, 60.0), "dear": (73.1, 60.0)},
        "two": {"zero_shot": (50.0, 60.0), "dear": (50.0, 60.0)},
    }
    learned, novel = script.gains_on(table)["dear"]
    assert learned == pytest.approx(0.5, abs=0.02), "log(73.1 / 26.9) is 1"
    assert novel == 0
    assert script.gains_on(table)["zero_shot"] == (0, 0)
    assert math.isfinite(script.log_odds(100.0))
    assert math.isfinite(script.log_odds(0.0))


def test_spread_is_zero_if_every_set_gains_the_same_and_not_otherwise(script):
    rows = {"zero_shot": (50.0, 60.0), "dear": (70.0, 60.0)}
    assert script.spread({"one": rows, "two": rows}) == pytest.approx(0, abs=0.3)
    other = {**rows, "dear": (50.0, 60.0)}
    assert script.spread({"one": rows, "two": other}) > 5


def test_what_is_known_about_a_data_set_leaves_that_set_out(script):
    everything, without = script.expected(), script.expected(without="world-emblems")
    assert everything.gains["dear"] != without.gains["dear"]
    photographs = script.expected(without="caltech101").gains["gda"].learned
    assert photographs < everything.gains["gda"].learned, "photographs gain more than the world does"
