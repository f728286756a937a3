"""Prediction of any number of images: in order, in constant memory, stopped cleanly, with unreadable ones counted."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import dear
from dear.data.images import SUFFIXES, image_paths
from dear.errors import ConfigError, DearWarning, ImageError
from dear.model.predict import stream
from dear.progress import stages
from dear.workflows.predict import expanded


@pytest.fixture
def photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    for index in range(10):
        path = folder / f"part {index % 3}" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (25 * index, 100, 100)).save(path)
    return folder


@pytest.fixture
def run(model, tmp_path) -> Path:
    return model.save_pretrained(tmp_path / "run")


def test_a_walk_finds_what_a_sorted_list_has(photos):
    """The order decides fingerprints of folders, so it must not change."""
    for name in ("a.jpg/in.png", "a/z.png", "a.png", "B/.hidden.png", ".dot/x.png", "b/deep/er/y.PNG", "notes.txt"):
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).write_bytes(b"")
    (photos / "linked").symlink_to(photos / "a", target_is_directory=True)
    (photos / "linked.png").symlink_to(photos / "a", target_is_directory=True)
    plain = [p for p in photos.rglob("*") if p.suffix.lower() in SUFFIXES and p.name[0] != "." and not p.is_dir()]
    expected = sorted(plain, key=lambda path: path.relative_to(photos).parts)
    assert list(image_paths(photos)) == expected
    assert len(expected) == 15


def test_a_generator_is_read_two_batches_ahead_and_no_more(model):
    asked = []

    def endless():
        while True:
            asked.append(len(asked))
            yield Image.new("RGB", (8, 8))

    found = dear.predict_each(model, endless(), batch_size=4)
    for expected in (8, 8, 8, 8, 12):
        next(found)
        assert len(asked) == expected
    found.close()


def test_each_is_what_predict_returns(model, photos):
    paths = sorted(photos.rglob("*.png"))
    assert list(dear.predict_each(model, photos, batch_size=3)) == dear.predict(model, photos, batch_size=3)
    by_model = model.predict(paths, top_k=3, batch_size=3)
    assert dear.predict(model, (path for path in paths), batch_size=3) == by_model
    assert [one.image for one in by_model] == [str(path) for path in paths]
    assert expanded([photos, paths[0]]).total == 11


def test_options_are_refused_before_the_first_image(model, photos, tmp_path):
    (tmp_path / "taken.csv").write_text("")
    for options, sentence in (
        ({"top_k": 0}, "top_k is 0"),
        ({"out": tmp_path / "taken.csv"}, "exists already"),
        ({"bach_size": 3}, "There is no option bach_size. Did you mean 'batch_size'?"),
        ({"on_error": "stop"}, "can be 'raise' or 'skip'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            dear.predict_each(model, photos, **options)
    with pytest.raises(ConfigError, match="link says how"):
        dear.predict(model, photos, link=True)


def test_progress_is_heard_and_not_set_for_the_caller(model, photos):
    heard = []
    found = dear.predict_each(model, photos, batch_size=4, progress=lambda done, total: heard.append((done, total)))
    for _ in found:
        assert stages.is_unheard()
    assert heard == [(4, 10), (8, 10), (10, 10)]


def test_unreadable_images_are_skipped_and_counted(model, photos):
    (photos / "part 0" / "bad.png").write_bytes(b"x")
    (photos / "part 1" / "bad.png").write_bytes(b"")
    with pytest.raises(ImageError, match=r"bad\.png cannot be read"):
        dear.predict(model, photos)
    with pytest.warns(DearWarning, match="2 images are left out, the first: .*bad"):
        assert len(dear.predict(model, photos, on_error="skip")) == 10
    kinds = [type(one) for one in stream(model, expanded(photos))]
    assert kinds.count(ImageError) == 2
    assert kinds.index(ImageError) == 4  # in its place


def test_a_table_has_a_row_per_image_and_is_written_at_the_end(model, photos, tmp_path):
    out = tmp_path / "labels.csv"
    found = dear.predict_each(model, photos, top_k=2, out=out, batch_size=4)
    first = next(found)
    assert not out.exists()
    rest = list(found)
    rows = list(csv.reader(out.open()))
    assert rows[0] == ["image", "label", "probability", "label_2", "probability_2"]
    assert rows[1][:2] == [first.image, first.label]
    assert len(rows) == 2 + len(rest)
    stopped = dear.predict_each(model, photos, out=tmp_path / "never.csv")
    next(stopped)
    stopped.close()
    assert not (tmp_path / "never.csv").exists()


def test_the_command_counts_what_it_could_not_read(dear_, one_clip, run, photos):
    (photos / "bad.png").write_bytes(b"x")
    code, out, err = dear_("predict", run, photos, "--json")
    assert code == 1
    assert len([json.loads(line) for line in out.splitlines()]) == 10
    assert "1 of 11 images could not be read." in err


COMMAND = """
import signal, sys, dear, dear.cli
from dear.backbone.load import clips_from
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background of a shell ignore it
clip = dear.load_clip(sys.argv.pop(1), "random", seed=7)
with clips_from(lambda *_, **__: clip):
    dear.cli.main()
"""


@pytest.fixture
def long_command(run, clip, photos):
    """A command that classifies 3,000 images; its output is read by the test."""
    many = [str(path) for path in sorted(photos.rglob("*.png"))] * 300
    command = [sys.executable, "-c", COMMAND, clip.name, "predict", str(run), *many, "--json", "--batch-size", "8"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=environment) as process:
        assert json.loads(process.stdout.readline())["label"] in ("cat", "dog", "hot air balloon")
        assert process.poll() is None, "a line comes before all images are done"
        yield process


def test_a_closed_pipe_is_silent(long_command):
    """The reader goes away after one line, as `head -1` does: no traceback, no sentence, no endless work."""
    long_command.stdout.close()
    assert long_command.stderr.read() == ""
    assert long_command.wait() == 1


def test_ctrl_c_is_one_sentence_and_leaves_whole_lines(long_command):
    long_command.send_signal(signal.SIGINT)
    out, err = long_command.communicate()
    assert all(json.loads(line)["label"] for line in out.splitlines())
    assert err.strip() == "dear: stopped; what was saved so far is kept, give the same command again."
    assert long_command.returncode == 130
