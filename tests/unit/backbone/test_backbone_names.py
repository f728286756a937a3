"""Names of backbones that people type: each gets the command that works, and only what can be adapted is proposed."""

import json
import re

import pytest

from dear.backbone.load import load_clip
from dear.backbone.names import (
    IN_TRANSFORMERS_FORMAT,
    check_pretrained,
    list_backbones,
    repository_of,
    tag_of_repository,
)
from dear.errors import BackboneError, typed

LAION = "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"


def refused(name, pretrained=None):
    with typed(), pytest.raises(BackboneError) as caught:
        load_clip(name, pretrained)
    return str(caught.value)


@pytest.mark.covers("N9")
@pytest.mark.parametrize(
    ("name", "pretrained", "sentence"),
    [
        (LAION, None, f"No backbone is called '{LAION}': --clip ViT-B-32 --pretrained laion2b_s34b_b79k loads the "),
        (f"https://huggingface.co/{LAION}", None, ": --clip ViT-B-32 --pretrained laion2b_s34b_b79k loads the weights"),
        ("openai/clip-vit-base-patch32", None, ": --clip ViT-B-32-quickgelu --pretrained openai loads the weights of"),
        ("somebody/clip-of-birds", None, "For a repository of the hub: --clip hf-hub:somebody/clip-of-birds."),
        ("ViT-B-32", "laion2b", "no such file exists. Did you mean 'laion2b_s34b_b79k' or 'laion2b_e16'?"),
        ("ViT-B-16", "metaclip", "Did you mean --clip ViT-B-16-quickgelu --pretrained metaclip_fullcc?"),
        ("ViT-B-16-plus-240", "openai", "They exist for 'ViT-B-16-quickgelu' and 'ViT-L-14-quickgelu' and 'ViT-B-32"),
        (
            "timm/ViT-B-16-SigLIP",
            None,
            ": --clip ViT-B-16-SigLIP --pretrained webli loads the weights of this repository.",
        ),
    ],
)
def test_the_sentence_says_what_to_type(name, pretrained, sentence):
    assert sentence in refused(name, pretrained)


@pytest.mark.covers("N9")
def test_hints_name_only_what_can_be_adapted():
    adaptable = list_backbones()
    for name, tag in [("ViT-B-32", "laion2b"), ("vit-b16", None), ("ViT-B-32", "webli"), ("RN5O", None)]:
        said = refused(name, tag)
        named = re.findall(r"'([^']+)'|--clip (\S+)", said.replace(repr(name), "").replace(repr(tag), ""))
        known = {*adaptable, *(tag for tags in adaptable.values() for tag in tags)}
        assert {one or two for one, two in named} <= known, said


@pytest.mark.covers("N9")
def test_the_table_of_repositories_names_weights_that_exist():
    adaptable = list_backbones()
    assert all(same.tag in adaptable[same.name] for same in IN_TRANSFORMERS_FORMAT.values())
    for name, tags in adaptable.items():
        for tag in tags:
            same = tag_of_repository(repository_of(name, tag)[0])
            assert repository_of(*same) == repository_of(name, tag)
    assert tag_of_repository("timm/ViT-B-16-SigLIP") == ("ViT-B-16-SigLIP", "webli")


@pytest.mark.covers("N10")
@pytest.mark.parametrize("quick", [True, False])
def test_the_config_beside_a_weights_file_decides_the_activation(tmp_path, quick):
    weights = tmp_path / "open_clip_model.safetensors"
    weights.write_bytes(b"no tensors")
    config = tmp_path / "open_clip_config.json"
    config.write_text(json.dumps({"model_cfg": {"quick_gelu": True} if quick else {}}))
    wrong, right = ("ViT-B-16", "ViT-B-16-quickgelu") if quick else ("ViT-B-16-quickgelu", "ViT-B-16")
    assert refused(wrong, weights) == (
        f"{wrong} with '{weights}' weights would silently lose accuracy, because they were trained "
        f"{'with' if quick else 'without'} QuickGELU, says open_clip_config.json beside them: "
        f"use --clip {right} --pretrained {weights}."
    )
    check_pretrained(right, str(weights), {"quick_gelu": quick})
    if quick:  # a model without a twin
        assert refused("ViT-B-16-plus-240", weights).endswith(f"use --clip local-dir:{tmp_path}.")


@pytest.mark.covers("N10")
@pytest.mark.parametrize("content", ["{", "[]", '{"model_cfg": 3}', None])
def test_a_config_beside_it_that_says_nothing_is_ignored(tmp_path, content):
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(b"no tensors")
    if content:
        (tmp_path / "open_clip_config.json").write_text(content)
    check_pretrained("ViT-B-16", str(weights), {})
