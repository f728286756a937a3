"""Folders in transformers' format: the same features, hash, tokens and pixels, and one sentence for all others."""

import json
import shutil
import sys
from contextlib import suppress

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import dear
import tiny_towers  # noqa: F401  registers tiny_siglip
from dear.backbone.clip import content_hash
from dear.backbone.foreign import read_foreign
from dear.errors import BackboneError, DearError, MissingExtraError
from helpers import TINY_CONFIGS, varied_roles
from tiny_foreign import (
    WORDS,
    as_clip_model,
    clip_model,
    edit_config,
    edit_weights,
    siglip_model,
    write_images,
    write_shards,
    write_words,
)

TEXTS = ["a photo of a cat", "the hot air balloon", "A dog", "a photo of the hot air balloon of the cat of a dog x x x"]
MODELS = {
    "quick_gelu, eos 2": lambda: clip_model("quick_gelu", 2),
    "gelu, eos last": lambda: clip_model("gelu", 599),
    "gelu, eos elsewhere": lambda: clip_model("gelu", 590),
    "MetaCLIP 2": lambda: clip_model("quick_gelu", 2, kind="MetaClip2"),
    "SigLIP": siglip_model,
    "SigLIP, pixels beyond the last patch": lambda: siglip_model(image_size=34, intermediate_size=270),
}


def feature(output):
    return output if torch.is_tensor(output) else output.pooler_output


