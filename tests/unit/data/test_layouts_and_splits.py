"""Data sets of every layout, shots and halves, and what is said of broken ones."""

import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import dear
from dear.data.catalog import declarations
from dear.data.check import check_dataset, is_present
from dear.data.dataset import Item
from dear.data.open import dataset_names, open_dataset
from dear.data.readers import read_split_file
from dear.data.splits import base_and_novel, few_shot, restrict, shots_from_json, shots_to_json
from dear.errors import DataError

ROOT = Path(__file__).resolve().parents[3]
items_of = st.lists(st.builds(Item, st.text(min_size=1, max_size=6), st.integers(0, 5)), unique=True, min_size=1)


def picture(path: Path, color=(10, 20, 30)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), color).save(path)
    return path


def class_folders(root: Path, names, images=3) -> Path:
    for name in names:
        for i in range(images):
            picture(root / name / f"{i}.png")
    return root


def test_the_papers_data_sets_with_its_prompts():
    known = declarations()
    assert len(known) == 15
    assert known["dtd"].template == "{} texture."
    assert known["ucf101"].template == "a photo of a person doing {}."
    assert known["eurosat"].template == "a centered satellite photo of {}."
    assert (
        sum(one.classes for one in known.values())
        == 1000 * 3 + 200 * 2 + 100 + 37 + 196 + 102 + 101 + 100 + 397 + 47 + 10 + 101
    )
    assert all(one.template.count("{}") == 1 and one.licence and one.citation and one.get for one in known.values())
    assert len(dataset_names()) > 20


@given(items_of, st.integers(1, 5), st.integers(0, 3), st.randoms(use_true_random=False))
def test_shots_do_not_depend_on_order_and_are_nested(items, shots, seed, shuffler):
    drawn = few_shot(items, shots, seed)
    shuffled = list(items)
    shuffler.shuffle(shuffled)
    assert few_shot(shuffled, shots, seed) == drawn
    assert set(drawn) <= set(few_shot(items, shots + 1, seed))
    for label in {item.label for item in items}:
        available = sum(item.label == label for item in items)
        assert sum(item.label == label for item in drawn) == min(shots, available)


def test_shots_are_the_same_on_every_machine():
    items = [Item(f"c{label}/{i}.jpg", label) for label in range(3) for i in range(20)]
    assert [item.id for item in few_shot(items, 2, seed=1)] == [
        "c0/15.jpg",
        "c0/19.jpg",
        "c1/19.jpg",
        "c1/5.jpg",
        "c2/19.jpg",
        "c2/2.jpg",
    ]
    assert few_shot(items, 2, seed=2) != few_shot(items, 2, seed=1)
    with pytest.raises(DataError, match="must be at least 1"):
        few_shot(items, 0, 1)


def test_halves():
    assert base_and_novel(5) == (range(3), range(3, 5))
    assert base_and_novel(100) == (range(50), range(50, 100))
    items = [Item("a", 0), Item("b", 3), Item("c", 4)]
    assert restrict(items, range(3, 5)) == (Item("b", 0), Item("c", 1))
    with pytest.raises(DataError, match="at least 2 classes"):
        base_and_novel(1)


@pytest.mark.covers("T5")
def test_the_base_half_is_the_first_labels_whatever_their_names(tmp_path):
    names = ["motorbike", "face", "leopard", "barrel", "airplane"]
    rows = [[f"{name}/1.jpg", label, name] for label, name in enumerate(names)]
    path = tmp_path / "split.json"
    path.write_text(json.dumps({"train": rows, "val": [], "test": rows}))
    read = read_split_file(path)
    assert read.class_names == tuple(names)
    assert [read.class_names[label] for label in base_and_novel(5)[0]] == ["motorbike", "face", "leopard"]
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    wrong = re.compile(r"half of the (sorted )?class(es| names)[^.]*sorted|half of the sorted", re.IGNORECASE)
    assert [page.name for page in pages if wrong.search(page.read_text(encoding="utf-8"))] == []
    assert "first ⌈n/2⌉ labels" in (ROOT / "docs" / "reference" / "data-sets.md").read_text(encoding="utf-8")


def test_shots_as_json(tmp_path):
    data = open_dataset(class_folders(tmp_path / "d", ["a", "b"]))
    drawn = few_shot(data.train, 2, 1)
    text = shots_to_json(data, drawn, shots=2, seed=1)
    assert tuple(shots_from_json(text)) == drawn
    with pytest.raises(DataError, match="was changed"):
        shots_from_json(text.replace("a/", "b/", 1))
    with pytest.raises(DataError, match="is not a list of shots"):
        shots_from_json("[1]")


def test_a_folder_of_class_folders(tmp_path):
    class_folders(tmp_path, ["hot_dog", "apple", ".hidden", "BACKGROUND_Google"])
    (tmp_path / "apple" / "notes.txt").write_text("not an image")
    data = open_dataset(tmp_path)
    assert data.class_names == ("apple", "hot dog")
    assert [item.id for item in data.train if item.label == 1] == ["hot_dog/0.png", "hot_dog/1.png", "hot_dog/2.png"]
    assert data.open("apple/0.png").size == (8, 8)
    assert len(data.images(data.train)) == 6


