"""What an engineer builds on: one predict for everything, models ready to be called, reprs of one line, examples."""

import csv
import io
import json
import tomllib
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dear
from dear.data import images as reading
from dear.data.prompts import class_list
from dear.engine.job import make_job
from dear.errors import ConfigError, DearWarning, ImageError
from dear.methods.base import Batch, Draw
from dear.storage.user_cache import CacheEntry
from helpers import make_photos
from needs import needs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_folders):
    """A run on a few photos."""
    root = tmp_path_factory.mktemp("engineers")
    make_photos(root / "photos", ["ant", "bee"], 4)
    clip = dear.load_clip(f"local-dir:{tiny_folders['shallow']}", "random")
    short = dear.TrainSettings(epochs=1, batch_size=4)
    dear.fit(root / "photos", clip, mask="all_mixed", shots=2, train=short, out=root / "run", workers=1)
    return root


@pytest.fixture(scope="module")
def loaded(place):
    return dear.load(place / "run")


@pytest.mark.covers("F18")
def test_a_loaded_model_is_ready_to_be_called(loaded):
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    size = loaded.clip.geometry.image_size
    assert loaded(torch.zeros(1, 3, size, size)).logits.grad_fn is None


@pytest.mark.covers("F18")
def test_one_predict_for_paths_pictures_arrays_and_bytes(loaded, place):
    path = place / "photos" / "ant" / "0.png"
    picture = Image.open(path).convert("RGB")
    pixels = np.asarray(picture)
    chw = torch.from_numpy(pixels.copy()).movedim(-1, 0)
    expected = {count: loaded.predict([path] * count)[0].top for count in (1, 2, 3)}  # rounding depends on the batch
    kinds = [str(path), picture, pixels, chw, chw.float() / 255, path.read_bytes(), bytearray(path.read_bytes())]
    assert [one.top for one in loaded.predict(kinds, batch_size=3, workers=1)] == [expected[3]] * 6 + [expected[1]]
    for one in kinds:
        assert loaded.predict(one)[0].top == expected[1]
    assert [one.top for one in loaded.predict(np.stack([pixels, pixels]))] == [expected[2]] * 2
    assert loaded.predict(pixels[..., 0])[0].top == loaded.predict(np.repeat(pixels[..., :1], 3, 2))[0].top


@pytest.mark.covers("F18")
def test_one_bad_image_need_not_lose_the_others(loaded, place):
    path = place / "photos" / "ant" / "0.png"
    mixed = [path, b"no image", place / "none.png", path]
    with pytest.raises(ImageError, match=r"image 1 cannot be read: its bytes are damaged or not an image\."):
        loaded.predict(mixed)
    with pytest.warns(DearWarning, match="2 of 4 images are left out, the first: image 1 cannot be read"):
        found = loaded.predict(mixed, on_error="skip")
    assert [one.image for one in found] == [str(path), str(path)]
    with pytest.raises(ConfigError, match="on_error is 'ignore', but can be 'raise' or 'skip'"):
        loaded.predict(path, on_error="ignore")


