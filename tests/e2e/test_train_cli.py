"""`dear train`, `dear eval` and `dear predict` from end to end on a tiny CLIP, and every bad input as one sentence."""

import errno
import json
import re
import shlex
import shutil
import sys

import pytest
from PIL import Image

import dear
import dear.storage.files
from bad_commands import BAD
from dear.cli import main
from dear.errors import ConfigError
from dear.workflows import train as train_module
from helpers import TINY_CONFIGS, make_photos

CLASSES = ["ant", "bee", "cow", "dog"]

pytestmark = [pytest.mark.xdist_group("train"), pytest.mark.usefixtures("loaded_once")]  # one run for all


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny CLIP and photos of four classes."""
    root = tmp_path_factory.mktemp("train")
    (root / "clip").mkdir()
    (root / "clip" / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY_CONFIGS["shallow"]}))
    make_photos(root / "photos", CLASSES, 4)
    return root


def train(place, data, out, *more):
    words = ["--clip", f"local-dir:{place / 'clip'}", "--pretrained", "random", "--set", "mask=all_mixed"]
    words += ["--epochs", 2, "--batch-size", 4, "--shots", 2, "--workers", 1]
    return ["train", data, "--out", out, *words, *more]


@pytest.fixture(scope="module")
def made(place):
    """A run, made once; tests must not change it."""
    folder = place / "made"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", list(map(str, ["dear", *train(place, place / "photos", folder)])))
        with pytest.raises(SystemExit) as stop:
            main()
    assert stop.value.code == 0
    return folder


def test_train_writes_a_run(dear_, place, tmp_path):
    out = tmp_path / "run"
    code, stdout, stderr = dear_(*train(place, place / "photos", out))
    assert code == 0, stderr
    assert re.match(rf"done: {re.escape(str(out))} \(\d+ kB; dear, 4 steps\)\nnext:\n  dear eval ", stdout)
    assert stderr == ""
    names = {path.name for path in out.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "run.json", "shots.json", "metrics.jsonl"} <= names
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 4
    adapter = (out / "adapter_model.safetensors").read_bytes()

    code, stdout, stderr = dear_(*train(place, place / "photos", out))
    assert (code, stdout) == (2, "")
    assert stderr == f"dear: {out} already contains a run: add --resume to continue, or --overwrite to start over.\n"
    for how in ("--resume", "--overwrite"):
        assert dear_(*train(place, place / "photos", out, how))[0] == 0
        assert (out / "adapter_model.safetensors").read_bytes() == adapter
    code, _, stderr = dear_(*train(place, place / "photos", out, "--resume", "--seed", 2))
    assert code == 2
    assert "was begun with other settings" in stderr
    assert "seed" in stderr


def test_a_moved_folder_still_resumes(dear_, place, tmp_path):
    shutil.copytree(place / "photos", tmp_path / "a" / "photos")
    assert dear_(*train(place, tmp_path / "a" / "photos", tmp_path / "run"))[0] == 0
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert dear_(*train(place, tmp_path / "b" / "photos", tmp_path / "run", "--resume"))[0] == 0


@pytest.mark.covers("F6")
def test_train_ends_with_commands_that_work_as_typed(dear_, place, tmp_path, monkeypatch):
    shutil.copytree(place / "photos", tmp_path / "my photos")
    monkeypatch.chdir(tmp_path)
    code, stdout, stderr = dear_(*train(place, "my photos", "runs/a run"))
    assert code == 0, stderr
    lines = [shlex.split(line, comments=True) for line in stdout.partition("next:\n")[2].splitlines()]
    assert [words[:3] for words in lines] == [["dear", verb, "runs/a run"] for verb in ("eval", "report", "predict")]
    for _, *words in lines:
        code, printed, stderr = dear_(*words)
        assert code == 0, stderr
        assert printed


def test_train_on_all_images_offers_no_test(dear_, place, tmp_path):
    words = train(place, place / "photos", tmp_path / "run", "--shots", 4, "--test-share", 0)
    code, stdout, stderr = dear_(*words)
    assert code == 0
    assert "note: 4 class(es) have no image left for the test, such as 'ant' with 4: use fewer shots" in stderr
    assert "All images were trained on, so none is left to test it with." in stdout
    assert f"dear eval {tmp_path / 'run'} DATA" in stdout
    assert f"dear predict {tmp_path / 'run'} IMAGE" in stdout
    for verb in ("eval", "report"):
        code, _, stderr = dear_(verb, tmp_path / "run")
        assert code == 2
        assert "all were used for training: train with at least 4 images per class and without --test-share 0" in stderr


def stop_after(monkeypatch, steps, error):
    """Make the training stop as if someone had stopped it."""
    original = train_module.train_model

    def train_model(*args, on_step, **more):
        def step(metrics):
            on_step(metrics)
            if metrics["step"] == steps:
                raise error

        return original(*args, on_step=step, **more)

    monkeypatch.setattr(train_module, "train_model", train_model)


def test_control_c_is_one_line_and_resumes(dear_, place, made, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 3, KeyboardInterrupt())
        code, stdout, stderr = dear_(*train(place, place / "photos", tmp_path / "run"))
    assert (code, stdout) == (130, "")
    assert stderr.strip() == "dear: stopped; what was saved so far is kept, resume with --resume."
    assert dear_(*train(place, place / "photos", tmp_path / "run", "--resume"))[0] == 0
    adapters = [(folder / "adapter_model.safetensors").read_bytes() for folder in (tmp_path / "run", made)]
    assert adapters[0] == adapters[1]


def test_control_c_before_the_first_checkpoint_keeps_nothing(dear_, place, made, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 1, KeyboardInterrupt())
        code, _, stderr = dear_(*train(place, place / "photos", tmp_path / "run"))
    assert code == 130
    assert not list((tmp_path / "run").glob("*.safetensors"))
    assert stderr.strip() == "dear: stopped; nothing was saved yet, start over with --resume."
    assert dear_(*train(place, place / "photos", tmp_path / "run", "--resume"))[0] == 0
    adapters = [(folder / "adapter_model.safetensors").read_bytes() for folder in (tmp_path / "run", made)]
    assert adapters[0] == adapters[1]


def test_control_c_names_resume_only_where_there_is_one(dear_, place, made, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dear.workflows.predict.stream", stop)
    code, _, stderr = dear_("predict", made, place / "photos" / "ant" / "0.png")
    assert code == 130
    assert stderr.strip() == "dear: stopped; what was saved so far is kept, give the same command again."


def test_a_full_disk_is_one_line(dear_, place, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(dear.storage.files.os, "fsync", full)
        code, stdout, stderr = dear_(*train(place, place / "photos", out))
    assert (code, stdout) == (2, "")
    assert stderr.count("\n") == 1
    assert str(out) in stderr
    assert "No space left on device" in stderr
    assert "--resume" in stderr
    assert not [path for path in out.iterdir() if path.match(".*.tmp")]
    assert dear_(*train(place, place / "photos", out, "--resume"))[0] == 0


def test_bad_images_and_few_images_are_told(dear_, place, tmp_path):
    photos = make_photos(tmp_path / "photos", ["ant", "bee"], 3)
    (photos / "ant" / "zero.jpg").touch()
    for i in range(6):
        (photos / "bee" / f"text{i}.jpg").write_text("no image")
    code, _, stderr = dear_(*train(place, photos, tmp_path / "run", "--shots", 16))
    assert code == 0
    assert "note: 2 class(es) have no image left for the test" not in stderr
    assert (
        "note: 4 to 9 images per class: 2 to 7 for training, 2 set aside for the test; --test-share 0 trains on all"
    ) in stderr
    code, _, stderr = dear_(*train(place, photos, tmp_path / "all", "--shots", 16, "--test-share", 0))
    assert code == 0
    assert stderr.count("skipped: ") == 5
    assert "… and 2 more, all named in " in stderr
    assert "note: unreadable images were skipped 14 times." in stderr
    logged = (tmp_path / "all" / "metrics.jsonl").read_text()
    assert "zero.jpg cannot be read: it is empty" in logged


def table(stdout):
    """The sentence, the table's head, and its numbers by row."""
    sentence, _, head, *rows = stdout.splitlines()
    cells = [re.split(r"  +", row) for row in rows]
    return sentence, head, {name: float(number.removesuffix(" %")) for name, number in cells}