def test_train_and_test_folders(tmp_path):
    class_folders(tmp_path / "train", ["a", "b"], 3)
    class_folders(tmp_path / "test", ["a", "b"], 2)
    data = open_dataset(tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (6, 0, 4)
    assert data.open(data.test[0].id).size == (8, 8)


@pytest.mark.parametrize("kind", ["csv", "csv with a head", "json", "json objects"])
def test_lists(tmp_path, kind):
    rows = [("x/1.png", "cat"), ("x/2.png", "dog")]
    for path, _ in rows:
        picture(tmp_path / path)
    text = {
        "csv": "\n".join(",".join(row) for row in rows),
        "csv with a head": "path,label\n" + "\n".join(",".join(row) for row in rows),
        "json": json.dumps(rows),
        "json objects": json.dumps([{"path": p, "label": label} for p, label in rows]),
    }[kind]
    path = tmp_path / f"list.{kind.split()[0]}"
    path.write_text(text)
    data = open_dataset(path)
    assert data.class_names == ("cat", "dog")
    assert [data.open(item.id).size for item in data.train] == [(8, 8)] * 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda root: class_folders(root, ["a", "A"]),
            "The folders 'A' and 'a' name the same class: merge or rename them.",
        ),
        (lambda root: class_folders(root, ["hot dog", "hot_dog"]), "name the same class"),
        (lambda root: [class_folders(root, ["a", "b"]), (root / "c").mkdir()], "has no images: add some, or remove"),
        (lambda root: picture(root / "1.png"), "is not a folder of class folders"),
        (
            lambda root: class_folders(root, ["cat"]),
            "has only one class folder, cat: add a folder for every other class",
        ),
    ],
    ids=["case", "underscore", "empty class", "flat", "one class"],
)
def test_folders_that_cannot_be_meant(tmp_path, make, message):
    make(tmp_path)
    with pytest.raises(DataError, match=message):
        open_dataset(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.png\n", "needs a path and a label"),
        ("a.png,cat\n", "names 1 class"),
        ("", "names 0 class"),
        ("a.png,Cat\nb.png,cat\n", "The labels in .*list.csv 'Cat' and 'cat' name the same class"),
        ("a.png,a_b\nb.png,a b\n", "name the same class: merge or rename them"),
    ],
)
def test_lists_that_cannot_be_meant(tmp_path, text, message):
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        open_dataset(tmp_path / "list.csv")


def test_a_data_set_says_where_it_is_from(tmp_path, monkeypatch):
    class_folders(tmp_path / "photos", ["a", "b"])
    monkeypatch.chdir(tmp_path / "photos")
    data = open_dataset(".")
    assert (data.name, data.source, data.root) == ("photos", str(tmp_path / "photos"), None)
    assert open_dataset("world-things").source == "world-things"
    with pytest.raises(DataError, match="The data set is of type int: give its name, a folder"):
        open_dataset(3)


def test_names_that_do_not_exist():
    with pytest.raises(DataError, match=r"There is no data set 'caltech-101', .* Did you mean 'caltech101'\?"):
        open_dataset("caltech-101")
    with pytest.raises(DataError, match="name it with data_root='FOLDER'"):
        open_dataset("dtd")
    with pytest.raises(DataError, match=r"DTD is not in nowhere: put it in nowhere/dtd\. Get dtd-r1\.0\.1"):
        open_dataset("dtd", "nowhere")


def test_a_world_data_set_opens_like_any_other():
    data = open_dataset("world-things")
    assert len(data.class_names) >= 16
    assert data.open(data.test[0].id).size == (64, 64)
    assert data.open(data.test[0].id).tobytes() != data.open(data.test[1].id).tobytes()
    assert not {item.id for item in data.train} & {item.id for item in data.test}


def imagenet_like(root: Path, classes=3) -> Path:
    lines = [f"n{i:08d} class {i}" for i in range(classes)]
    for folder in ("imagenet", "imagenetv2", "imagenet-sketch", "imagenet-adversarial"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "classnames.txt").write_text("\n".join(lines))
    names = [line.split()[0] for line in lines]
    class_folders(root / "imagenet" / "images" / "train", names, 4)
    class_folders(root / "imagenet" / "images" / "val", names, 2)
    class_folders(root / "imagenetv2" / "imagenetv2-matched-frequency-format-val", [str(i) for i in range(classes)], 2)
    class_folders(root / "imagenet-sketch" / "images", names, 2)
    class_folders(root / "imagenet-adversarial" / "imagenet-a", names[1:], 2)
    return root


