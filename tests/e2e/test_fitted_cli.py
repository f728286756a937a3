"""Commands with methods that are fitted without training steps: what is told, and what to type next."""

import json
import shlex

import pytest

from helpers import TINY_CONFIGS, make_photos

pytestmark = pytest.mark.usefixtures("loaded_once")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny CLIP, and photos of four classes."""
    root = tmp_path_factory.mktemp("fitted")
    (root / "clip").mkdir()
    (root / "clip" / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY_CONFIGS["shallow"]}))
    make_photos(root / "photos", ["ant", "bee", "cow", "dog"], 4)
    return root


def words(place, method, out, *more):
    clip = ["--clip", f"local-dir:{place / 'clip'}", "--pretrained", "random", "--workers", 1]
    return ["train", place / "photos", "--method", method, "--out", out, "--shots", 2, *clip, *more]


def test_options_of_steps_are_said_to_change_nothing(dear_, place, tmp_path):
    code, _, told = dear_(*words(place, "tip_adapter", tmp_path / "run", "--epochs", 3, "--lr", 0.5))
    assert code == 0
    assert "note: tip_adapter is fitted without training steps: --epochs 3 --lr 0.5 changes nothing." in told


def test_next_commands_of_a_half_can_be_typed(dear_, place, tmp_path):
    code, out, _ = dear_(*words(place, "linear_probe", tmp_path / "run", "--half", "base"))
    assert code == 0
    typed = [shlex.split(line, comments=True)[1:] for line in out.splitlines() if line.startswith("  dear ")]
    assert {"eval", "report", "predict"} == {line[0] for line in typed}
    for line in typed:
        assert dear_(*line)[0] == 0, line
    code, _, told = dear_("eval", tmp_path / "run")
    assert code == 2
    assert "leave out the others, or test the half that was trained, such as --half base." in told


def test_unreadable_photos_are_named(dear_, place, tmp_path):
    photos = make_photos(tmp_path / "photos", ["ant", "bee", "cow"], 2)
    for number in (0, 1):
        (photos / "bee" / f"{number}.png").write_bytes(b"no image")
    typed = words(place, "ape", tmp_path / "run", "--set", "passes=2")
    typed[1] = photos
    code, _, told = dear_(*typed)
    assert code == 0
    assert "bee/0.png" in told
    assert "None of the images of 'bee' can be read: nothing is learned of it." in told
