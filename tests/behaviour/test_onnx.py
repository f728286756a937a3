"""Adapters as ONNX files: every method, several towers, other class lists, and the example without torch."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dear
from dear.backbone.load import clips_from
from dear.errors import ExportError, MissingExtraError, OverwriteError
from dear.model import onnx_file
from dear.model.encoder import image_encoder
from dear.workflows import export as exporting
from helpers import build, make_photos, move_parameters, plain_images
from needs import needs
from tiny_towers import tiny_clip

pytestmark = pytest.mark.filterwarnings("ignore")
NAMES = ["cat", "a rather long name of a class", "dog", "hot air balloon", "x"]
WITHOUT_ENCODER = {
    "ape",
    "ape_t",
    "cocoop",
    "gda",
    "linear_probe",
    "llamp",
    "lppp",
    "mm_adapter",
    "tip_adapter",
    "tip_adapter_f",
}
"""Methods whose logits are more than products with class features; docs/how-to/export-onnx.md lists them."""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _packages():
    for package in onnx_file.PACKAGES:
        needs(package)


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("predict_example", ROOT / "examples" / "onnx" / "predict.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(name, clip):
    model = build(name, clip, NAMES)
    move_parameters(model)
    return model.eval().requires_grad_(False)


def logits_of(folder, images, features=None):
    """Logits computed from an export, without torch."""
    if features is None:
        return onnx_file.run_onnx(folder / "classifier.onnx", images)
    embedding = onnx_file.run_onnx(folder / "image_encoder.onnx", images)
    return embedding @ torch.tensor(json.loads(Path(features).read_text())["features"]).T


def check_export(model, folder):
    """Export a model, and compare it with torch for a batch size that was never used before."""
    dear.export_onnx(model, folder)
    images = plain_images(model.clip, 6, seed=9)
    with torch.no_grad():
        expected = model(images).logits
    assert (logits_of(folder, images) - expected).abs().max() < 1e-4
    about = json.loads((folder / "model.json").read_text())
    assert about["classes"] == NAMES
    has_encoder = (folder / "image_encoder.onnx").exists()
    assert has_encoder == (not about["no_image_encoder"]) == (model.name not in WITHOUT_ENCODER)
    if has_encoder:
        assert (logits_of(folder, images, folder / "class_features.json") - expected).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["dear", "clip_lora", "linear_probe"])
def test_a_method_exports(name, tiny_clips, tmp_path):
    check_export(made(name, tiny_clips["shallow"]), tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("name", dear.list_methods())
def test_every_method_exports(name, tiny_clips, tmp_path):
    check_export(made(name, tiny_clips["plain"]), tmp_path / "out")


@pytest.mark.parametrize("name", dear.list_methods())
def test_which_methods_allow_other_class_lists(name, tiny_clips):
    model = made(name, tiny_clips["shallow"])
    assert (image_encoder(model, plain_images(model.clip, 3)) is None) == (name in WITHOUT_ENCODER)


def test_the_page_lists_methods_without_an_encoder():
    page = (ROOT / "docs" / "how-to" / "export-onnx.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("These methods export only `classifier.onnx`:")]
    assert set(line.partition(":")[2].strip(" .").replace("`", "").split(", ")) == WITHOUT_ENCODER


def test_an_adapter_on_a_map_pooled_tower(tmp_path):
    clip = tiny_clip(tmp_path / "clip", "siglip", "siglip")
    check_export(made("dear", clip), tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("tower", ["eva02", "pe", "gap", "vitamin"])
def test_adapters_on_other_towers(tower, tmp_path):
    check_export(made("dear", tiny_clip(tmp_path / "clip", tower, "causal")), tmp_path / "out")


@pytest.fixture(scope="module")
def run(tiny_clips, tmp_path_factory):
    """A saved adapter, its model, its export in all precisions, and photos of unequal sides."""
    place = tmp_path_factory.mktemp("onnx")
    model = made("dear", tiny_clips["shallow"])
    model.save_pretrained(place / "run")
    dear.export_onnx(model, place / "out", int8=True, fp16=True)
    make_photos(place / "photos", ["a", "b"], 2)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (91, 57, 3), np.uint8)).save(
        place / "photos" / "tall.png"
    )
    return place, model


def test_other_precisions_are_near(run):
    place, _ = run
    about = json.loads((place / "out" / "model.json").read_text())["files"]
    assert {one["precision"] for one in about.values()} == {"fp32", "int8", "fp16"}
    assert about["classifier.onnx"]["difference"] < 1e-4
    assert all(
        about[f"{name}.{form}.onnx"]["difference"] < 0.2 for name in exporting.OUTPUTS for form in ("int8", "fp16")
    )


def test_other_class_lists_need_no_torch(run, dear_, tmp_path):
    place, model = run
    file, others = tmp_path / "others.json", ["fish", "a bird"]
    with clips_from(lambda *_, **__: model.clip):
        code, out, _ = dear_("export", place / "run", "--class-features", file, "--classes", "fish,a bird")
        assert (code, out) == (0, f"class features: {file}\n")
        assert "already exists" in dear_("export", place / "run", "--class-features", file)[2]
    images = plain_images(model.clip, 5)
    with torch.no_grad():
        expected = model.for_classes(others)(images).logits
    assert (logits_of(place / "out", images, file) - expected).abs().max() < 1e-4
    with pytest.raises(ExportError, match="linear_probe has no image encoder for other class lists"):
        dear.export_class_features(made("linear_probe", model.clip), tmp_path / "x.json")


def test_the_example_predicts_the_same(run, example, capsys, tmp_path):
    place, model = run
    photos = sorted((place / "photos").rglob("*.png"))
    how = json.loads((place / "out" / "model.json").read_text())["preprocessing"]
    for photo in photos:
        picture = Image.open(photo)
        assert np.abs(example.preprocess(picture, how) - model.clip.preprocess_eval(picture).numpy()).max() < 1e-6
    example.main(place / "out", photos, None)
    example.main(place / "out", photos, place / "out" / "class_features.json")
    expected = [f"{one.image}: {one.label} {100 * one.probability:.1f} %" for one in model.predict(photos)]
    assert capsys.readouterr().out.splitlines() == expected * 2
    source = (ROOT / "examples" / "onnx" / "predict.py").read_text()
    assert "torch" not in source.replace("without torch", "")


def test_a_file_that_computes_something_else_is_not_left_behind(run, monkeypatch, tmp_path):
    _, model = run
    right = exporting.run_onnx
    monkeypatch.setattr(exporting, "run_onnx", lambda path, images: right(path, images) + 0.01)
    with pytest.raises(ExportError, match=r"classifier\.onnx was not written: its output differs from torch's by"):
        dear.export_onnx(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_only_an_export_is_replaced(run, dear_, monkeypatch, tmp_path):
    place, model = run
    with clips_from(lambda *_, **__: model.clip):
        code, out, err = dear_("export", place / "run", "--onnx", place / "out")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "add --overwrite to replace it" in err
        assert "Nothing is named to write" in dear_("export", place / "run")[2]
        assert "add --onnx OUT" in dear_("export", place / "run", "--class-features", "x.json", "--int8")[2]
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(OverwriteError, match="choose an empty folder"):
        dear.export_onnx(model, tmp_path, overwrite=True)
    (place / "out" / "mine.txt").write_text("mine")
    with pytest.raises(OverwriteError, match="choose an empty folder"):
        dear.export_onnx(model, place / "out", overwrite=True)
    (place / "out" / "mine.txt").unlink()
    monkeypatch.setattr(exporting, "_write", lambda model, draft, forms: (draft / "model.json").write_text("new"))
    dear.export_onnx(model, place / "out", overwrite=True)
    assert [path.name for path in (place / "out").iterdir()] == ["model.json"]


def test_a_missing_extra_is_one_sentence(model, monkeypatch, tmp_path):
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None if name == "onnxruntime" else sys)
    with pytest.raises(MissingExtraError, match=r'needs onnxruntime: pip install "dear-vlm\[onnx\]"'):
        dear.export_onnx(model, tmp_path / "out")
