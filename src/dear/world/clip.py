"""Build, write and read the world's CLIP: an open_clip folder with configuration, tokenizer and weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dear.errors import BackboneError
from dear.world.bpe import train_merges, vocabulary_size, write_merges
from dear.world.grammar import vocabulary_text
from dear.world.raster import Bytes
from dear.world.samples import PATCH, pretraining_pair

MERGES = 600
CONTEXT = 32
CONFIG_FILE = "open_clip_config.json"
WEIGHTS_FILE = "open_clip_model.safetensors"
MERGES_FILE = "bpe_merges.txt.gz"


def assets_folder() -> Path:
    """Return the folder of the shipped weights."""
    return Path(__file__).parents[1] / "assets" / "world"


def config() -> dict[str, Any]:
    """Return the content of `open_clip_config.json`."""
    return {
        "model_cfg": {
            "embed_dim": 128,
            "vision_cfg": {"image_size": 64, "layers": 12, "width": 128, "head_width": 16, "patch_size": 8},
            "text_cfg": {
                "context_length": CONTEXT,
                "vocab_size": vocabulary_size(MERGES),
                "width": 96,
                "heads": 6,
                "layers": 12,
            },
        },
        "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
    }


def build(seed: int) -> nn.Module:
    """Return an untrained model with a hand-made initialisation of its vision tower.

    Patch positions are two-dimensional sine waves. Every block starts close to the identity, as open_clip's text tower
    does. The patch embedding is the principal components of patches, with the small ones amplified. The first block
    adds their magnitudes, which textures depend on; from random weights, learning these needs too many images.
    """
    from open_clip.model import CLIP

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = CLIP(**config()["model_cfg"])
    visual: Any = model.visual
    blocks = visual.transformer.resblocks
    with torch.no_grad():
        visual.positional_embedding.mul_(0.1)
        visual.positional_embedding[1:] += 0.25 * _waves(8, 128)
        for block in blocks:
            block.attn.out_proj.weight.mul_((2 * len(blocks)) ** -0.5)
            block.mlp.c_proj.weight.mul_((2 * len(blocks)) ** -0.5)
        visual.conv1.weight.copy_(_components(seed, len(visual.conv1.weight)).view_as(visual.conv1.weight))
        _add_magnitudes(blocks[0].mlp, seed)
    return model


def _components(seed: int, width: int) -> Tensor:
    """Principal components of the world's patches, scaled towards equal variance, (width, 192)."""
    images = to_input([pretraining_pair(seed, index).image for index in range(400)]).double()
    patches = nn.functional.unfold(images, PATCH, stride=PATCH).transpose(1, 2).reshape(-1, 3 * PATCH * PATCH)
    values, vectors = torch.linalg.eigh(torch.cov(patches.T))
    scaled: Tensor = 0.5 * (vectors[:, -width:] / (values[-width:] + 0.004) ** 0.4).T.float()
    return scaled


def _add_magnitudes(mlp: Any, seed: int) -> None:
    """Set half of a block's hidden units to gelu(x) + gelu(−x), close to |x|, of each channel, randomly mixed."""
    width = mlp.c_fc.in_features
    generator = torch.Generator().manual_seed(seed)
    mix, _ = torch.linalg.qr(torch.randn(width, width, generator=generator))
    mlp.c_fc.weight[: 2 * width] = 1.5 * torch.cat([torch.eye(width), -torch.eye(width)])
    mlp.c_fc.bias[: 2 * width] = 0.0
    mlp.c_proj.weight[:, : 2 * width] = 0.6 * torch.cat([mix, mix], dim=1)
    mlp.c_proj.bias.copy_(-0.6 * mix.sum(dim=1))


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


def write_folder(model: nn.Module, folder: Path) -> None:
    """Write configuration, tokenizer and half-precision weights as an open_clip folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(json.dumps(config(), indent=2) + "\n")
    write_tokenizer(folder)
    halves = {name: value.detach().half().contiguous() for name, value in model.state_dict().items()}
    save_file(halves, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def read_folder(folder: Path) -> tuple[nn.Module, Any]:
    """Return model (evaluation mode, single precision) and tokenizer of a folder written by `write_folder`."""
    from open_clip.model import CLIP

    missing = [name for name in (CONFIG_FILE, WEIGHTS_FILE, MERGES_FILE) if not (folder / name).is_file()]
    if missing:
        raise BackboneError(f"{folder} has no {missing[0]}: create the folder with 'dear world pretrain --out FOLDER'.")
    settings = json.loads((folder / CONFIG_FILE).read_text())
    model: nn.Module = CLIP(**settings["model_cfg"])
    model.load_state_dict({name: value.float() for name, value in load_file(folder / WEIGHTS_FILE).items()})
    return model.eval(), load_tokenizer(folder)


def to_input(images: Sequence[Bytes]) -> Tensor:
    """Return images as input of the model: (B, 3, 64, 64), values from −1 to 1."""
    stacked = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float()
    return stacked.div_(127.5).sub_(1.0).contiguous()
