"""Build, write and read the world's CLIP: an open_clip folder with configuration, tokenizer and weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dear.backbone.hub import WHOLE
from dear.backbone.own_trunk import TRUNK, register
from dear.backbone.tokenizer import MERGES_FILE
from dear.errors import BackboneError
from dear.world.bpe import train_merges, vocabulary_size, write_merges
from dear.world.grammar import vocabulary_text
from dear.world.raster import Bytes
from dear.world.samples import PATCH, pretraining_pair
from dear.world.siglip import LOGIT_BIAS, LOGIT_SCALE

Kind = Literal["clip", "plain", "siglip"]
"""clip: [CLS], with heads that are assigned to attributes; plain: the same with free heads; siglip: see `siglip`."""
MERGES = 600
CONTEXT = 32
CONFIG_FILE, WEIGHTS_FILE = WHOLE


def assets_folder(name: str = "world") -> Path:
    """Return the folder of shipped weights: "world", or "world-siglip" for the other kind."""
    return Path(__file__).parents[1] / "assets" / name


def config(kind: Kind = "clip") -> dict[str, Any]:
    """Return the content of `open_clip_config.json`."""
    vision: dict[str, Any] = {"image_size": 64, "layers": 12, "width": 128, "head_width": 16, "patch_size": 8}
    text: dict[str, Any] = {
        "context_length": CONTEXT,
        "vocab_size": vocabulary_size(MERGES),
        "width": 96,
        "heads": 6,
        "layers": 12,
    }
    model: dict[str, Any] = {"embed_dim": 128, "vision_cfg": vision, "text_cfg": text}
    if kind == "siglip":
        trunk = {"timm_model_name": TRUNK, "timm_model_pretrained": False, "timm_pool": "map", "timm_proj": "none"}
        model["vision_cfg"] = {"image_size": 64, **trunk}
        text |= {"no_causal_mask": True, "proj_bias": True, "pool_type": "last"}
        model |= {"custom_text": True, "init_logit_scale": LOGIT_SCALE, "init_logit_bias": LOGIT_BIAS}
    return {"model_cfg": model, "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}}


def build(seed: int, kind: Kind = "clip") -> nn.Module:
    """Return an untrained model with a hand-made initialisation of its vision tower.

    Patch positions are two-dimensional sine waves. Every block starts close to the identity, as open_clip's text tower
    does. The patch embedding is the principal components of patches, with the small ones amplified. The first block
    adds their magnitudes, which textures depend on; from random weights, learning these needs too many images.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _create(config(kind)["model_cfg"])
        if kind == "siglip":
            _start_trunk(model.visual, seed)
            return model
    visual: Any = model.visual
    blocks = visual.transformer.resblocks
    with torch.no_grad():
        visual.positional_embedding.mul_(0.1)
        visual.positional_embedding[1:] += 0.25 * _waves(8, 128)
        for block in blocks:
            block.attn.out_proj.weight.mul_((2 * len(blocks)) ** -0.5)
            block.mlp.c_proj.weight.mul_((2 * len(blocks)) ** -0.5)
        visual.conv1.weight.copy_(_components(seed, len(visual.conv1.weight)).view_as(visual.conv1.weight))
        _add_magnitudes(blocks[0].mlp.c_fc, blocks[0].mlp.c_proj, seed)
    return model


def _create(model_cfg: dict[str, Any]) -> nn.Module:
    """An open_clip model of a configuration."""
    from open_clip.model import CLIP, CustomTextCLIP

    register()
    settings = {name: value for name, value in model_cfg.items() if name != "custom_text"}
    model: nn.Module = (CustomTextCLIP if model_cfg.get("custom_text") else CLIP)(**settings)
    return model


