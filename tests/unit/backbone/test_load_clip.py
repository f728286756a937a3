"""Which backbones load, what they know of themselves, and what is said when one cannot be used."""

import json
import logging
import random

import pytest
import torch
from PIL import Image

import dear
from dear import errors
from dear.backbone.load import clips_from, load_clip
from dear.model import load as model_load
from dear.workflows.export import preprocessing_of


@pytest.mark.parametrize(
    ("name", "pretrained", "message"),
    [
        (
            "RN50",
            "openai",
            "RN50 with 'openai' weights would silently lose accuracy, because they were trained with QuickGELU: "
            "use load_clip('RN50-quickgelu', pretrained='openai').",
        ),
        (
            "ViT-B-16",
            "openai",
            "ViT-B-16 with 'openai' weights would silently lose accuracy, because they were trained with QuickGELU: "
            "use load_clip('ViT-B-16-quickgelu', pretrained='openai').",
        ),
        (
            "vit-b16",
            None,
            "No backbone is called 'vit-b16'. Did you mean 'ViT-B-16'? "
            "For example: load_clip('ViT-B-16-quickgelu', pretrained='openai').",
        ),
        (
            "ViT-B/16",
            None,
            "ViT-B-16 needs weights: give pretrained='laion400m_e31', or load_clip('ViT-B-16-quickgelu', "
            "pretrained='openai') for OpenAI's, or pretrained='random' for random weights.",
        ),
        (
            "ViT-B-16-quickgelu",
            "openia",
            "ViT-B-16-quickgelu has no weights called 'openia', and no such file exists. Did you mean 'openai'?",
        ),
        (
            "ViT-B-16-quickgelu",
            "laion2b_s34b_b88k",
            "ViT-B-16-quickgelu has no weights called 'laion2b_s34b_b88k', and no such file exists. "
            "They exist for 'ViT-B-16' and 'ViT-g-14'.",
        ),
        ("local-dir:", None, "'local-dir:' is incomplete: write local-dir:FOLDER or hf-hub:ORGANISATION/REPOSITORY."),
        (
            "local-dir:nowhere",
            None,
            "nowhere/open_clip_config.json does not exist: local-dir: needs a folder with open_clip_config.json "
            "or config.json, and weights.",
        ),
    ],
)
def test_refused_with_a_sentence(name, pretrained, message):
    with pytest.raises(errors.BackboneError) as caught:
        load_clip(name, pretrained)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["ViT-B-16-quickgelu", "hf-hub:somebody/something"])
def test_weights_that_are_not_in_the_cache_of_a_machine_that_is_offline(name):
    pretrained = None if ":" in name else "openai"
    what = name if pretrained is None else "ViT-B-16-quickgelu (openai)"
    where = "timm/vit_base_patch16_clip_224.openai" if pretrained else "somebody/something"
    with pytest.raises(errors.HubError) as caught:
        load_clip(name, pretrained)
    assert str(caught.value).startswith(f"{what} is not in the cache ")
    assert str(caught.value).endswith(
        "HF_HUB_OFFLINE=1 forbids downloading it: unset HF_HUB_OFFLINE, or fetch open_clip_config.json and "
        f"open_clip_model.safetensors from https://huggingface.co/{where} with another machine and use the folder with "
        "load_clip('local-dir:FOLDER')."
    )
    assert isinstance(caught.value, ConnectionError)


def test_every_openai_vit_needs_quickgelu():
    for name in ("ViT-B-32", "ViT-L-14", "ViT-L-14-336"):
        with pytest.raises(errors.BackboneError, match=f"{name}-quickgelu"):
            load_clip(name, "openai")


def test_random_weights_only_when_asked_for(tiny_folders):
    with pytest.raises(errors.BackboneError, match=r"contains no weights: add open_clip_model\.safetensors"):
        load_clip(f"local-dir:{tiny_folders['plain']}")


def test_a_plain_folder_is_told_its_prefix(tiny_folders):
    with pytest.raises(errors.BackboneError, match="is a folder: write 'local-dir:"):
        load_clip(str(tiny_folders["plain"]))


