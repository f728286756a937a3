"""Several labels per image: probabilities of single labels by a sigmoid model's own temperature and bias."""

import csv
import json

import pytest
import torch
from PIL import Image

import dear
from dear import errors
from dear.model.calibration import fit_calibration
from helpers import build, make_photos, move_parameters, varied_roles
from random_weights import save_weights
from tiny_towers import noisy, write_folder

CLASSES = ["ant", "bee", "cat", "dog"]
BIAS, SCALE = -1.5, 2.0


@pytest.fixture(scope="module")
def siglip(tmp_path_factory) -> dear.FrozenClip:
    """A tiny SigLIP by the real loader, from saved weights with a bias and a temperature of its own."""
    folder = write_folder(tmp_path_factory.mktemp("siglip"), "siglip", "siglip")
    path = folder / "open_clip_config.json"
    config = json.loads(path.read_text())
    config["model_cfg"] |= {"init_logit_bias": -10}
    path.write_text(json.dumps(config))
    clip = dear.load_clip(f"local-dir:{folder}", "random")
    assert clip.bias == -10
    noisy(clip.model, seed=3)
    with torch.no_grad():
        clip.model.logit_scale.fill_(SCALE)
        clip.model.logit_bias.fill_(BIAS)
    save_weights(clip.model.state_dict(), folder / "open_clip_model.safetensors")
    return dear.load_clip(f"local-dir:{folder}")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return sorted(make_photos(tmp_path_factory.mktemp("photos"), CLASSES, 2).rglob("*.png"))


@pytest.fixture(scope="module")
def cosines(siglip, photos):
    """By hand: (B, C) cosines of open_clip's own features."""
    images = torch.stack([siglip.preprocess_eval(Image.open(path)) for path in photos])
    return siglip.encode_image(images) @ siglip.encode_text([f"a photo of a {name}." for name in CLASSES]).T


@pytest.fixture(scope="module")
def between(cosines):
    """A threshold in the largest gap near the middle of all probabilities, so that images differ in their labels."""
    values = (torch.tensor(SCALE).exp() * cosines + BIAS).sigmoid().flatten().sort().values
    middle = values[len(values) // 4 : -len(values) // 4]
    place = int(middle.diff().argmax())
    return float(middle[place : place + 2].mean())


def test_probabilities_are_the_models_own(siglip, photos, cosines, between):
    assert siglip.bias == pytest.approx(BIAS)
    assert siglip.temperature == pytest.approx(float(torch.tensor(SCALE).exp()))
    expected = (torch.tensor(SCALE).exp() * cosines + BIAS).sigmoid()
    model = build("zero_shot", siglip, CLASSES)
    found = model.predict(photos, multi_label=True, threshold=between, top_k=2)
    for one, row in zip(found, expected, strict=True):
        by_hand = sorted(zip(CLASSES, row.tolist(), strict=True), key=lambda pair: -pair[1])
        above = [pair for pair in by_hand if pair[1] >= between]
        assert [name for name, _ in one.labels] == [name for name, _ in above]
        assert [p for _, p in one.labels] == pytest.approx([p for _, p in above], abs=1e-5)
        assert one.top[0] == (one.label, one.probability)
        assert [p for _, p in one.top] == pytest.approx([p for _, p in by_hand[:2]], abs=1e-5)
    assert 0 < sum(len(one.labels) for one in found) < len(photos) * len(CLASSES)
    softmax = model.predict(photos)
    assert all(one.labels is None and "labels" not in one.as_dict() for one in softmax)
    assert softmax[0].probability != pytest.approx(found[0].probability, abs=1e-3)


def test_a_label_does_not_depend_on_the_others(siglip, photos):
    model = build("zero_shot", siglip, CLASSES)
    (alone,) = model.predict(photos[0], ["bee"], multi_label=True, threshold=0)
    (among,) = model.predict(photos[0], multi_label=True, threshold=0)
    assert alone.probability == pytest.approx(dict(among.labels)["bee"], abs=1e-6)
    assert len(among.labels) == 4


def test_an_adapted_model_adds_the_bias_to_the_chosen_readout(siglip, photos):
    model = dear.DeAR(siglip, varied_roles(siglip)).for_classes(CLASSES)
    move_parameters(model)
    images = torch.stack([siglip.preprocess_eval(Image.open(path)) for path in photos])
    with torch.no_grad():
        out = model(images)
    for readout in ("fusion", "decoupled"):
        found = model.predict(photos, multi_label=True, threshold=0, readout=readout)
        for one, row in zip(found, out.readouts[readout], strict=True):
            expected = dict(zip(CLASSES, (row + BIAS).sigmoid().tolist(), strict=True))
            assert dict(one.labels) == pytest.approx(expected, abs=1e-5)


def test_the_threshold_is_one_half(siglip, photos, cosines):
    model = build("zero_shot", siglip, CLASSES)
    expected = (torch.tensor(SCALE).exp() * cosines + BIAS > 0).sum(1).tolist()
    assert {*expected} > {0}
    assert [len(one.labels) for one in model.predict(photos, multi_label=True)] == expected


def test_what_is_refused(clip, siglip, photos):
    plain = build("zero_shot", clip, CLASSES)
    with pytest.raises(errors.BackboneError) as error:
        plain.predict(photos, multi_label=True)
    assert "a probability of each label can only be fitted on labelled photos" in str(error.value)
    assert "dear calibrate RUN" in str(error.value)
    assert "leave out multi_label=True, run 'dear calibrate RUN' first, or train on a CLIP with a sigmoid loss" in str(
        error.value
    )
    probe = build("linear_probe", siglip, CLASSES)
    with pytest.raises(errors.ConfigError, match="scores of linear_probe are not cosines with texts"):
        probe.predict(photos, multi_label=True)
    with probe.disabled():
        assert len(probe.predict(photos[0], multi_label=True, threshold=0)[0].labels) == 4
    model = build("zero_shot", siglip, CLASSES)
    with pytest.raises(errors.ConfigError, match="use it with multi_label=True"):
        model.predict(photos, threshold=0.4)
    for wrong in (1, -0.1, float("nan"), "0.5", True):
        with pytest.raises(errors.ConfigError, match="give a number from 0 to less than 1"):
            model.predict(photos, multi_label=True, threshold=wrong)
    with pytest.raises(errors.ConfigError, match="multi_label is 'yes': give True or False"):
        model.predict(photos, multi_label="yes")


def test_a_readout_that_is_not_calibrated_is_refused(model, photos):
    """Without a fit, a softmax CLIP has no probability of a single label, whatever another readout has."""
    generator = torch.Generator().manual_seed(0)
    model.calibration = fit_calibration(torch.randn(40, 3, generator=generator), torch.arange(40) % 3, "shots")
    (own,) = model.predict(photos[0], multi_label=True, threshold=0)
    assert model.predict(photos[0], multi_label=True, threshold=0, readout="fusion") == [own]
    with pytest.raises(errors.BackboneError, match="fitted on labelled photos, for the run's own classes and readout"):
        model.predict(photos[0], multi_label=True, threshold=0, readout="decoupled")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--threshold 0.4", "--threshold is the least probability of a label: use it with --multi-label or --reject."),
        ("--multi-label --threshold 1", "--threshold is 1.0: give a number from 0 to less than 1."),
        (
            "--multi-label --sort-into sorted",
            "--sort-into puts an image into the folder of one class, but with --multi-label it can have several "
            "labels: write a table with --out FILE instead.",
        ),
    ],
)
def test_bad_options_are_one_sentence(dear_, words, sentence):
    assert dear_("predict", "run", "a.png", *words.split()) == (2, "", f"dear: {sentence}\n")