@torch.no_grad()
def _start_trunk(visual: Any, seed: int) -> None:
    """The same initialisation for a timm tower; its own weights start smaller, which suits larger models."""
    trunk = visual.trunk
    for module in (*trunk.blocks.modules(), *trunk.attn_pool.modules()):
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    trunk.pos_embed.copy_(0.25 * _waves(8, 128))
    for block in trunk.blocks:
        block.attn.proj.weight.mul_((2 * len(trunk.blocks)) ** -0.5)
        block.mlp.fc2.weight.mul_((2 * len(trunk.blocks)) ** -0.5)
    weight = trunk.patch_embed.proj.weight
    weight.copy_(_components(seed, len(weight)).view_as(weight))
    _add_magnitudes(trunk.blocks[0].mlp.fc1, trunk.blocks[0].mlp.fc2, seed)


def _components(seed: int, width: int) -> Tensor:
    """Principal components of the world's patches, scaled towards equal variance, (width, 192)."""
    images = to_input([pretraining_pair(seed, index).image for index in range(400)]).double()
    patches = nn.functional.unfold(images, PATCH, stride=PATCH).transpose(1, 2).reshape(-1, 3 * PATCH * PATCH)
    values, vectors = torch.linalg.eigh(torch.cov(patches.T))
    scaled: Tensor = 0.5 * (vectors[:, -width:] / (values[-width:] + 0.004) ** 0.4).T.float()
    return scaled


def _add_magnitudes(first: nn.Linear, second: nn.Linear, seed: int) -> None:
    """Set half of a block's hidden units to gelu(x) + gelu(−x), close to |x|, of each channel, randomly mixed."""
    width = first.in_features
    generator = torch.Generator().manual_seed(seed)
    mix, _ = torch.linalg.qr(torch.randn(width, width, generator=generator))
    first.weight[: 2 * width] = 1.5 * torch.cat([torch.eye(width), -torch.eye(width)])
    first.bias[: 2 * width] = 0.0
    second.weight[:, : 2 * width] = 0.6 * torch.cat([mix, mix], dim=1)
    second.bias.copy_(-0.6 * mix.sum(dim=1))


def _waves(side: int, width: int) -> Tensor:
    """Sine and cosine waves over the rows and the columns of the patches."""
    rates = (1.0 / 100 ** (torch.arange(width // 4, dtype=torch.float64) / (width // 4)))[None]
    steps = torch.arange(side, dtype=torch.float64)[:, None] * rates
    waves = torch.cat([steps.sin(), steps.cos()], dim=1)
    down = waves[:, None].expand(side, side, -1)
    across = waves[None].expand(side, side, -1)
    return torch.cat([down, across], dim=2).reshape(side * side, width).float()


def write_tokenizer(folder: Path) -> None:
    """Train the byte-pair encoding and write it into a folder."""
    write_merges(train_merges(vocabulary_text(), MERGES), folder / MERGES_FILE)


def load_tokenizer(folder: Path) -> Any:
    """Return the open_clip tokenizer of a folder."""
    from open_clip.tokenizer import SimpleTokenizer

    return SimpleTokenizer(bpe_path=str(folder / MERGES_FILE), context_length=CONTEXT)


def write_folder(model: nn.Module, folder: Path, kind: Kind = "clip") -> None:
    """Write configuration, tokenizer and half-precision weights as an open_clip folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(json.dumps(config(kind), indent=2) + "\n")
    write_tokenizer(folder)
    halves = {name: value.detach().half().contiguous() for name, value in model.state_dict().items()}
    save_file(halves, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def read_folder(folder: Path) -> tuple[nn.Module, Any]:
    """Return model (evaluation mode, single precision) and tokenizer of a folder written by `write_folder`."""
    missing = [name for name in (CONFIG_FILE, WEIGHTS_FILE, MERGES_FILE) if not (folder / name).is_file()]
    if missing:
        raise BackboneError(f"{folder} has no {missing[0]}: create the folder with 'dear world pretrain --out FOLDER'.")
    settings = json.loads((folder / CONFIG_FILE).read_text())
    model = _create(settings["model_cfg"])
    model.load_state_dict({name: value.float() for name, value in load_file(folder / WEIGHTS_FILE).items()})
    return model.eval(), load_tokenizer(folder)


def to_input(images: Sequence[Bytes]) -> Tensor:
    """Return images as input of the model: (B, 3, 64, 64), values from −1 to 1."""
    stacked = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float()
    return stacked.div_(127.5).sub_(1.0).contiguous()
