"""Temperature, threshold and label probabilities: against known answers, and in the adapter's file."""

import json

import pytest
import torch
from sklearn.linear_model import LogisticRegression

import dear
from dear.errors import CorruptArtefactError
from dear.model.calibration import BINS, calibration_error, fit_calibration, fit_labels, fit_temperature


@pytest.fixture(scope="module")
def answers():
    """Logits that are four times too large, and labels sampled from the true ones."""
    generator = torch.Generator().manual_seed(0)
    true = 2 * torch.randn(4000, 10, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(true.softmax(1), 1, generator=generator)[:, 0]
    return 4 * true, labels


def test_the_temperature_undoes_a_known_factor(answers):
    logits, labels = answers
    assert fit_temperature(logits, labels) == pytest.approx(4, rel=0.05)
    assert fit_temperature(logits / 40, labels) == pytest.approx(0.1, rel=0.05)


def test_calibration_lowers_the_error_and_rejects_one_in_twenty(answers):
    logits, labels = answers
    found = fit_calibration(logits, labels, "shots")
    assert found.ece_before > 0.3
    assert found.ece_after < 0.03
    confidence = found.probabilities(logits).max(1).values
    assert float((confidence < found.reject_below).double().mean()) == pytest.approx(0.05, abs=0.001)
    assert fit_calibration(logits, labels, "shots") == found


def test_label_probabilities_are_a_logistic_regression(answers):
    logits, labels = answers
    y = torch.nn.functional.one_hot(labels, 10).flatten().numpy()
    expected = LogisticRegression(C=1e9, max_iter=1000).fit(logits.flatten()[:, None].numpy(), y)
    scale, bias = fit_labels(logits, labels)
    assert scale == pytest.approx(float(expected.coef_[0, 0]), rel=0.01)
    assert bias == pytest.approx(float(expected.intercept_[0]), rel=0.01)


def test_label_probabilities_stay_finite_where_one_logit_separates_all():
    logits = torch.full((40, 4), -10.0, dtype=torch.float64)
    labels = torch.arange(40) % 4
    logits[torch.arange(40), labels] = 10.0
    found = fit_calibration(logits, labels, "shots")
    assert torch.isfinite(torch.tensor([found.label_scale, found.label_bias, found.temperature])).all()
    assert bool((found.label_probabilities(logits).argmax(1) == labels).all())


def test_the_calibration_error_is_the_mean_gap_over_bins():
    confidence = torch.tensor([0.9, 0.9, 0.9, 0.9, 1.0])
    right = torch.tensor([True, True, True, False, True])
    assert BINS == 15  # 0.9 and 1.0 are in different bins
    assert calibration_error(confidence, right) == pytest.approx(4 / 5 * 0.15 + 0, abs=1e-6)


def test_an_adapter_stores_its_calibration_and_other_classes_have_none(model, answers, tmp_path):
    model.calibration = fit_calibration(answers[0][:, :3], answers[1] % 3, "validation")
    model.save_pretrained(tmp_path / "adapter")
    loaded = dear.load(tmp_path / "adapter", clip=model.clip)
    assert loaded.calibration == model.calibration
    assert loaded.for_classes(["cat", "dog", "hot air balloon"]).calibration == model.calibration
    assert loaded.for_classes(["cat", "dog"]).calibration is None


def test_an_adapter_without_a_calibration_is_written_as_before(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert "calibration" not in json.loads((tmp_path / "adapter_config.json").read_text())


@pytest.mark.parametrize("change", [{"temperature": -1.0}, {"temperature": "hot"}, {"reject_below": 2.0}, {"more": 1}])
def test_an_impossible_calibration_is_refused(model, answers, tmp_path, change):
    from dear.model.artefact import MANIFEST, Manifest

    model.calibration = fit_calibration(answers[0][:, :3], answers[1] % 3, "validation")
    model.save_pretrained(tmp_path)
    content = json.loads((tmp_path / MANIFEST).read_text())
    content["calibration"] |= change
    entries = {name: one for name, one in content.items() if name not in ("format", "format_version", "sha256")}
    (tmp_path / MANIFEST).write_text(Manifest.encode(entries))
    with pytest.raises(CorruptArtefactError):
        dear.load(tmp_path, clip=model.clip)