@pytest.mark.covers("F6")
def test_eval_finds_what_the_run_was_made_from(dear_, made, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, stdout, stderr = dear_("eval", made)
    assert code == 0, stderr
    sentence, head, rows = table(stdout)
    assert re.fullmatch(r"\d+ % of 8 images it was not trained on are named correctly, .*; plain CLIP .*\.", sentence)
    assert head == "photos: 8 images, 4 classes  correct"
    assert list(rows) == ["plain CLIP", "dear"]
    assert list(table(dear_("eval", made, "--all")[1])[2]) == ["plain CLIP", "dear", "dear, decoupled"]
    code, stdout, _ = dear_("eval", made, "--json")
    found = json.loads(stdout)
    assert found["adapted"]["accuracy"]["fusion"] == pytest.approx(rows["dear"], abs=0.01)
    assert list(found["plain"]["accuracy"].values()) == [pytest.approx(rows["plain CLIP"], abs=0.01)]
    assert set(found["adapted"]["per_class"]) == set(CLASSES)
    assert found["verdict"]["sentence"] == sentence
    assert found["verdict"]["low"] <= found["verdict"]["accuracy"] <= found["verdict"]["high"]
    for half in ("base", "novel"):
        sentence, head, _ = table(dear_("eval", made, "--half", half)[1])
        assert "of 4 new images of trained classes are named correctly" in sentence
        assert head == f"photos, {half}: 4 images, 2 classes  correct"


def test_unbalanced_folders_get_the_mean_per_class(dear_, place, tmp_path):
    uneven = shutil.copytree(place / "photos", tmp_path / "uneven")
    for number in range(9):
        Image.new("RGB", (30, 30), (20 * number, 90, 90)).save(uneven / "ant" / f"more{number}.png")
    assert dear_(*train(place, uneven, tmp_path / "run"))[0] == 0
    sentence, more, _, head, *rows = dear_("eval", tmp_path / "run")[1].splitlines()
    assert " of 17 images " in sentence
    assert more.startswith("Classes have 2 to 11 test images: averaged over classes, ")
    assert head.endswith("correct   mean per class")
    assert all(row.count("%") == 2 for row in rows)


def test_eval_beside_plain_is_what_zero_shot_gives(dear_, place, made, tmp_path):
    plain = json.loads(dear_("eval", made, "--json")[1])["plain"]
    words = train(place, place / "photos", tmp_path / "zero")
    words = [word for word in words if word not in ("--set", "mask=all_mixed")]
    assert dear_(*words, "--method", "zero_shot")[0] == 0
    assert json.loads(dear_("eval", tmp_path / "zero", "--json")[1])["adapted"] == plain


def test_a_method_that_trains_nothing_has_a_report(dear_, place, tmp_path):
    words = [
        word for word in train(place, place / "photos", tmp_path / "run") if word not in ("--set", "mask=all_mixed")
    ]
    assert dear_(*words, "--method", "zero_shot")[0] == 0
    code, stdout, stderr = dear_("report", tmp_path / "run", "--workers", 1)
    assert code == 0, stderr
    assert stdout.endswith(f"report: {tmp_path / 'run' / 'report.html'}\n")


def test_quickstart_takes_no_other_run(dear_, made):
    before = (made / "adapter_model.safetensors").read_bytes()
    code, _, stderr = dear_("quickstart", "--out", made)
    assert code == 2
    assert stderr == f"dear: {made} contains something else: choose another folder with --out FOLDER.\n"
    assert (made / "adapter_model.safetensors").read_bytes() == before


def test_eval_on_other_data(dear_, made, tmp_path):
    other = make_photos(tmp_path / "other", ["x", "y"], 3, seed=1)
    (other / "x" / "bad.png").write_bytes(b"")
    code, stdout, stderr = dear_("eval", made, other, "--cache", tmp_path / "cache")
    assert code == 0
    assert " % of 7 images of classes it was not trained on are named correctly" in stdout
    assert "\nother: 7 images, 2 classes " in stdout
    assert "counted as wrong: " in stderr
    assert "bad.png cannot be read: it is empty" in stderr
    again = dear_("eval", made, other, "--cache", tmp_path / "cache")
    assert again == (code, stdout, stderr)


def test_what_was_learned_is_never_tested(dear_, place, made, tmp_path):
    """Even where the folder has another name now, and more images."""
    moved = shutil.copytree(place / "photos", tmp_path / "renamed")
    Image.new("RGB", (30, 30), "teal").save(moved / "ant" / "zzz.png")
    assert "\nrenamed: 9 images, 4 classes " in dear_("eval", made, moved)[1]


def test_eval_of_a_list_with_a_template(dear_, place, tmp_path, monkeypatch):
    paths = sorted((place / "photos").rglob("*.png"))
    text = "".join(f"{path.relative_to(place)},{path.parent.name}\n" for path in paths)
    (place / "list.csv").write_text("path,label\n" + text)
    monkeypatch.chdir(place)
    code, _, stderr = dear_(*train(place, "list.csv", tmp_path / "run", "--template", "my own {}.", "--half", "base"))
    assert code == 0, stderr
    monkeypatch.chdir(tmp_path)
    code, stdout, _ = dear_("eval", "run", "--half", "base")
    assert code == 0
    assert "\nlist.csv, base: 4 images, 2 classes " in stdout
    by_template = dear_("eval", "run", "--json")[1]
    assert by_template == dear_("eval", "run", place / "list.csv", "--template", "my own {}.", "--json")[1]


def test_data_that_is_gone(dear_, place, tmp_path):
    shutil.copytree(place / "photos", tmp_path / "photos")
    assert dear_(*train(place, tmp_path / "photos", tmp_path / "run"))[0] == 0
    shutil.rmtree(tmp_path / "photos")
    code, _, stderr = dear_("eval", tmp_path / "run")
    assert code == 2
    assert f"There is no data set '{tmp_path / 'photos'}'" in stderr
    assert f"pass its new path, as in 'dear eval {tmp_path / 'run'} DATA'." in stderr


def test_predict(dear_, place, made, tmp_path):
    image = place / "photos" / "ant" / "0.png"
    code, stdout, stderr = dear_("predict", made, image, place / "photos" / "bee", "-k", 2)
    assert (code, stderr) == (0, "")
    lines = stdout.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith(f"{image}: ")
    assert lines[0].count(" %") == 2
    code, stdout, _ = dear_("predict", made, image, "--json", "--classes", "boat, car,plane")
    (line,) = stdout.splitlines()
    found = json.loads(line)
    assert found["image"] == str(image)
    assert {name for name, _ in found["top"]} == {"boat", "car", "plane"}
    (tmp_path / "classes.txt").write_text("boat\n\ncar\nplane\n")
    assert dear_("predict", made, image, "--json", "--names", tmp_path / "classes.txt")[1] == stdout
    assert dear_("predict", made, image, "--json", "--readout", "decoupled")[0] == 0
    long = ",".join(f"thing number {i}" for i in range(400))
    assert dear_("predict", made, image, "--classes", long, "--top-k", 400)[1].count(" %") == 400


def test_predict_names_what_it_cannot_read_and_goes_on(dear_, place, made, tmp_path):
    (tmp_path / "zero.jpg").touch()
    (tmp_path / "empty").mkdir()
    image = place / "photos" / "ant" / "0.png"
    words = [tmp_path / "zero.jpg", image, tmp_path / "none.jpg", tmp_path / "empty", image]
    code, stdout, stderr = dear_("predict", made, *words, "--json")
    assert code == 1
    assert [json.loads(line)["image"] for line in stdout.splitlines()] == [str(image)] * 2
    assert len(stderr.splitlines()) == 4
    assert stderr.splitlines()[-1] == "3 of 5 images could not be read."
    assert f"not predicted: {tmp_path / 'zero.jpg'} cannot be read: it is empty; replace or remove it." in stderr
    assert f"not predicted: {tmp_path / 'none.jpg'} cannot be read: it does not exist; check the path." in stderr
    assert f"not predicted: There are no images in {tmp_path / 'empty'}" in stderr


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(dear_, place, made, tmp_path, name):
    words, sentence = BAD[name]
    (tmp_path / "empty").mkdir()
    make_photos(tmp_path / "hollow", ["ant"], 2)
    (tmp_path / "hollow" / "bee").mkdir()
    places = {
        "PHOTOS": place / "photos",
        "IMAGE": place / "photos" / "ant" / "0.png",
        "CLIP": f"local-dir:{place / 'clip'}",
        "MADE": made,
        "OUT": tmp_path / "out",
        "EMPTY": tmp_path / "empty",
        "ONE": make_photos(tmp_path / "one", ["ant"], 2),
        "HOLLOW": tmp_path / "hollow",
    }
    code, stdout, stderr = dear_(*(places.get(word, word) for word in words))
    assert (code, stdout) == (2, "")
    assert sentence in stderr
    assert stderr.startswith("dear: ")
    assert stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_python_does_what_the_commands_do(dear_, place, made, tmp_path):
    by_command = json.loads(dear_("eval", made, "--json")[1])
    told = []
    found = dear.evaluate(made, progress=lambda done, total: told.append((done, total)))
    assert found.scores.model_dump(mode="json") == by_command["adapted"]
    assert found.plain.model_dump(mode="json") == by_command["plain"]
    assert told[-1] == (8, 8)
    model = dear.load(made)
    on_other = make_photos(tmp_path / "other", ["x", "y"], 2, seed=1)
    assert dear.evaluate(model, on_other).scores == dear.evaluate(made, dear.open_dataset(on_other)).scores
    assert dear.evaluate(made, dear.open_dataset(place / "photos")).scores.images == 8  # those trained on are left out
    with pytest.raises(ConfigError, match="A loaded model does not record its data set"):
        dear.evaluate(model)
    page = dear.report(made, out=tmp_path / "page.html", workers=1)
    assert page == tmp_path / "page.html"
    assert page.read_text().startswith("<!")
    assert dear_("search", "index", place / "photos", "--run", made, "--out", tmp_path / "index")[0] == 0
    image = place / "photos" / "ant" / "0.png"
    hits = dear.search(made, image, index=tmp_path / "index", top_k=2)
    words = ["search", "find", tmp_path / "index", image, "-k", 2, "--json"]
    assert [json.loads(line)["image"] for line in dear_(*words)[1].splitlines()] == [str(hit.path) for hit in hits]
    assert hits[0].path.name == "0.png"
