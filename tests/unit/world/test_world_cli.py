"""`dear world` on the command line."""

import json
import sys

import pytest
from PIL import Image
from typer.testing import CliRunner

from dear.cli import app, main
from dear.world.clip import build, write_folder
from dear.world.score import score_table

RUN = CliRunner()

pytestmark = pytest.mark.xdist_group("world_cli")  # one untrained CLIP for all


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip")
    write_folder(build(0), folder)
    return folder


def test_help():
    for words in (["--help"], ["world", "--help"], ["world", "pretrain", "--help"]):
        result = RUN.invoke(app, words)
        assert result.exit_code == 0
        assert "world" in result.output.lower()


@pytest.mark.parametrize("what", ["object", "styles", "world-textures"])
def test_preview_writes_a_contact_sheet(tmp_path, what):
    out = tmp_path / "deep" / "sheet.png"
    result = RUN.invoke(app, ["world", "preview", "--what", what, "--out", str(out), "--zoom", "1"])
    assert result.exit_code == 0, result.output
    assert Image.open(out).size[0] > 200


def test_score_prints_tables_or_json(untrained):
    words = ["world", "score", "--clip", str(untrained), "--images", "20", "--per-class", "1", "--data", "world-places"]
    result = RUN.invoke(app, [*words, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found["attributes"]) == {"color", "shape", "texture", "object", "location"}
    assert found["datasets"]["world-places"]["images"] == 16
    assert "| world-places | 16 | 16 |" in score_table(found)
    assert "| location |" in RUN.invoke(app, words).stdout


def test_a_group_without_images_has_no_accuracy(untrained):
    """One image is in one of two groups, and the mean of the other one was NaN, which is not JSON."""
    words = ["world", "score", "--clip", str(untrained), "--images", "1", "--per-class", "1", "--data", "world-places"]
    result = RUN.invoke(app, [*words, "--json"])
    found = json.loads(result.stdout, parse_constant=pytest.fail)
    for row in found["attributes"].values():
        assert sorted(row[group] is None for group in ("seen", "unseen")) == [False, True]
    (line,) = [line for line in score_table(found).splitlines() if line.startswith("| color |")]
    assert line.count("| – ") == 1


def test_pretrain_stops_and_resumes(tmp_path):
    words = ["world", "pretrain", "--out", str(tmp_path / "run"), "--steps", "500"]
    result = RUN.invoke(app, [*words, "--stop-after", "1"])
    assert result.exit_code == 0, result.output
    assert "1 of 500 steps; resume with --resume" in result.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["preview", "--what", "nothing", "--out", "x.png"], "There is no sheet 'nothing'"),
        (["preview", "--out", "sheet"], "--out sheet is not a PNG file: use a name in .png."),
        (["preview", "--out", "sheet.html"], "--out sheet.html is not a PNG file: use a name in .png."),
        (["preview", "--out", "/dev/null/sheet.png"], "/dev/null/sheet.png cannot be written"),
        (["score", "--data", "world-nothing"], "There is no world data set 'world-nothing'"),
        (["pretrain", "--out", "x", "--steps", "0"], "--steps is 0: give a whole number from 1 on."),
    ],
)
def test_an_error_is_one_line(words, sentence, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dear", "world", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("dear: ")
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