def test_pretrained_beside_a_folder_is_refused(tiny_folders):
    with pytest.raises(errors.BackboneError, match="contains its own weights: leave pretrained='openai' out"):
        load_clip(f"local-dir:{tiny_folders['plain']}", "openai")


@pytest.mark.parametrize("content", ["{", "[]", '{"a": 1}', '{"model_cfg": 3}', '{"model_cfg": {"vision_cfg": {}}}'])
def test_broken_configuration(tmp_path, content):
    (tmp_path / "open_clip_config.json").write_text(content)
    with pytest.raises(errors.BackboneError, match="is not an OpenCLIP configuration"):
        load_clip(f"local-dir:{tmp_path}", "random")


def test_geometry(clip):
    assert clip.geometry.as_dict() == {
        "image_size": 32,
        "patch_size": 8,
        "vision_layers": 6,
        "vision_heads": 6,
        "vision_width": 48,
        "vision_tokens": 17,
        "text_layers": 6,
        "text_heads": 4,
        "text_width": 32,
        "context_length": 77,
        "vocab_size": 49408,
        "embed_dim": 24,
        "quick_gelu": False,
    }
    assert clip.temperature == pytest.approx(1 / 0.07)


def test_random_weights_depend_on_the_seed_alone(tiny_folders):
    name = f"local-dir:{tiny_folders['shallow']}"
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = load_clip(name, "random", seed=1)
    assert torch.equal(torch.get_rng_state(), state)  # the caller's random numbers are not touched
    torch.manual_seed(2)
    assert load_clip(name, "random", seed=1).weights_sha256 == first.weights_sha256
    assert load_clip(name, "random", seed=2).weights_sha256 != first.weights_sha256


def test_weights_of_a_folder(tiny_folders, clip, tmp_path):
    from safetensors.torch import save_file

    config = json.loads((tiny_folders["plain"] / "open_clip_config.json").read_text())
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    save_file(clip.model.state_dict(), tmp_path / "open_clip_model.safetensors")
    loaded = load_clip(f"local-dir:{tmp_path}")
    assert loaded.weights_sha256 == clip.weights_sha256
    (tmp_path / "open_clip_model.safetensors").write_bytes(b"not a tensor file")
    with pytest.raises(errors.BackboneError, match="cannot be loaded"):
        load_clip(f"local-dir:{tmp_path}")


def test_own_merges_make_the_tokenizer(tiny_folders, tmp_path):
    import gzip

    config = json.loads((tiny_folders["shallow"] / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"]["vocab_size"] = 516
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    (tmp_path / "bpe_merges.txt.gz").write_bytes(gzip.compress(b"#version\nc a\nca t</w>"))
    loaded = load_clip(f"local-dir:{tmp_path}", "random")
    assert loaded.tokenizer(["cat"])[0, :4].tolist() == [514, 513, 515, 0]
    assert loaded.text.tokenize(["cat", "a cat"]).end_C.tolist() == [2, 3]


def test_preprocessing_belongs_to_the_backbone(clip):
    picture = Image.new("L", (90, 50), 128)
    size = clip.geometry.image_size
    for transform in (clip.preprocess_train, clip.preprocess_eval):
        tensor = transform(picture)
        assert tensor.shape == (3, size, size)
        assert tensor[0].mean().item() == pytest.approx((128 / 255 - 0.4815) / 0.2686, abs=0.01)


@pytest.mark.parametrize("mean", [0, 0.5])
def test_short_forms_of_the_preprocessing_are_the_long_ones(tiny_folders, tmp_path, mean):
    """Training views, tests and exports read the same settings; a mean of 0 was open_clip's default in tests."""
    config = json.loads((tiny_folders["shallow"] / "open_clip_config.json").read_text())
    found = []
    for name, images in [
        ("short", {"mean": mean, "std": 0.5, "interpolation": "random"}),
        ("long", {"mean": [mean] * 3, "std": [0.5] * 3, "interpolation": "bicubic"}),
    ]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "open_clip_config.json").write_text(json.dumps({**config, "preprocess_cfg": images}))
        found.append(load_clip(f"local-dir:{tmp_path / name}", "random"))
    short, long = found
    picture = Image.effect_mandelbrot((90, 50), (-2, -1, 1, 1), 20)
    assert short.preprocess_eval(picture).equal(long.preprocess_eval(picture))
    views = [one.preprocess_train(picture, random.Random(0)) for one in found]
    assert views[0].equal(views[1])
    assert preprocessing_of(short) == preprocessing_of(long)
    black = Image.new("RGB", (40, 40))
    assert long.preprocess_eval(black).unique().tolist() == [-2 * mean]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("backbone", ["plain", "odd"])
def test_low_precision_gives_nearly_the_same_features(tiny_folders, tiny_clips, backbone, precision):
    from helpers import varied_roles

    full = tiny_clips[backbone]
    low = load_clip(f"local-dir:{tiny_folders[backbone]}", "random", precision=precision, seed=7)
    assert low.weights_sha256 == full.weights_sha256  # the hash is of the weights, not of how they are held
    size = full.geometry.image_size
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(4))
    outputs = []
    for clip in (full, low):
        model = dear.DeAR(clip, varied_roles(clip)).for_classes(["cat", "dog"])
        out = model(images)
        model.loss(images, torch.tensor([0, 1]))["total"].backward()
        assert all(p.dtype == torch.float32 and p.grad.isfinite().all() for p in model.trainable().values())
        outputs.append(out)
    cosine = (outputs[0].features["cls"] * outputs[1].features["cls"]).sum(-1)
    assert outputs[1].logits.dtype == torch.float32
    assert cosine.min() > 0.999


