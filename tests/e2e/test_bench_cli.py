"""`dear bench` from end to end on a tiny CLIP, every bad input as one sentence, and the help of every command."""

import csv
import json
import signal
import subprocess
import sys
import time

import pytest

from dear.evaluation import cell_run
from dear.evaluation.defaults import default_data
from helpers import TINY_CONFIGS, heed_interrupts, make_photos
from needs import needs_posix

pytestmark = pytest.mark.usefixtures("loaded_once")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny CLIP and photos of four classes."""
    root = tmp_path_factory.mktemp("bench")
    (root / "clip").mkdir()
    (root / "clip" / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY_CONFIGS["shallow"]}))
    make_photos(root / "photos", ["ant", "bee", "cow", "dog"], 3)
    make_photos(root / "other", ["x", "y"], 3)
    return root


def bench(place, protocol, out, *more):
    words = ["--clip", f"local-dir:{place / 'clip'}", "--pretrained", "random", "--set", "mask=all_mixed"]
    words += ["--epochs", 1, "--shots", 1, "--workers", 1, "--threads", 1]
    data = [] if "--data" in more else ["--data", place / "photos"]
    return ["bench", protocol, "--out", out, *words, *data, *more]


def rows(out):
    with (out / "table.csv").open() as file:
        return list(csv.DictReader(file))


def test_base_to_novel(dear_, place, tmp_path):
    out = tmp_path / "grid"
    more = ["--seeds", "1,2", "--set", "beta=0.5,0.8"]
    code, stdout, stderr = dear_(*bench(place, "base-to-novel", out, *more))
    assert code == 0, stderr
    assert stdout.startswith("Base-to-novel, 1 shot, mean ± deviation over 2 seeds\ndata    method ")
    assert max(map(len, stdout.splitlines())) <= 80
    assert "| photos | dear, mask=all_mixed,beta=0.5 " in (out / "table.md").read_text()
    assert "[6/6] dear mask=all_mixed,beta=0.8, photos, seed 2, 1 shot: photos base" in stderr
    found = rows(out)
    assert [(row["method"], row["variant"], row["seed"]) for row in found][::2] == [
        ("dear", "mask=all_mixed,beta=0.5", "1"),
        ("dear", "mask=all_mixed,beta=0.8", "1"),
        ("zero_shot", "", "1"),
    ]
    assert all(row["data"] == "photos" and float(row["base"]) >= 0 for row in found)
    for path in (out / "cells").iterdir():
        cell = json.loads(path.read_text())
        assert {"versions", "backbone", "adapter_sha256", "fingerprint", "scores", "threads"} <= set(cell)
        assert {"accuracy", "per_class"} <= set(cell["scores"][0])

    code, _, stderr = dear_(*bench(place, "base-to-novel", out, *more))
    assert code == 2
    assert stderr == f"dear: {out} already contains a grid: add --resume to continue, or --overwrite to start over.\n"
    again = dear_(*bench(place, "base-to-novel", out, *more, "--resume"))
    assert again[:2] == (0, stdout)
    assert rows(out) == found


@pytest.mark.covers("T12")
def test_compare_continues_a_grid_of_bench(dear_, place, tmp_path):
    out, more = tmp_path / "grid", ["--seeds", "1,2", "--data", f"{place / 'photos'},{place / 'other'}"]
    code, _, stderr = dear_(*bench(place, "base-to-novel", out, *more, "--methods", "zero_shot,dear"))
    assert code == 0, stderr
    before = {path.name: path.read_bytes() for path in (out / "cells").iterdir()}
    words = bench(place, "base-to-novel", out, *more, "--methods", "zero_shot,coop,dear", "--set", "per_class=true")
    words = ["compare", *words[2:], "--recipe", "own", "--resume"]
    code, stdout, stderr = dear_(*words)
    assert code == 0, stderr
    assert stdout.startswith("These results are too few to recommend a method")
    first, second, halves, *cells, last, page = stderr.splitlines()
    assert first.startswith("coop per_class=true cannot be run: coop knows only the classes it was trained on")
    assert second == "8 cells of other methods will be run."
    assert halves.startswith("Methods are trained on the first half of the classes (base)")
    assert [line.partition("]")[0].partition(",")[0] for line in cells] == [f"[{done}/8" for done in range(1, 8)] + [
        "[8/8"
    ]
    assert last == "coop per_class=true could not be run, as reported above."
    assert {path.name: path.read_bytes() for path in (out / "cells").iterdir()} == before
    page = (out / "compare.html").read_bytes()
    assert b"Methods that could not be run" in page
    assert (out / "config.yaml").is_file()
    assert dear_(*words)[:2] == (0, stdout)
    assert (out / "compare.html").read_bytes() == page
    cells = [json.loads(one) for one in before.values()]
    assert all(one["peak_memory_mb"] is None or one["peak_memory_mb"] > 10 for one in cells)


@pytest.mark.covers("T1")
def test_a_changed_recipe_is_listed_and_survives_a_resume(dear_, place, tmp_path):
    out = tmp_path / "grid"
    words = ["compare", "--out", out, "--clip", f"local-dir:{place / 'clip'}", "--pretrained", "random", "--threads", 1]
    words += ["--data", place / "photos", "--methods", "clip_lora,coop", "--seeds", 1, "--shots", 1, "--workers", 1]
    words += ["--epochs", 1, "--lr", 1e-3, "--batch-size", 4]
    code, _, stderr = dear_(*words)
    assert code == 0, stderr
    page = (out / "compare.md").read_text().replace("\\", "")
    common = "but all with batch size 4 instead of 32, changed further where marked [a] and [b]; seed 1"
    assert f", 1 shot; each method by its own recipe (own), {common}" in page
    assert "trained with learning rate 1e-3 instead of 2e-4; 1 update instead of 500." in page
    assert "trained with learning rate 1e-3 instead of 2e-3; 1 epoch instead of 200." in page
    assert "- clip_lora: trained with learning rate 1e-3 instead of 2e-4;" in (out / "table.md").read_text()
    for path in (out / "cells").iterdir():
        cell = json.loads(path.read_text())
        assert cell["training"]["recipe"]["lr"] == 1e-3
        path.write_text(json.dumps({name: value for name, value in cell.items() if name != "training"}))
    assert dear_(*words, "--resume")[0] == 0
    assert (out / "compare.md").read_text().replace("\\", "") == page


def test_the_other_protocols(dear_, place, tmp_path):
    code, _, stderr = dear_(*bench(place, "few-shot", tmp_path / "few", "--shots", "1,2", "--seeds", 1))
    assert code == 0, stderr
    assert [row["shots"] for row in rows(tmp_path / "few")] == ["1", "2"] * 2
    both = ["--source", place / "photos", "--data", place / "other", "--methods", "dear", "--seeds", 1]
    for protocol in ("cross-dataset", "domain"):
        code, _, stderr = dear_(*bench(place, protocol, tmp_path / protocol, *both))
        assert code == 0, stderr
        (row,) = rows(tmp_path / protocol)
        assert row["data"] == "photos"
        assert {"source_photos", "target_other", "average"} <= set(row)


def test_default_data():
    shifted = ["imagenetv2", "imagenet_sketch", "imagenet_a", "imagenet_r"]
    assert default_data("domain", "imagenet", "imagenet") == shifted
    assert len(default_data("base-to-novel", "imagenet", None)) == 11
    assert len(default_data("few-shot", "imagenet", None)) == 11
    assert len(default_data("cross-dataset", "imagenet", "imagenet")) == 10
    assert not set(shifted) & set(default_data("few-shot", "imagenet", None))
    drawn = [f"world-broad-{name}" for name in ("v2", "sketch", "a", "r")]
    assert default_data("domain", "world-broad", "world-broad") == drawn
    assert len(default_data("base-to-novel", "world-broad", None)) == 11
    for protocol, source in (("few-shot", None), ("cross-dataset", "world-broad")):
        found = default_data(protocol, "world-broad", source)
        assert not set(drawn) & set(found)
        assert ("world-broad" in found) == (source is None)


def test_control_c_is_one_line(dear_, place, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cell_run, "evaluate_items", stop)
        code, stdout, stderr = dear_(*bench(place, "few-shot", tmp_path / "grid", "--seeds", 1))
    assert (code, stdout) == (130, "")
    assert stderr.strip() == "dear: stopped; what was saved so far is kept, resume with --resume."
    assert dear_(*bench(place, "few-shot", tmp_path / "grid", "--seeds", 1, "--resume"))[0] == 0


@pytest.mark.covers("T17")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_jobs(place, tmp_path, how):
    needs_posix()
    words = bench(place, "few-shot", tmp_path / "grid", "--seeds", "1,2", "--jobs", 2, "--methods", "dear")
    words[words.index("--epochs") + 1] = 100_000
    code = [sys.executable, "-c", "from dear.cli import main; main()", *map(str, words)]
    with subprocess.Popen(code, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts) as process:
        while process.poll() is None and not list((tmp_path / "grid").glob("runs/*/checkpoint.safetensors")):
            time.sleep(0.1)
        process.send_signal(how)
        _, stderr = process.communicate()
    assert process.returncode == 128 + how, stderr
    said = stderr.strip().splitlines()  # on a slow machine also how far it is, every 30 seconds
    assert said[-1] == "dear: stopped; what was saved so far is kept, resume with --resume."
    assert not any(word in stderr for word in ("Traceback", "resource_tracker", "Warning")), stderr


BAD = {
    "set": (["--set", "betta=1"], "None of the methods zero_shot, dear has a setting 'betta'. Did you mean 'beta'?"),
    "set what": (["--set", "beta="], "give NAME=V1,V2 once per name, as in beta=0.5,0.9."),
    "impossible": (["--set", "beta=7"], "beta is 7"),
    "seeds": (["--seeds", "1,x"], "--seeds is '1,x': give whole numbers from 0 on."),
    "no seeds": (["--seeds", ","], "--seeds is ',': give whole numbers from 0 on."),
    "shots": (["--shots", "0"], "--shots is '0': give whole numbers from 1 on."),
    "method": (["--methods", "deer"], "No method is called 'deer'. Did you mean 'dear'?"),
    "data": (["--data", "caltech-101"], "There is no data set 'caltech-101'"),
    "root": (["--data", "dtd"], "name it with --data-root FOLDER"),
    "absent": (["--data", "dtd", "--data-root", "ROOT"], "DTD is not in ROOT: put it in ROOT/dtd. Get dtd-r1.0.1"),
    "both": (["--resume", "--overwrite"], "choose one of them"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(dear_, place, tmp_path, name):
    words, sentence = BAD[name]
    words = [tmp_path if word == "ROOT" else word for word in words]
    code, stdout, stderr = dear_(*bench(place, "few-shot", tmp_path / "out", *words))
    assert (code, stdout) == (2, "")
    assert stderr.startswith("dear: ")
    assert stderr.count("\n") == 1
    assert sentence.replace("ROOT", str(tmp_path)) in stderr
    assert not (tmp_path / "out").exists()


def test_real_photographs(dear_, place, shared_data, tmp_path):
    """The real data set in its real layout, its split cut down to a few classes and images."""
    there, here = shared_data / "caltech-101", tmp_path / "root" / "caltech-101"
    here.mkdir(parents=True)
    (here / "101_ObjectCategories").symlink_to(there / "101_ObjectCategories")
    split = json.loads((there / "split_zhou_Caltech101.json").read_text())
    few = {part: [row for label in range(4) for row in [r for r in split[part] if r[1] == label][:3]] for part in split}
    (here / "split_zhou_Caltech101.json").write_text(json.dumps(few))
    words = ["--data", "caltech101", "--data-root", tmp_path / "root", "--seeds", 1]
    words = bench(place, "base-to-novel", tmp_path / "out", *words)
    words[words.index("--epochs") + 1] = 2
    code, stdout, stderr = dear_(*words)
    assert code == 0, stderr
    adapted, plain = rows(tmp_path / "out")
    assert (plain["method"], plain["steps"], plain["images"]) == ("zero_shot", "0", "12")
    assert (adapted["method"], adapted["steps"], adapted["unreadable"]) == ("dear", "2", "0")
    assert "caltech101" in stdout
    (run,) = (tmp_path / "out" / "runs").glob("dear-*")
    code, stdout, stderr = dear_("eval", run, "--half", "base")
    assert code == 0, stderr
    assert "\ncaltech101, base: 6 images, 2 classes " in stdout
