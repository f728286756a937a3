"""Every name of open_clip, built on the meta device, does what the table of `dear ls backbones` says.

`python tests/unit/backbone/test_backbone_table.py` writes the table again, for a new version of open_clip or timm.
"""

import json
import warnings
from pathlib import Path

import open_clip
import pytest
import torch
from open_clip.model import CLIPTextCfg, CLIPVisionCfg, _build_text_tower, _build_vision_tower

import dear
from dear.backbone.layer_kinds import layer_of
from dear.backbone.vision import VisionTower

TABLE = Path(dear.__file__).parent / "assets" / "backbones.json"
GOAL = {"features": (144, 196), "words": (144, 196), "text layers": (134, 187), "image layers": (113, 158)}
"""Names and tags of open_clip 3.3 by what can be done with them."""


def described(name):
    """One row of the table; the text towers of transformers, which need a file of the hub, are not built."""
    config = open_clip.get_model_config(name)
    hub, quick = bool(config["text_cfg"].get("hf_model_name")), config.get("quick_gelu", False)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = _build_vision_tower(config["embed_dim"], CLIPVisionCfg(**config["vision_cfg"]), quick)
        text = None if hub else _build_text_tower(config["embed_dim"], CLIPTextCfg(**config["text_cfg"]), quick)
    vision = VisionTower(image, config["embed_dim"])
    reached = text is not None and all(layer_of(block) for block in text.transformer.resblocks)
    causal = reached and text.attn_mask is not None
    parameters = None if text is None else sum(p.numel() for tower in (image, text) for p in tower.parameters())
    size = image.image_size if isinstance(image.image_size, int) else image.image_size[0]
    return {
        "layers": ["text layers"] * reached + ["image layers"] * vision.has_layers + ["causal text"] * causal,
        "pool": vision.pool.kind if vision.has_layers else "",
        "pixels": size,
        "parameters": parameters,
        "extra": "hf" if hub or config["text_cfg"].get("hf_tokenizer_name") else "",
    }


OURS = ("world", "world-siglip")


def described_ours(name):
    """The row of a CLIP that comes with this package."""
    clip = dear.load_clip(name)
    count = sum(p.numel() for key, p in clip.model.named_parameters() if not key.startswith("logit_"))
    layers = [one for one in ("text layers", "image layers", "causal text") if one in clip.can]
    row = {"layers": layers, "pool": clip.geometry.pool, "pixels": clip.geometry.image_size}
    return {**row, "parameters": count, "extra": ""}


def scan():
    ours = {name: described_ours(name) for name in OURS}
    return {**ours, **{name: described(name) for name in open_clip.list_models()}}


def coverage(table):
    """Names and tags by what can be done."""
    tags = {name: len(open_clip.list_pretrained_tags_by_model(name)) for name in open_clip.list_models()}
    found = {}
    for what in GOAL:
        names = [name for name in tags if what in (*table[name]["layers"], "features", "words")]
        found[what] = len(names), sum(tags[name] for name in names)
    return found


def test_the_table_covers_every_name():
    table = json.loads(TABLE.read_text())
    assert set(table) == {*OURS, *open_clip.list_models()}
    assert coverage(table) == GOAL


@pytest.mark.parametrize("name", ["ViT-B-16", "ViT-B-16-SigLIP2-256", "PE-Core-S-16-384", "RN50", "coca_ViT-B-32"])
def test_one_of_each_family(name):
    assert described(name) == json.loads(TABLE.read_text())[name]


@pytest.mark.parametrize("name", OURS)
def test_clips_of_this_package(name):
    assert described_ours(name) == json.loads(TABLE.read_text())[name]


@pytest.mark.slow
def test_the_table_is_what_the_modules_can_do():
    found, table = scan(), json.loads(TABLE.read_text())
    assert {name: row for name, row in found.items() if table.get(name) != row} == {}


if __name__ == "__main__":
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in scan().items())
    TABLE.write_text("{\n" + rows + "\n}\n")