@pytest.mark.covers("F17")
def test_what_is_exported_is_image_to_logits(loaded):
    size = loaded.clip.geometry.image_size
    images = torch.randn(3, 3, size, size)
    baked = loaded.baked()
    with torch.no_grad():
        torch.testing.assert_close(baked(images), loaded(images).logits)
        free = {"images": {0: torch.export.Dim("batch")}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.export(baked, (images,), dynamic_shapes=free, strict=False).module()
        torch.testing.assert_close(exported(images[:2]), loaded(images[:2]).logits)


def test_labels_as_a_table_and_in_folders(dear_, place, tmp_path):
    make_photos(tmp_path / "new", ["x", "=1+1"], 2)
    (tmp_path / "new" / "broken.png").write_bytes(b"nothing")
    before = {path: path.read_bytes() for path in (tmp_path / "new").rglob("*.png")}
    words = ("predict", place / "run", tmp_path / "new", "--top-k", 2)
    code, out, err = dear_(*words, "--out", tmp_path / "labels.csv", "--sort-into", tmp_path / "sorted")
    assert code == 1  # one image could not be read, and is named
    assert "broken.png cannot be read" in err
    assert "4 images in" in out
    assert "4 copies in" in out
    rows = list(csv.DictReader(io.StringIO((tmp_path / "labels.csv").read_text())))
    assert list(rows[0]) == ["image", "label", "probability", "label_2", "probability_2"]
    assert {row["image"] for row in rows} == {str(path) for path in before if path.name != "broken.png"}
    assert all({row["label"], row["label_2"]} == {"ant", "bee"} for row in rows)
    sorted_ = [path for path in (tmp_path / "sorted").rglob("*") if path.is_file()]
    assert len(sorted_) == 4
    assert {path.parent.name for path in sorted_} <= {"ant", "bee"}
    assert {path: path.read_bytes() for path in (tmp_path / "new").rglob("*.png")} == before  # nothing was moved

    for more in (("--out", tmp_path / "labels.csv"), ("--sort-into", tmp_path / "sorted")):
        code, out, err = dear_(*words, *more)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "exists already" in err
    assert dear_(*words, "--sort-into", tmp_path / "links", "--link")[0] == 1
    assert all(path.is_symlink() and path.exists() for path in (tmp_path / "links").glob("*/*"))
    assert "name one with --sort-into" in dear_(*words, "--link")[2]


def test_class_names_become_safe_folders():
    from dear.reports.labels import folder_name

    assert [folder_name(one) for one in ("hot dog", "../../etc", "a/b", "", "..", "CON\x1b[2J")] == [
        "hot dog",
        "_.._etc",
        "a_b",
        "_",
        "_",
        "CON__2J",
    ]


@pytest.mark.covers("F19")
def test_photos_of_phones_are_counted_and_named(dear_, place, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "reads_heic", lambda: False)
    photos = make_photos(tmp_path / "photos", ["ant", "bee"], 3)
    for name in ("ant/one.HEIC", "ant/two.heif", "bee/raw.dng", "bee/._hidden.heic"):
        (photos / name).write_bytes(b"a photo")
    sentence = "3 photos are skipped in .* such as ant/one.HEIC (2 of them HEIC, read with pip install"
    code, out, err = dear_("data", "check", photos)
    assert code == 0
    assert "is in order: 2 classes, 6 train" in out
    for part in sentence.split(" .* "):
        assert part in out
    code, out, err = dear_("predict", place / "run", photos)
    assert (code, len(out.splitlines())) == (0, 6)
    assert "3 photos are skipped in" in err
    assert (
        'it is a HEIC photo, which is read with pip install "dear-vlm[heic]"'
        in dear_("predict", place / "run", photos / "ant" / "one.HEIC")[2]
    )
    (tmp_path / "phone" / "ant").mkdir(parents=True)
    (tmp_path / "phone" / "bee").mkdir()
    (tmp_path / "phone" / "ant" / "one.heic").write_bytes(b"a photo")
    assert "1 of them HEIC" in dear_("data", "check", tmp_path / "phone")[2]


@pytest.mark.covers("F19")
def test_with_the_extra_heic_is_an_image_like_any_other(monkeypatch, tmp_path):
    """A stand-in for pillow-heif, which need not be installed: PPM files by another name."""

    class Stand:
        @staticmethod
        def register_heif_opener():
            Image.register_open("HEIF", Image.OPEN["PPM"][0] if "PPM" in Image.OPEN else None, None)

    Image.init()
    monkeypatch.setattr(Image, "OPEN", dict(Image.OPEN))
    monkeypatch.setattr(Image, "ID", list(Image.ID))
    monkeypatch.setattr(reading, "reads_heic", lambda: True)
    monkeypatch.setattr(reading, "import_module", lambda name: Stand)
    reading._formats.cache_clear()
    monkeypatch.setattr(reading, "FORMATS", ("JPEG", "MPO"))
    try:
        Image.new("RGB", (4, 4), "red").save(tmp_path / "one.heic", format="PPM")
        assert reading.folder_images(tmp_path).open(0).getpixel((0, 0)) == (255, 0, 0)
        assert reading.passed_over(tmp_path) == []
    finally:
        reading._formats.cache_clear()


@pytest.mark.covers("F19")
def test_a_real_heic_photo(tmp_path):
    needs("pillow_heif")
    import pillow_heif

    pillow_heif.register_heif_opener()
    Image.new("RGB", (64, 48), "red").save(tmp_path / "IMG_1.HEIC", format="HEIF")
    (found,) = [reading.folder_images(tmp_path).open(0)]
    assert found.size == (64, 48)
    assert found.getpixel((5, 5))[0] > 200


def every_public_object(model, place):
    """One of every public class, and of what public functions return."""
    clip, roles = model.clip, dear.RoleMap.load("world")
    many = class_list([f"class {number}" for number in range(1000)], "a photo of a {}.")
    data, size = dear.open_dataset(place / "photos"), clip.geometry.image_size
    data = replace(data, train=data.train * 100_000)
    found = dear.evaluate(place / "run", workers=1)
    return [
        clip,
        model,
        model.method,
        model.config,
        model.baked(),
        model(torch.zeros(2, 3, size, size)),
        Batch(torch.zeros(400, dtype=torch.int64)),
        Draw({"feature": torch.zeros(2, 30, 9)}, torch.zeros(30), many),
        dear.Needs(),
        dear.Recipe(),
        dear.TrainSettings(epochs=3),
        dear.DearConfig(),
        roles,
        dear.Role.CORE,
        *roles.heads,
        dear.RoleMap.load("vit-b-16").provenance,
        roles.provenance,
        dear.DearError("one sentence"),
        data,
        many,
        data.images(data.train),
        make_job(data, shots=1, seed=1),
        model.predict(place / "photos" / "ant" / "0.png")[0],
        found,
        found.scores,
        CacheEntry(Path("x"), 10, 0.0),
    ]


@pytest.mark.covers("F24")
def test_the_repr_of_every_public_object_fits_a_line(loaded, place):
    objects = every_public_object(loaded, place)
    for one in objects:
        assert len(repr(one)) <= 160, repr(one)[:300]
        assert "\n" not in repr(one)
    classes = {name for name in dear.__all__ if isinstance(getattr(dear, name), type)}
    shown = {base.__name__ for one in objects for base in type(one).__mro__}
    assert classes <= shown, f"not looked at: {classes - shown}"
    assert repr(dear.TrainSettings(epochs=3)) == "TrainSettings(epochs=3)"


SHORTER = {
    "EPOCHS = 3": "EPOCHS = 1",
    "shots=16": "shots=1",
    "cached_views=2": "cached_views=1",
    "data = dear.open_dataset(DATA)": "data = DATA = few(DATA)",
    'dear.evaluate("run")': 'dear.evaluate("run", data)',
}


def few(name):
    """Four classes of a data set, with three test pictures each."""
    whole = dear.open_dataset(name)
    train, test = ([item for item in items if item.label < 4] for items in (whole.train, whole.test))
    test = [item for label in range(4) for item in [one for one in test if one.label == label][:3]]
    return replace(whole, class_names=whole.class_names[:4], train=tuple(train), val=(), test=tuple(test))


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    """Its cells as they are, on one class list and one epoch."""
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "examples" / "first-adapter.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 6
    assert all(not cell.get("outputs") for cell in cells)
    known = {"few": few}
    for one in code:
        shorter = (
            one.replace("EPOCHS = ", "EPOCHS = 1 or ")
            .replace("shots=16", "shots=1")
            .replace("cached_views=2", "cached_views=1")
        )
        shorter = shorter.replace('dear.evaluate("run")', 'dear.evaluate("run", half="base", batch_size=50)')
        exec(compile(shorter, "first-adapter.ipynb", "exec"), known)
    assert "plain CLIP: " in capsys.readouterr().out


def test_the_dockerfile_names_files_that_are_there():
    text = (ROOT / "Dockerfile").read_text()
    assert "never built" in text
    for line in (line for line in text.splitlines() if line.startswith("COPY ")):
        assert all((ROOT / name).exists() for name in line.split()[1:-1]), line
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"roles", "heic"} <= extras.keys()
