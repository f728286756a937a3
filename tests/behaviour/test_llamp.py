"""LLaMP beyond the suite of all methods: descriptions, other language models than Llama, and one that has moved."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import dear
from dear.cli import app
from dear.data.prompts import class_list
from dear.errors import ConfigError
from dear.methods.llamp import LARGEST_SCALE
from dear.methods.parts import language
from dear.methods.parts.language import load_language_model
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


def test_without_a_language_model(clip, tmp_path):
    """The control of comparisons: all classes have the same rows, nothing of a language model is trained or stored."""
    model = build("llamp", clip, NAMES, lm="none")
    names = {name.partition(".")[0] for name, _ in model.method.named_parameters()}
    assert "llm_prompt_bias" in names
    assert not names & {"class_token", "decoder", "norm", "text_proj"}
    move_parameters(model)
    rows = model.method.class_rows(None, 3)[0]
    assert torch.equal(rows[0], rows[2])
    images = plain_images(clip, 2)
    model.save_pretrained(tmp_path / "run")
    with torch.no_grad():
        assert torch.equal(dear.load(tmp_path / "run", clip)(images).logits, model(images).logits)
    with pytest.raises(ConfigError, match="another language model"):
        dear.load(tmp_path / "run", clip, moved={"lm": tiny_lm()})


def test_half_precision_reads_as_fp32_on_a_cpu(clip, tmp_path):
    """Both give the same hash and the same keys up to the weights' rounding."""
    half = tmp_path / "half"
    shutil.copytree(tiny_lm(), half)
    state = {name: one.half() for name, one in load_file(half / "model.safetensors").items()}
    save_file(state, half / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((half / "config.json").read_text())
    (half / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))
    lm = load_language_model(str(half))
    before = lm.sha256()
    ids, mask = lm.tokenize(["a cat", "a dog"])
    found = lm.remember(ids, mask, 1, torch.device("cpu"))
    assert found.layers[0][0].dtype == torch.float32
    assert lm.sha256() == before
    whole = load_language_model(tiny_lm()).remember(ids, mask, 1, torch.device("cpu"))
    assert torch.allclose(found.layers[0][0], whole.layers[0][0], atol=1e-2)


def test_the_same_texts_are_read_once(monkeypatch):
    lm, device, runs = load_language_model(tiny_lm()), torch.device("cpu"), []
    read = lm.read
    monkeypatch.setattr(lm, "_recent", {})
    monkeypatch.setattr(lm, "read", lambda *inputs: runs.append(inputs) or read(*inputs))
    cats, dogs = lm.tokenize(["a cat", "a dog"]), lm.tokenize(["a dog", "a cat"])
    for texts, count in ((cats, 1), (cats, 1), (dogs, 1), (dogs, 2)):
        again, fresh = lm.remember(*texts, count, device), read(*texts, count, device)
        for one, other in zip(again.layers, fresh.layers, strict=True):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[1], other[1])
    assert len(runs) == 3  # the second of the four was stored
    monkeypatch.setattr(language, "RECENT_BYTES", 1)
    lm.remember(*lm.tokenize(["a bird"]), 1, device)
    assert lm._recent == {}  # nothing is stored that is larger than allowed


def test_cards_and_cells_name_the_language_model_without_its_folder(tiny_folders, tmp_path):
    """`lm` is often a local path: files that people share have its name and size only."""
    shutil.copytree(tiny_lm(), tmp_path / "private" / "SomeLM-1B")
    photos, out = make_photos(tmp_path / "photos", ["cat", "dog"], 4), tmp_path / "grid"
    found = dear.compare(
        photos,
        f"local-dir:{tiny_folders['plain']}",
        pretrained="random",
        methods=["llamp"],
        set={"lm": [str(tmp_path / "private" / "SomeLM-1B"), "none"], "paraphrases": [2]},
        epochs=1,
        shots=1,
        seeds=[1],
        out=out,
    )
    named = "language model: SomeLM-1B (2 layers of width 16)"
    assert {row.variant for row in found.rows} == {"lm=SomeLM-1B,paraphrases=2", "lm=none,paraphrases=2"}
    assert sorted(found.marks) == sorted(
        [
            "uses more than labelled photos: a language model",
            named,
            "language model: none",
            *(text for text in found.marks if text.startswith("trained with")),
        ]
    )
    for path in (
        *out.glob("compare.*"),
        *out.glob("table.*"),
        *out.glob("cells/*.json"),
        *out.glob("runs/*/README.md"),
    ):
        assert "private" not in path.read_text(), path
    assert named in (out / "compare.md").read_text()
    assert "language model SomeLM-1B (2 layers of width 16)." in (out / "table.md").read_text()
    cards = [path.read_text() for path in out.glob("runs/*SomeLM*/README.md")]
    assert len(cards) == 1
    assert "| language model | SomeLM-1B (2 layers of width 16) |" in cards[0]


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
