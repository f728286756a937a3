"""Every method against the numbers of its published code, and proof that each comparison can fail.

The files are in `tests/vectors/data`; `make vectors FOLDER=DIR` runs the same comparison on others.
"""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dear.model.load import restore
from helpers import build, plain_images
from vectors.__main__ import OWN, check
from vectors.compare import compare, compare_in, read_pair
from vectors.readers import READERS, SPOILT, reader_of
from vectors.tiny_clip import tiny_clip

PATHS = sorted(OWN.glob("*.safetensors"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_agrees_with_the_published_code(path):
    reader = reader_of(read_pair(path)[0])
    assert reader is not None
    differences, unread = compare(path, reader)
    assert [d for d in differences if not d.fits] == []
    assert unread == []


@pytest.mark.parametrize(("stem", "mistake"), [(stem, m) for stem in SPOILT for m in SPOILT[stem]])
def test_a_mistake_is_noticed(stem, mistake, monkeypatch):
    path = OWN / f"{stem}.safetensors"
    SPOILT[stem][mistake](monkeypatch)
    differences, _ = compare_in(torch.float64, path, reader_of(read_pair(path)[0]))  # what decides in the end
    assert [d for d in differences if not d.fits]


def test_every_file_has_a_mistake_that_it_notices():
    assert {path.stem for path in PATHS} == set(SPOILT)


def test_unknown_methods_and_wrong_numbers_fail(tmp_path):
    for suffix in (".json", ".safetensors"):
        shutil.copy((OWN / "coop").with_suffix(suffix), tmp_path / f"coop{suffix}")
        shutil.copy((OWN / "coop").with_suffix(suffix), tmp_path / f"nobody{suffix}")
    text = (tmp_path / "nobody.json").read_text()
    (tmp_path / "nobody.json").write_text(text.replace('"name": "coop"', '"name": "nobody"'))
    assert check(tmp_path / "coop.safetensors")[0]
    assert check(tmp_path / "nobody.safetensors") == (
        False,
        f"{'nobody':24} FAILED: no method of this name is known",
    )
    command = [sys.executable, "-m", "vectors", str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "1 passed, 1 failed"


def test_every_reader_has_a_file():
    assert {read_pair(path)[0]["name"] for path in PATHS} >= set(READERS)


@torch.no_grad()
def test_words_of_twelve_layers_are_in_the_order_of_layers():
    """A dictionary of parameters sorts its names as text, 10 before 2: MaPLe must not."""
    clip = tiny_clip()
    maple = build("maple", clip, ["cat", "dog"], depth=12)
    plain = build("ivlp", clip, ["cat", "dog"])
    rows = {"vision_prompts": maple.method.image_rows(), "text_prompts": [maple.method.ctx]}
    rows["text_prompts"] += [maple.method.deep_text[str(layer)] for layer in range(1, 12)]
    for layer in range(1, 12):
        own = maple.method.deep_proj[str(layer)](maple.method.deep_text[str(layer)])
        assert torch.equal(rows["vision_prompts"][layer], own)
    restore(plain.method, {f"{name}.{at}": row for name, each in rows.items() for at, row in enumerate(each)})
    assert torch.allclose(maple(plain_images(clip, 2)).logits, plain(plain_images(clip, 2)).logits, atol=1e-4)


def case_of(stem, settings=None, numbers=None, **facts):
    """The case of a file in which some settings, numbers and facts are others."""
    changed, tensors = read_pair(OWN / f"{stem}.safetensors")
    changed = {**changed, **facts, "settings": changed["settings"] | (settings or {})}
    tensors |= numbers or {}
    return reader_of(changed)(changed, tensors), tensors


def test_optimisers_are_those_that_a_file_names():
    assert (read := case_of("coop")[0].recipe).decay == 5e-4
    assert (read.optimiser, read.momentum, read.lr) == ("sgd", 0.9, 2e-3)
    read = case_of("coop", {"optimiser": "sgd momentum 0.8 weight_decay 1e-2", "lr": 0.1})[0].recipe
    assert (read.optimiser, read.momentum, read.decay, read.lr) == ("sgd", 0.8, 1e-2, 0.1)
    read = case_of("tcp", {"optimiser": "adam eps 1e-8 weight_decay 0"})[0].recipe
    assert (read.optimiser, read.eps, read.decay) == ("adam", 1e-8, 0)
    second = {"optimizer": "SGD, momentum 0.5, weight decay 1e-3", "lr": 0.1, "loss": 1.0}
    read = case_of("mmrl", second_step=second)[0].recipe
    assert (read.optimiser, read.momentum, read.decay, read.lr) == ("sgd", 0.5, 1e-3, 0.1)


@pytest.mark.parametrize("wrong", [{"betas": (0.9, 0.99)}, {"eps": 9e-4}, {"decay": 0.0}, {"optimiser": "adamw"}])
def test_tcp_steps_by_a_nearly_right_optimiser_are_noticed(wrong):
    """The allowance for roundings must not hide one."""

    def reader(facts, tensors):
        case = reader_of(facts)(facts, tensors)
        return replace(case, recipe=case.recipe.model_copy(update=wrong))

    differences, _ = compare(OWN / "tcp.safetensors", reader)
    assert any(d.kind == "step2" and not d.fits for d in differences)


@pytest.mark.parametrize("bears", [True, False])
def test_terms_of_a_loss_bear_their_weight_or_do_not(bears):
    numbers = {"ce": 1.0, "ref": 1.0 if bears else 2.0, "total": 2.0}
    numbers = {f"loss/{name}": torch.tensor(value) for name, value in numbers.items()}
    assert case_of("provp", {"lam": 0.5}, numbers)[1]["loss/ref"] == 1.0


def test_terms_of_weight_zero_are_not_compared():
    assert "loss/ref" not in case_of("provp", {"lam": 0.0})[1]
    assert "loss/kg" not in case_of("tcp", {"kg_weight": 0.0})[1]


def test_no_image_rows_and_words_with_underscores():
    assert case_of("ivlp", {"n_ctx_vision": 0, "prompt_depth_vision": 0})[0].config["image_context"] == 1
    assert case_of("coop", {"ctx_init": "a_photo_of_a"})[0].config["words"] == "a photo of a"