def test_low_precision_keeps_norms_and_temperature(tiny_folders):
    low = load_clip(f"local-dir:{tiny_folders['odd']}", "random", precision="bf16")
    types = {name: parameter.dtype for name, parameter in low.model.named_parameters()}
    assert types["logit_scale"] == torch.float32
    assert types["visual.ln_post.weight"] == types["text.ln_final.bias"] == torch.float32
    assert types["visual.proj"] == types["visual.transformer.resblocks.0.ls_1.gamma"] == torch.bfloat16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": "int8"}, "precision is 'int8', but can be 'fp32', 'bf16' or 'fp16'."),
        ({"precision": ["x"]}, "precision is ['x'], but can be"),
        ({"device": "gpu"}, "The device 'gpu' cannot be used on this machine: try device='cpu'."),
        ({"seed": "x"}, "seed is 'x', but must be a whole number from 0 on."),
        ({"pretrained": True}, "pretrained is True: give a tag such as 'openai', a path, or 'random'."),
        ({"name": None}, "The backbone is None: give its name"),
        ({"name": " "}, "The backbone is ' ': give its name"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_meant(tiny_folders, arguments, message):
    with pytest.raises(errors.BackboneError) as caught:
        load_clip(**{"name": f"local-dir:{tiny_folders['plain']}", "pretrained": "random", **arguments})
    assert str(caught.value).startswith(message)


def test_tags_are_read_as_open_clip_reads_them():
    with pytest.raises(errors.HubError):
        load_clip("ViT-B-16-quickgelu", "OpenAI")
    with pytest.raises(errors.BackboneError, match="use load_clip\\('ViT-B-16-quickgelu', pretrained='OpenAI'\\)"):
        load_clip("ViT-B-16", "OpenAI")


def test_a_folder_does_not_shadow_a_name(tmp_path, monkeypatch):
    (tmp_path / "ViT-B-32").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.BackboneError, match="ViT-B-32 needs weights"):
        load_clip("ViT-B-32")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"vision_cfg": {"width": 50, "head_width": 8}}, "cannot be loaded"),
        ({"vision_cfg": {"wdith": 3}}, r"sets 'wdith' in its vision_cfg.*Did you mean 'width'\?"),
        ({"text_cfg": {"layers": -1}}, "cannot be loaded"),
    ],
    ids=str,
)
def test_a_configuration_that_cannot_be_built(tiny_folders, tmp_path, change, sentence):
    config = json.loads((tiny_folders["plain"] / "open_clip_config.json").read_text())
    for tower, values in change.items():
        config["model_cfg"][tower] |= values
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(errors.BackboneError, match=sentence):
        load_clip(f"local-dir:{tmp_path}", "random")