def test_on_the_command_line(siglip, clip, photos, between, dear_, tmp_path):
    model = build("zero_shot", siglip, CLASSES)
    model.save_pretrained(tmp_path / "run")
    options = ["predict", tmp_path / "run", *photos, "--multi-label", "--threshold", between]
    expected = model.predict(photos, multi_label=True, threshold=between, top_k=3)
    code, stdout, _ = dear_(*options)
    assert code == 0
    assert stdout.splitlines() == [f"{one.image}: {one.text()}" for one in expected]
    code, stdout, _ = dear_(*options, "--json")
    found = [json.loads(line) for line in stdout.splitlines()]
    assert [[tuple(pair) for pair in one["labels"]] for one in found] == [list(one.labels) for one in expected]
    code, stdout, _ = dear_(*options, "--out", tmp_path / "labels.csv")
    rows = list(csv.DictReader((tmp_path / "labels.csv").open()))
    for row, one in zip(rows, expected, strict=True):
        names = [row[key] for key in row if key.startswith("label") and row[key]]
        assert names == [name for name, _ in one.labels]
        assert None not in row
        assert None not in row.values()
    assert dear.predict(model, photos, multi_label=True, threshold=between) == expected
    build("zero_shot", clip, CLASSES).save_pretrained(tmp_path / "plain")
    code, stdout, stderr = dear_("predict", tmp_path / "plain", photos[0], "--multi-label")
    assert (code, stdout, stderr.count("\n")) == (2, "", 1)
    assert "leave out --multi-label, run 'dear calibrate RUN' first, or train on" in stderr


def test_none_of_these(siglip, photos, dear_, tmp_path):
    model = build("zero_shot", siglip, CLASSES)
    (one,) = dear.predict(model, photos[0], multi_label=True, threshold=0.999, out=tmp_path / "labels.csv")
    assert one.labels == ()
    assert one.text() == f"none of these (likeliest: {one.label} {100 * one.probability:.1f} %)"
    assert repr(one).endswith(": none of these)")
    assert (tmp_path / "labels.csv").read_text().splitlines() == ["image,label,probability", f"{photos[0]},,"]
