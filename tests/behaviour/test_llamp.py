"""LLaMP beyond the suite of all methods: descriptions, other language models than Llama, and one that has moved."""

import json
import shutil

import pytest
import torch
from typer.testing import CliRunner

import dear
from dear.cli import app
from dear.data.prompts import class_list
from dear.errors import ConfigError
from dear.methods.llamp import LARGEST_SCALE
from helpers import build, make_photos, move_parameters, plain_images
from tiny_lm import tiny_lm

NAMES = ["cat", "hot air balloon", "dog"]
DESCRIPTIONS = {"cat": ("It purrs.", "It has whiskers."), "dog": ("It barks.",)}


def test_descriptions_are_read_by_the_language_model_and_by_the_targets(clip):
    bare = build("llamp", clip, NAMES)
    described = bare.for_classes(NAMES, descriptions=DESCRIPTIONS)
    method = bare.method
    one, other = method.language_inputs(described.classes)
    assert one[0].shape[1] > method.language_inputs(bare.classes)[0][0].shape[1]
    text = method._lm._tokenizer.decode(one[0][0][one[1][0].bool()].tolist())
    assert text.endswith("The cat appears asIt purrs.")
    assert "whiskers" in method._lm._tokenizer.decode(other[0][0].tolist())  # the next paraphrase has the next sentence
    targets, plain = method.targets(clip, described.classes), method.targets(clip, bare.classes)
    assert not torch.allclose(targets[0], plain[0], atol=1e-3)
    assert torch.equal(targets[1], plain[1])  # it has no description
    images = plain_images(clip, 2)
    with torch.no_grad():
        assert not torch.allclose(described(images).logits, bare(images).logits, atol=1e-6)


@pytest.mark.parametrize("kind", ["mistral", "qwen2"])
def test_other_language_models(clip, tmp_path, kind):
    model = build("llamp", clip, NAMES, lm=tiny_lm(kind=kind))
    names = [name for name, _ in model.method.decoder.named_parameters()]
    assert any(name.endswith("bias") for name in names) == (kind == "qwen2")
    move_parameters(model)
    images = plain_images(clip, 2)
    text = model.method.text(clip, model.method.classes(clip, model.classes))
    gradients = torch.autograd.grad(text["classes"].square().sum() + text["each"].sum(), model.method.class_token)
    assert all(float(gradient.abs().max()) > 0 for gradient in gradients)
    model.save_pretrained(tmp_path / "run")
    with torch.no_grad():
        assert torch.equal(dear.load(tmp_path / "run", clip)(images).logits, model(images).logits)


def test_a_language_model_that_has_moved(clip, tmp_path):
    old, new, run = tmp_path / "old", tmp_path / "new", tmp_path / "run"
    shutil.copytree(tiny_lm(), old)
    model = build("llamp", clip, NAMES, lm=str(old))
    move_parameters(model)
    model.save_pretrained(run)
    old.rename(new)
    with pytest.raises(ConfigError, match=r"not at '.*old' any more: put it back, or load with .* moved="):
        dear.load(run, clip)
    found, images = dear.load(run, clip, moved={"lm": new}), plain_images(clip, 2)
    with torch.no_grad():
        assert torch.equal(found(images).logits, model(images).logits)
    found.save_pretrained(tmp_path / "again")
    assert dear.load(tmp_path / "again", clip).method.config.lm == str(new)
    with pytest.raises(ConfigError, match="another language model"):
        dear.load(run, clip, moved={"lm": tiny_lm(seed=6)})
    with pytest.raises(ConfigError, match=r"moved has teacher, but only lm of llamp can have moved: leave it out\."):
        dear.load(run, clip, moved={"teacher": new})


def test_a_relative_folder_is_found_from_anywhere(clip, tmp_path, monkeypatch):
    shutil.copytree(tiny_lm(), tmp_path / "lm")
    monkeypatch.chdir(tmp_path)
    model = build("llamp", clip, NAMES, lm="lm")
    assert model.method.config.lm == str(tmp_path / "lm")


def test_trained_by_command_with_descriptions(tiny_folders, tmp_path):
    photos, file = make_photos(tmp_path / "photos", ["cat", "dog"], 3), tmp_path / "descriptions.json"
    file.write_text(json.dumps({name: list(DESCRIPTIONS[name]) for name in ("cat", "dog")}))
    backbone = ["--clip", f"local-dir:{tiny_folders['plain']}", "--pretrained", "random"]
    chosen = ["--method", "llamp", "--set", f"lm={tiny_lm()}", "--set", "paraphrases=2", "--descriptions", str(file)]
    words = ["train", str(photos), *backbone, *chosen, "--epochs", "1", "--shots", "1", "--out", str(tmp_path / "run")]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    assert dear.load(tmp_path / "run").classes.descriptions == {name: DESCRIPTIONS[name] for name in ("cat", "dog")}


def test_a_long_description_is_cut(clip):
    """The class name is not at fault, so it must not be blamed."""
    model = build("llamp", clip, NAMES, lm=tiny_lm(), paraphrases=2)
    described = class_list(NAMES, "a photo of a {}.", descriptions=dict.fromkeys(NAMES, ("very long " * 60,)))
    assert model.method.targets(clip, described).shape == (len(NAMES), clip.geometry.embed_dim)


@pytest.mark.parametrize("start", [-1.0, 0.0, 3.0, 4.605, 9.0])
def test_the_temperature_trains_as_if_clamped_before_each_step(clip, start):
    """The published code clamps the parameter before the forward pass; `before_update` must give the same bits."""

    def trained(clamp_first):
        model, images, seen = build("llamp", clip, NAMES), plain_images(clip, 3), []
        scale = model.method.logit_scale
        optimiser = torch.optim.AdamW(model.trainable().values(), lr=0.5, weight_decay=0.1)
        with torch.no_grad():
            scale.fill_(start)
        for _ in range(3):
            if clamp_first:
                with torch.no_grad():
                    scale.clamp_(0, LARGEST_SCALE)
            optimiser.zero_grad()
            model.loss(images, torch.tensor([0, 1, 2]))["total"].backward()
            model.method.before_update()
            optimiser.step()
            seen.append((scale.item(), scale.grad.item()))
        return seen

    assert trained(clamp_first=False) == trained(clamp_first=True)