def test_a_tokenizer_that_makes_unknown_tokens(tiny_folders, tmp_path):
    config = json.loads((tiny_folders["plain"] / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"]["vocab_size"] = 1000
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(
        errors.BackboneError, match=r"has 1000 tokens, but its tokenizer produces more: add its own bpe_merges"
    ):
        load_clip(f"local-dir:{tmp_path}", "random")


def test_a_checkpoint_that_is_none(tiny_folders, tmp_path):
    for name, content in {"a.pt": b"junk", "b.safetensors": b"junk", "c.bin": b""}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(errors.BackboneError, match="cannot be loaded"):
            load_clip("ViT-B-32", tmp_path / name, allow_pickled=True)


def test_content_hash_sees_names_shapes_and_values():
    from dear.backbone.clip import content_hash

    base = {"a": torch.arange(6.0), "b": torch.zeros(2)}
    others = [
        {"a": torch.arange(6.0).view(2, 3), "b": torch.zeros(2)},
        {"c": torch.arange(6.0), "b": torch.zeros(2)},
        {"a": torch.arange(6.0), "b": torch.tensor([0, 1e-7])},
    ]
    assert content_hash(dict(reversed(base.items()))) == content_hash(base)
    assert len({content_hash(state) for state in [base, *others]}) == 4


def test_training_augmentation_is_the_papers(clip):
    assert clip.preprocess_train.scale == (0.5, 1.0)
    assert clip.preprocess_train.interpolation == "bicubic"


def test_text_is_refused_rather_than_cut(clip):
    assert torch.equal(clip.encode_text("a cat"), clip.encode_text(["a cat"]))
    with pytest.raises(errors.ClassListError, match="do not fit"):
        clip.encode_text(["word " * 100])


@pytest.mark.parametrize("prompts", [[], (), None, [3], ["cat", None]])
def test_what_is_no_text_is_refused(clip, prompts):
    with pytest.raises(errors.InputError, match="What is encoded must be one or more texts"):
        clip.encode_text(prompts)


def test_loading_leaves_the_users_logging_alone(tiny_folders):
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    load_clip(f"local-dir:{tiny_folders['shallow']}", "random")
    assert (root.handlers, root.level) == (handlers, level)
    assert root.isEnabledFor(logging.ERROR)


def test_images_of_another_form_are_refused(clip):
    wrong = [torch.zeros(3, 32, 32), torch.zeros(1, 3, 30, 32), torch.zeros(1, 3, 32, 32, dtype=torch.uint8)]
    for images in [*wrong, torch.zeros(0, 3, 32, 32)]:
        for encode in (clip.encode_image, lambda x: clip.frozen(x, ["rows@2"])):
            with pytest.raises(errors.InputError, match=r"this backbone reads float batches of shape \(B, 3, 32, 32\)"):
                encode(images)
    for images in (None, [1], Image.new("RGB", (32, 32)), torch.zeros(1, 3, 32, 32).numpy()):
        with pytest.raises(errors.InputError, match=r"make each with clip\.preprocess_eval and stack them"):
            clip.encode_image(images)
    with pytest.raises(errors.InputError, match="on meta, but the backbone is on cpu"):
        clip.encode_image(torch.zeros(1, 3, 32, 32, device="meta"))


def test_one_provider_answers_every_module(clip):
    """Modules import `load_clip` by name; the provider is looked up when it is called."""
    asked = []
    with clips_from(lambda *names, **_: asked.append(names) or clip):
        assert dear.load_clip("ViT-B-32", "openai") is model_load.load_clip("RN50") is clip
        with pytest.raises(ZeroDivisionError), clips_from(lambda *_, **__: 1 / 0):
            dear.load_clip("world")
        assert dear.load_clip("world") is clip
    assert asked == [("ViT-B-32", "openai", "cpu"), ("RN50", None, "cpu"), ("world", None, "cpu")]
    with pytest.raises(errors.BackboneError):
        dear.load_clip("nothing of the kind")