def difference(ours, theirs):
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A CLIPModel with a tokenizer of words and an image processor, written by transformers."""
    folder = tmp_path_factory.mktemp("clip") / "saved"
    clip_model("gelu", 2, kind="MetaClip2", vocab=len(WORDS)).save_pretrained(folder)
    write_words(folder)
    write_images(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "clip")


@pytest.fixture(scope="module")
def siglip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("siglip")
    siglip_model().save_pretrained(folder)
    write_words(folder, template="$A </s>")
    return folder


def refused(folder):
    with pytest.raises(DearError) as caught:
        dear.load_clip(f"local-dir:{folder}")
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    return said


@pytest.mark.parametrize("kind", MODELS)
def test_features_are_those_of_transformers(kind, tmp_path):
    theirs = MODELS[kind]()
    theirs.save_pretrained(tmp_path)
    ours = read_foreign("x", tmp_path).build(random=False).eval()
    size, vocab = ours.visual.image_size[0], ours.vocab_size
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(3, 3, size, size, generator=generator)
    ids = torch.randint(3, min(vocab, 580), (4, 16), generator=generator)
    config = theirs.config.text_config
    end = vocab - 1 if (theirs.config.model_type, config.eos_token_id) == ("clip", 2) else config.eos_token_id
    for row, place in enumerate((3, 7, 15, 9) if "SigLIP" not in kind else ()):
        ids[row, place], ids[row, place + 1 :] = end, 0
    with torch.no_grad():
        assert difference(ours.encode_image(images), feature(theirs.get_image_features(pixel_values=images))) <= 1e-6
        assert difference(ours.encode_text(ids), feature(theirs.get_text_features(input_ids=ids))) <= 1e-6
    assert ours.logit_scale == theirs.logit_scale
    if "SigLIP" in kind:
        assert ours.logit_bias == theirs.logit_bias


@pytest.mark.parametrize("quick", [True, False])
def test_the_same_weights_have_the_same_hash_and_share_adapters(quick, tiny_clips, images, tmp_path):
    config = TINY_CONFIGS["plain"] | {"quick_gelu": quick}
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    save_file(tiny_clips["plain"].model.state_dict(), tmp_path / "theirs" / "open_clip_model.safetensors")
    theirs = dear.load_clip(f"local-dir:{tmp_path / 'theirs'}")
    ours = dear.load_clip(f"local-dir:{as_clip_model(tmp_path / 'ours', theirs.model, config)}")
    assert ours.weights_sha256 == theirs.weights_sha256
    assert ours.geometry == theirs.geometry
    assert torch.equal(ours.encode_image(images), theirs.encode_image(images))
    assert torch.equal(ours.encode_text(TEXTS), theirs.encode_text(TEXTS))
    model = dear.DeAR(ours, varied_roles(ours)).for_classes(["cat", "dog"])
    adapter = model.save_pretrained(tmp_path / "adapter")
    for loaded in (dear.load(adapter), dear.load(adapter, clip=theirs)):
        with torch.no_grad():
            assert torch.equal(loaded(images).logits, model(images).logits)


def test_the_hash_of_siglip_is_that_of_open_clip(siglip, tmp_path):
    foreign = read_foreign("x", siglip)
    state = foreign.build(random=False).state_dict()
    config = foreign.config | {"vision_cfg": foreign.config["vision_cfg"] | {"timm_model_name": "tiny_siglip"}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    save_file({name: one.contiguous() for name, one in state.items()}, tmp_path / "open_clip_model.safetensors")
    model = open_clip.create_model(f"local-dir:{tmp_path}")
    assert content_hash(model.state_dict()) == content_hash(state)


def test_clips_need_no_transformers(tiny_clips, tmp_path, monkeypatch):
    folder = as_clip_model(tmp_path, tiny_clips["plain"].model, TINY_CONFIGS["plain"])
    for module in ("transformers", "tokenizers"):
        monkeypatch.setitem(sys.modules, module, None)
    clip = dear.load_clip(f"local-dir:{folder}")
    assert clip.weights_sha256 == tiny_clips["plain"].weights_sha256
    assert isinstance(clip.tokenizer, open_clip.SimpleTokenizer)
    write_config = json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})
    (folder / "tokenizer.json").write_text(write_config)
    with pytest.raises(MissingExtraError, match=r"needs the package tokenizers: pip install 'dear-vlm\[hf\]'\.$"):
        dear.load_clip(f"local-dir:{folder}")


@pytest.mark.parametrize("file", ["tokenizer.json", "merges.txt"])
def test_equal_merges_mean_the_tokenizer_of_open_clip(file, tiny_clips, tmp_path):
    folder = as_clip_model(tmp_path, tiny_clips["plain"].model, TINY_CONFIGS["plain"])
    plain = open_clip.SimpleTokenizer()
    special = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocab = {special.get(word, word): number for word, number in plain.encoder.items()}
    merges = [list(pair) for pair in plain.bpe_ranks]

    def write(vocab, merges):
        if file == "merges.txt":
            (folder / "vocab.json").write_text(json.dumps(vocab))
            (folder / file).write_text("\n".join(["#version: 0.2", *map(" ".join, merges)]))
        else:
            (folder / file).write_text(json.dumps({"model": {"type": "BPE", "vocab": vocab, "merges": merges}}))

    write(vocab, merges)
    assert isinstance(dear.load_clip(f"local-dir:{folder}").tokenizer, open_clip.SimpleTokenizer)
    write(vocab, merges[:100] + merges[101:])
    assert "tokenizer" in refused(folder)
    write(vocab | {"a": 1, "b": 0}, merges)
    assert "tokenizer" in refused(folder)


def test_tokens_are_those_of_transformers(folder, siglip):
    from transformers import PreTrainedTokenizerFast

    for place in (folder, siglip):
        ours = read_foreign("x", place).tokenizer()
        theirs = PreTrainedTokenizerFast(tokenizer_file=str(place / "tokenizer.json"), pad_token="<pad>")
        expected = theirs(TEXTS, padding="max_length", max_length=16, truncation=True, return_tensors="pt").input_ids
        assert torch.equal(ours(TEXTS), expected)
        assert ours(TEXTS, context_length=40).shape == (4, 40)
    assert ours("a cat")[0].tolist() == [4, 7, 2] + [0] * 13  # padded to the full length


def test_a_folder_is_used_like_any_other(folder, images):
    write_shards(folder)
    clip = dear.load_clip(f"local-dir:{folder}")
    assert clip.geometry.context_length == 16
    assert torch.allclose(clip.text.encode(TEXTS[:3]), clip.text.encode(TEXTS[:3]))
    stock = clip.model.encode_text(clip.tokenizer(TEXTS[:3]))
    assert difference(clip.text.encode(TEXTS[:3]), stock) <= 1e-6
    with pytest.raises(dear.errors.ClassListError, match="do not fit the text tower's 16 tokens"):
        clip.text.encode([TEXTS[3]])
    again = dear.load_clip(f"local-dir:{folder}", "random", seed=1)
    assert again.weights_sha256 != clip.weights_sha256
    with pytest.raises(BackboneError, match="contains its own weights"):
        dear.load_clip(f"local-dir:{folder}", "openai")


def test_convert_writes_it_in_the_format_of_open_clip(folder, tiny_clips, tmp_path):
    plain = as_clip_model(tmp_path / "plain", tiny_clips["plain"].model, TINY_CONFIGS["plain"])
    dear.convert(plain, tmp_path / "out")
    assert dear.load_clip(f"local-dir:{tmp_path / 'out'}").weights_sha256 == tiny_clips["plain"].weights_sha256
    with pytest.raises(BackboneError, match=r"cannot be converted: its tokenizer is in tokenizer\.json, "):
        dear.convert(folder, tmp_path / "words")


def test_half_precision_weights_are_read(folder):
    weights = {name: one.half() for name, one in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")
    state = read_foreign("x", folder).build(random=False).state_dict()
    assert all(one.dtype == torch.float32 for one in state.values())
    assert torch.equal(state["logit_scale"], weights["logit_scale"].float())


@pytest.mark.parametrize(
    ("processor", "settings", "size"),
    [
        ("CLIPImageProcessor", {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}, (96, 64)),
        ("CLIPImageProcessor", {"size": {"shortest_edge": 32}, "crop_size": 32, "resample": 2}, (64, 64)),
        ("SiglipImageProcessor", {"size": {"height": 32, "width": 32}}, (70, 45)),
    ],
)
def test_pixels_are_those_of_transformers(folder, processor, settings, size):
    import transformers

    theirs = getattr(transformers, processor)(**settings)
    (folder / "preprocessor_config.json").unlink()
    theirs.save_pretrained(folder)
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((size[0], size[1]))
    ours = dear.load_clip(f"local-dir:{folder}").preprocess_eval(image)
    expected = theirs(image, return_tensors="pt")["pixel_values"][0]
    levels = (ours - expected).abs() * torch.tensor(theirs.image_std)[:, None, None] * 255
    assert levels.max() <= 1.01


def test_processor_config_is_read_too(folder):
    images = json.loads((folder / "preprocessor_config.json").read_text()) | {"image_mean": [0.1, 0.2, 0.3]}
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": images}))
    assert read_foreign("x", folder).preprocess["mean"] == (0.1, 0.2, 0.3)
    (folder / "processor_config.json").unlink()
    assert read_foreign("x", folder).preprocess["mean"] == open_clip.OPENAI_DATASET_MEAN


def test_old_files_replace_the_settings_of_a_tower(folder):
    """`text_config_dict` wins together with its defaults, as in transformers."""
    import transformers

    config = json.loads((folder / "config.json").read_text()) | {"model_type": "clip"}
    old = {"num_attention_heads": 6, "hidden_size": 48, "hidden_act": "gelu", "vocab_size": 600}
    edit_config(folder, **config, text_config_dict=old)
    theirs = transformers.CLIPConfig.from_pretrained(folder).text_config
    ours = read_foreign("x", folder).config["text_cfg"]
    assert (ours["heads"], ours["eos_id"]) == (theirs.num_attention_heads, theirs.eos_token_id) == (6, 49407)


HOSTILE = {
    "code": (lambda f: edit_config(f, auto_map={"AutoModel": "x.X"}), "names Python code of its own"),
    "code of the tokenizer": (
        lambda f: (f / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["tok.T", null]}}'),
        "names Python code of its own",
    ),
    "another model": (lambda f: edit_config(f, model_type="blip"), "is a 'blip' model in the format of transformers"),
    "no model type": (lambda f: edit_config(f, model_type=[1]), "of an unknown type in the format of transformers"),
    "NaFlex": (lambda f: edit_config(f, model_type="siglip2"), "NaFlex"),
    "pickled": (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "can contain code"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "contains no weights: add model.safetensors."),
    "two activations": (
        lambda f: edit_config(f, text_config={"hidden_act": "quick_gelu"}),
        "has two activation functions, gelu and quick_gelu",
    ),
    "an unknown activation": (lambda f: edit_config(f, text_config={"hidden_act": "relu"}), "hidden_act is 'relu'"),
    "heads that do not divide": (
        lambda f: edit_config(f, vision_config={"num_attention_heads": 7, "hidden_act": "gelu"}),
        "and 7 heads",
    ),
    "huge numbers": (lambda f: edit_config(f, vision_config={"num_attention_heads": 10**30}), "num_attention_heads"),
    "wrong types": (lambda f: edit_config(f, vision_config=[1]), "The vision_config of"),
    "no JSON": (lambda f: (f / "config.json").write_text("{"), "it is not valid JSON"),
    "a list": (lambda f: (f / "config.json").write_text("[]"), "it must be a JSON object"),
    "deep nesting": (lambda f: (f / "config.json").write_text("[" * 100_000), "it is not valid JSON"),
    "a missing weight": (lambda f: edit_weights(f, text_projection__weight=None), "has no weight text_projection"),
    "another weight": (lambda f: edit_weights(f, classifier__weight=torch.ones(2)), "such as 'classifier.weight'"),
    "a wrong shape": (
        lambda f: edit_weights(f, text_projection__weight=torch.ones(40, 47)),
        "text_projection has the shape (47, 40) instead of (48, 40)",
    ),
    "parts that do not join": (
        lambda f: edit_weights(f, **{"text_model__encoder__layers__0__self_attn__q_proj__weight": torch.ones(3, 47)}),
        "do not fit together",
    ),
    "a layer in the clouds": (
        lambda f: edit_weights(f, **{"vision_model__encoder__layers__999999__x": torch.ones(1)}),
        "has no weight vision_model.encoder.layers.3",
    ),
    "whole numbers": (
        lambda f: edit_weights(f, text_projection__weight=torch.ones(40, 48, dtype=torch.int8)),
        "stores text_projection.weight as I8",
    ),
    "no square": (
        lambda f: edit_weights(f, vision_model__embeddings__position_embedding__weight=torch.ones(18, 64)),
        "which are not a square image",
    ),
    "nothing": (
        lambda f: edit_weights(f, text_model__embeddings__token_embedding__weight=torch.ones(0, 48)),
        "which is not a matrix",
    ),
    "many positions": (
        lambda f: edit_weights(f, text_model__embeddings__position_embedding__weight=torch.ones(20_000, 48)),
        "has 20,000 positions",
    ),
    "damaged weights": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64), "it is damaged"),
    "a folder as weights": (
        lambda f: ((f / "model.safetensors").unlink(), (f / "model.safetensors").mkdir()),
        "contains no weights",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer.json: save the tokenizer"),
    "a damaged tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), "is not a tokenizer"),
    "a larger tokenizer": (lambda f: write_words(f, (*WORDS, "zebra")), "has 14 tokens, but its tokenizer.json has 15"),
    "a tokenizer without an end": (lambda f: write_words(f, template="<s> $A"), "does not put the end token"),
    "pads on the left": (
        lambda f: (f / "tokenizer_config.json").write_text('{"padding_side": "left"}'),
        "set its padding_side to right.",
    ),
    "another crop": (lambda f: write_images(f, size={"shortest_edge": 48}), "but the image tower expects 32 pixels"),
    "another size": (lambda f: write_images(f, size=64, crop_size=64), "but the image tower expects 32 pixels"),
    "nearest": (lambda f: write_images(f, resample=0), "resample is 0"),
    "no resizing": (lambda f: write_images(f, do_resize=False), "do_resize is False"),
    "no spread": (lambda f: write_images(f, image_std=[1, 0, 1]), "must be positive"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_everything_else_is_one_sentence(case, folder):
    change, sentence = HOSTILE[case]
    canary = folder / "ran"
    for name in ("x.py", "tok.py"):
        (folder / name).write_text(f"open({str(canary)!r}, 'w')\n")
    change(folder)
    assert sentence in refused(folder)
    assert not canary.exists()


@pytest.mark.parametrize(
    "name", ["../other.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..", "x.bin", "", "link.safetensors"]
)
def test_shards_stay_in_the_folder(name, folder, tmp_path):
    write_shards(folder, b=name)
    shutil.copy(folder / "b.safetensors", tmp_path / "other.safetensors")
    (folder / "link.safetensors").symlink_to(tmp_path / "other.safetensors")
    said = refused(folder)
    assert "only safetensors files of the same folder" in said or "is a link to another folder" in said


def test_a_snapshot_of_the_hub_may_link_to_its_blobs(folder, tmp_path):
    write_shards(folder)
    snapshot, blobs = tmp_path / "models--x" / "snapshots" / "0", tmp_path / "models--x" / "blobs"
    shutil.copytree(folder, snapshot)
    blobs.mkdir()
    for shard in snapshot.glob("*.safetensors"):
        shard.rename(blobs / shard.stem)
        shard.symlink_to(f"../../blobs/{shard.stem}")
    assert dear.load_clip(f"local-dir:{snapshot}").weights_sha256


def test_naflex_is_refused_by_its_patches_too(siglip, tmp_path):
    folder = shutil.copytree(siglip, tmp_path / "naflex")
    edit_weights(folder, vision_model__embeddings__patch_embedding__weight=torch.ones(64, 192))
    assert "for images of any size (NaFlex)" in refused(folder)


@pytest.mark.parametrize("value", [None, -1, 0, 10**30, "x", [], {}, 1e300, True], ids=str)
def test_no_value_in_the_configuration_breaks_the_reader(value, folder):
    config = json.loads((folder / "config.json").read_text())
    keys = ["model_type", "text_config", "vision_config", "text_config_dict"]
    towers = [("text_config", key) for key in ("num_attention_heads", "hidden_act", "layer_norm_eps", "eos_token_id")]
    for tower, key in [*((None, key) for key in keys), *towers, ("vision_config", "image_size")]:
        spoilt = json.loads(json.dumps(config))
        (spoilt[tower] if tower else spoilt)[key] = value
        (folder / "config.json").write_text(json.dumps(spoilt))
        with suppress(BackboneError):
            read_foreign("x", folder)
