"""A training that ends unusable fails and saves nothing; one that ends worse than plain CLIP is a warning."""

import json
import re
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

import dear
from dear.engine.job import make_job
from dear.engine.outcome import CHANCE, COMPARED, check_outcome, is_clearly_worse
from dear.engine.run import run_job
from dear.errors import DearWarning, TrainingError
from dear.methods import plugins, registry
from dear.model.artefact import MANIFEST, TENSORS

DIVERGING = ("--method", "coop", "--lr", "1e30", "--epochs", 2, "--batch-size", 64, "--shots", 1, "--no-cache")
"""Two steps: one of the warm-up, and one whose update makes every later score infinite."""
SHORT = dear.TrainSettings(epochs=2, batch_size=64)
UNUSABLE = "After training, the model's scores are not finite, so no adapter is saved: "
CODE = """
from math import inf
import dear


@dear.register
class Changed(dear.Method):
    name = "changed_for_a_test"
    recipe = dear.Recipe(epochs=0)
    factor = -1.0

    def begin(self, clip, draw):
        self.seen = True  # methods without steps look at the images

    def forward(self, clip, image, text, batch=None):
        out = super().forward(clip, image, text, batch)
        return dear.Output({"logits": out.logits * self.factor})


@dear.register
class Broken(Changed):
    name = "broken_for_a_test"
    factor = inf
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder with a file of two methods without steps: one inverts all scores, one makes them infinite."""
    (tmp_path / "two.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("changed_for_a_test", "broken_for_a_test"):
        registry._REGISTERED.pop(name, None)
    plugins._IMPORTED.clear()
    sys.modules.pop("two", None)


def content_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.suffix != ".lock"}


def test_a_diverged_training_fails_and_saves_no_adapter(dear_, place):
    for more in ((), ("--resume",)):
        code, out, err = dear_("train", "world-textures", *DIVERGING, "--out", "run", *more)
        assert (code, out) == (2, "")
        assert err.splitlines()[-1] == f"dear: {UNUSABLE}lower the learning rate and train again."
        assert not (place / "run" / MANIFEST).exists()
        assert not (place / "run" / TENSORS).exists()


def test_a_diverged_training_leaves_the_adapter_before_it_alone(dear_, place):
    good = [1e-3 if word == "1e30" else word for word in DIVERGING]
    assert dear_("train", "world-textures", *good, "--out", "run")[0] == 0
    before = content_of(place / "run")
    assert dear_("train", "world-textures", *DIVERGING, "--out", "run", "--overwrite")[0] == 2
    assert content_of(place / "run") == before
    assert dear_("train", "world-textures", *good, "--out", "run", "--overwrite")[0] == 0
    assert "The trained model" not in dear_("train", "world-textures", *good, "--out", "run", "--overwrite")[2]


def test_python_raises_the_same_sentence(place):
    rate = SHORT.model_copy(update={"lr": 1e30})
    for out in (None, "run"):
        with pytest.raises(TrainingError, match=re.escape(UNUSABLE)):
            dear.fit("world-textures", method="coop", shots=1, train=rate, out=out)
    assert not (place / "run" / MANIFEST).exists()


def test_methods_without_steps_are_checked_too(dear_, place):
    words = ("--shots", 4, "--import", "two.py")
    code, _, err = dear_("train", "world-textures", "--method", "broken_for_a_test", "--out", "run", *words)
    assert code == 2
    assert f"{UNUSABLE}check the images, or change the method's settings." in err
    code, _, err = dear_("train", "world-textures", "--method", "changed_for_a_test", "--out", "other", *words)
    assert code == 0
    (line,) = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert re.fullmatch(
        r"warning: The trained model classifies \d+ of 64 training images correctly, plain CLIP \d+: "
        r"try other settings, or another method\.",
        line,
    )
    with pytest.warns(DearWarning, match="The trained model classifies") as caught:
        dear.fit("world-textures", method="changed_for_a_test", shots=4)
    assert len(caught) == 1


def test_a_grid_checks_scores_and_prints_no_warning(dear_, place):
    words = ("bench", "few-shot", "--data", "world-textures", "--shots", 4, "--seeds", 1, "--import", "two.py")
    code, _, err = dear_(*words, "--methods", "broken_for_a_test", "--out", "one")
    assert code == 2
    assert UNUSABLE in err
    assert not list((place / "one" / "cells").iterdir())
    code, _, err = dear_(*words, "--methods", "changed_for_a_test", "--out", "two")
    assert code == 0, err
    assert "The trained model" not in err


@pytest.mark.parametrize("compare", [True, False])
def test_the_check_reads_few_images_and_changes_no_number(monkeypatch, compare):
    clip = dear.load_clip("world")
    job = make_job(dear.open_dataset("world-textures"), shots=16, seed=1, method="coop", train=SHORT)
    seen = []
    batches = dear.engine.outcome.image_batches

    def counted(images, *more, **how):
        seen.extend(images.names)
        return batches(images, *more, **how)

    monkeypatch.setattr("dear.engine.outcome.image_batches", counted)
    random = torch.get_rng_state()
    model, _ = run_job(job, clip, on_warning=pytest.fail if compare else None)
    assert len(seen) == len(set(seen)) == (COMPARED if compare else 0)  # scores of the last batch are checked as it is
    labels = {item.id: item.label for item in job.items}
    assert len({labels[name] for name in seen}) == (min(COMPARED, len(job.class_names)) if compare else 0)
    assert torch.equal(torch.get_rng_state(), random)
    monkeypatch.setattr("dear.engine.run.check_outcome", lambda *_, **__: None)
    unchecked, _ = run_job(job, clip)
    for name, tensor in unchecked.method.state_dict().items():
        assert torch.equal(tensor, model.method.state_dict()[name])


def test_other_processes_read_nothing_and_fail_with_the_first(monkeypatch):
    clip = dear.load_clip("world")
    job = make_job(dear.open_dataset("world-textures"), shots=1, seed=1, method="coop")
    monkeypatch.setattr("dear.engine.outcome.image_batches", pytest.fail)
    for finite in (True, False):
        ranks = SimpleNamespace(is_first=False, gather=lambda text, first=finite: [json.dumps(first), text])
        with nullcontext() if finite else pytest.raises(TrainingError, match=re.escape(UNUSABLE)):
            check_outcome(job, job.build(clip), job.items, ranks, None, workers=0, on_warning=pytest.fail)


def test_clearly_worse_is_what_chance_hardly_does():
    assert not is_clearly_worse(0, 0)
    assert not is_clearly_worse(9, 0)  # 1 in 512
    assert is_clearly_worse(10, 0)  # 1 in 1,024
    assert not is_clearly_worse(20, 10)
    assert is_clearly_worse(40, 10)
    assert not is_clearly_worse(10, 40)
    assert CHANCE < 1 / 512
