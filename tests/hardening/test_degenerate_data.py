"""Data that carries no information, and rates that are far too high: a usable adapter or one sentence, never NaN."""

import pytest
from PIL import Image

import dear
from dear.errors import DearError
from helpers import SPECIAL_CONFIGS

METHODS = ("coop", "dear", "maple", "clip_lora", "tip_adapter_f", "linear_probe", "gda", "clap")
"""One of each kind: words, tokens, both towers, low rank, caches, probes, closed form."""


def photos_of(folder, kind):
    """Three classes of identical photos, of one photo each, or of noise."""
    for name in ("ant", "bee", "cow"):
        (folder / name).mkdir(parents=True)
        for number in range(1 if kind == "one photo" else 3):
            gray = Image.new("RGB", (30, 30), (7, 7, 7))
            noise = Image.effect_noise((30, 30), 60 + number).convert("RGB")
            (gray if kind == "identical" else noise).save(folder / name / f"{number}.png")
    return folder


def finite_or_refused(data, clip, out, **options):
    """Train, load and predict; False if it was refused in one sentence."""
    settings = {"shots": 2, "epochs": 2, "batch_size": 4, "test_share": 0.0, "cache": out / "cache"}
    try:
        model = dear.fit(
            data, clip, out=out / "run", **{**settings, **SPECIAL_CONFIGS.get(options["method"], {}), **options}
        )
    except DearError as error:
        said = str(error)
    else:
        states = [one for one in model.state_dict().values() if one.is_floating_point()]
        assert all(bool(one.isfinite().all()) for one in states)
        found = dear.load(out / "run", clip).predict(sorted(data.rglob("*.png")))
        assert all(0 <= probability <= 1.0001 for one in found for _, probability in one.top)
        return True
    assert "\n" not in said
    return False


@pytest.mark.parametrize("kind", ["identical", "one photo"])
@pytest.mark.parametrize("method", METHODS)
def test_photos_without_information(tiny_clips, tmp_path, method, kind):
    assert finite_or_refused(photos_of(tmp_path / "photos", kind), tiny_clips["shallow"], tmp_path, method=method)


@pytest.mark.parametrize("method", METHODS)
def test_a_rate_of_ten(tiny_clips, tmp_path, method):
    photos = photos_of(tmp_path / "photos", "noise")
    finite_or_refused(photos, tiny_clips["shallow"], tmp_path, method=method, lr=10.0, warmup_epochs=0)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_on_a_cpu(tiny_clips, tmp_path, precision):
    photos = photos_of(tmp_path / "photos", "noise")
    finite_or_refused(photos, tiny_clips["shallow"], tmp_path, method="coop", precision=precision)


def test_one_class_is_refused(tiny_clips, tmp_path):
    photos = photos_of(tmp_path / "photos", "noise")
    for name in ("bee", "cow"):
        for image in (photos / name).iterdir():
            image.unlink()
        (photos / name).rmdir()
    assert not finite_or_refused(photos, tiny_clips["shallow"], tmp_path, method="coop")