def test_imagenet_and_its_variants(tmp_path):
    imagenet_like(tmp_path)
    source = open_dataset("imagenet", tmp_path)
    assert source.class_names == ("class 0", "class 1", "class 2")
    assert (len(source.train), len(source.test)) == (12, 6)
    assert source.open(source.train[0].id).size == (8, 8)
    for name, classes in {"imagenetv2": 3, "imagenet_sketch": 3, "imagenet_a": 2}.items():
        data = open_dataset(name, tmp_path)
        assert (len(data.class_names), len(data.test)) == (classes, 2 * classes)
        assert data.open(data.test[0].id).size == (8, 8)
    assert open_dataset("imagenet_a", tmp_path).class_names == ("class 1", "class 2")


def test_aircraft(tmp_path):
    root = tmp_path / "fgvc_aircraft"
    for number in range(6):
        picture(root / "images" / f"{number:07d}.jpg")
    (root / "variants.txt").write_text("707-320\nA310\n")
    for start, split in enumerate(("train", "val", "test")):
        rows = [f"{2 * start:07d} 707-320", f"{2 * start + 1:07d} A310"]
        (root / f"images_variant_{split}.txt").write_text("\n".join(rows))
    data = open_dataset("fgvc_aircraft", tmp_path)
    assert data.class_names == ("707-320", "A310")
    assert data.open(data.test[1].id).size == (8, 8)
    (root / "images_variant_val.txt").write_text("0000001 A999")
    with pytest.raises(DataError, match=r"names a variant that is missing in variants\.txt"):
        open_dataset("fgvc_aircraft", tmp_path)


def split_file(root: Path, rows=None) -> None:
    rows = rows or {
        "train": [["a/0.png", 0, "Forest"], ["b/0.png", 1, "SeaLake"]],
        "val": [],
        "test": [["a/1.png", 0, "Forest"]],
    }
    (root / "eurosat").mkdir(parents=True, exist_ok=True)
    (root / "eurosat" / "split_zhou_EuroSAT.json").write_text(json.dumps(rows))


def test_class_names_are_mended(tmp_path):
    split_file(tmp_path)
    assert open_dataset("eurosat", tmp_path).class_names == ("Forest", "Sea or Lake")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"train": []}, "is not a split file"),
        ({"train": [["a.png", 3, "x"]], "val": [], "test": []}, "numbers its classes with gaps"),
    ],
)
def test_split_files_that_cannot_be_meant(tmp_path, rows, message):
    split_file(tmp_path, rows)
    with pytest.raises(DataError, match=message):
        open_dataset("eurosat", tmp_path)


def test_check_names_what_is_wrong(tmp_path):
    split_file(tmp_path)
    declared = declarations()["eurosat"]
    assert is_present(declared, tmp_path)
    assert not is_present(declarations()["dtd"], tmp_path)
    picture(tmp_path / "eurosat" / "2750" / "a" / "0.png")
    picture(tmp_path / "eurosat" / "2750" / "b" / "0.png").write_bytes(b"")
    health = check_dataset("eurosat", lambda: open_dataset("eurosat", tmp_path), declared)
    assert health.counts == {"train": 2, "val": 0, "test": 1}
    assert any("2 classes, but EuroSAT has 10" in problem for problem in health.problems)
    assert any("b/0.png cannot be read: it is empty" in problem for problem in health.problems)
    assert any("a/1.png cannot be read" in problem for problem in health.problems)
    assert any("a subset" in note for note in health.notes)


def test_real_caltech(shared_data):
    data = open_dataset("caltech101", shared_data)
    assert len(data.class_names) == 100
    assert (len(data.train), len(data.val), len(data.test)) == (1790, 400, 999)
    assert data.class_names[:3] == ("face", "leopard", "motorbike")
    assert data.open(data.train[0].id).mode == "RGB"
    shots = few_shot(data.train, 16, 1)
    random.Random(0).shuffle(list(data.train))
    assert len(shots) == sum(min(16, sum(i.label == label for i in data.train)) for label in range(100))


def run(*arguments):
    from typer.testing import CliRunner

    from dear.cli import app

    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_ls_says_what_is_present(tmp_path):
    split_file(tmp_path)
    output = run("data", "list", "--data-root", tmp_path).output
    rows = {line.split()[0]: line.split()[1] for line in output.splitlines()}
    assert (rows["eurosat"], rows["dtd"], rows["world-things"]) == ("yes", "no", "yes")
    methods = [line.split()[0] for line in run("ls", "methods").output.partition("\n\n")[0].splitlines()]
    assert methods == ["method", *dear.list_methods()]
    assert run("--version").output.startswith("dear 0.")


def test_check_command(tmp_path):
    class_folders(tmp_path / "mine", ["a", "b"])
    assert "is in order: 2 classes, 6 train, 0 val, 0 test images." in run("data", "check", tmp_path / "mine").output
    (tmp_path / "mine" / "a" / "0.png").write_bytes(b"junk")
    result = run("data", "check", tmp_path / "mine")
    assert result.exit_code
    assert "0.png cannot be read: it is damaged or not an image; replace or remove it." in str(result.exception)
    assert run("data", "check", tmp_path / "mine", "--quick").exit_code == 0
    assert "DTD is not in" in str(run("data", "check", "dtd", "--data-root", tmp_path).exception)
