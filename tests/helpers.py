"""What several tests need: tiny architectures, a role map with every role in it, models, moved parameters."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import dear
from dear.model.load import make_method
from dear.roles.rolemap import CORE_ATTRIBUTES, HeadRole, Provenance
from tiny_lm import tiny_lm

TINY_CONFIGS = {
    "plain": {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 32, "layers": 6, "width": 48, "head_width": 8, "patch_size": 8},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 6},
    },
    # LayerScale, no first norm, another epsilon, QuickGELU, another text depth, biased projection, end token by id.
    "odd": {
        "embed_dim": 20,
        "quick_gelu": True,
        "custom_text": True,
        "vision_cfg": {
            "image_size": 28,
            "layers": 5,
            "width": 40,
            "head_width": 10,
            "patch_size": 7,
            "ls_init_value": 0.5,
            "no_ln_pre": True,
            "norm_kwargs": {"eps": 1e-6},
        },
        "text_cfg": {
            "context_length": 40,
            "vocab_size": 49408,
            "width": 24,
            "heads": 3,
            "layers": 7,
            "proj_bias": True,
            "pool_type": "eos",
            "eos_id": 49407,
        },
    },
    # Fewer layers than are usually adapted.
    "shallow": {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 24, "layers": 2, "width": 36, "head_width": 6, "patch_size": 8},
        "text_cfg": {"context_length": 32, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 3},
    },
}

ROLE_CYCLE = [
    *((dear.Role.CORE, attribute) for attribute in CORE_ATTRIBUTES),
    (dear.Role.MIXED, None),
    (dear.Role.GENERALIZATION, "style"),
    (dear.Role.OTHER, "animal"),
]


def varied_roles(clip: dear.FrozenClip, first_layer: int | None = None) -> dear.RoleMap:
    """A map in which neighbouring heads have different roles and every role occurs."""
    sizes = clip.geometry
    first = first_layer or max(1, sizes.vision_layers - 3)
    places = [(layer, head) for layer in range(first, sizes.vision_layers + 1) for head in range(sizes.vision_heads)]
    heads = []
    for index, (layer, head) in enumerate(places):
        role, concept = ROLE_CYCLE[index % len(ROLE_CYCLE)]
        heads.append(HeadRole(layer=layer, head=head, role=role, concept=concept))
    return dear.RoleMap(heads=tuple(heads), provenance=Provenance(source="made up for a test"))


SPECIAL_CONFIGS: dict[str, dict[str, Any]] = {
    "dear": {"mask": "all_mixed"},
    "llamp": {"lm": tiny_lm(), "paraphrases": 2, "llm_prompts": 2},
    "role_gains": {"mask": "all_mixed"},
}
"""What a method must be told on a tiny CLIP: no role map is shipped for one, and no language model at all."""
WITHOUT_GRADIENT: dict[str, set[str]] = {"atprompt": {"ctx_att3"}}
"""Parameters of a method that get no gradient from its loss at the start, by name of the method."""
CANCELLING: dict[str, set[str]] = {
    "textrefiner": {"trans.conv1.bias"},
    "textrefiner_promptkd": {"trans.conv1.bias", "project.conv1.bias"},
}
"""Parameters whose gradients are zero up to rounding, such as a bias before batch statistics."""


def build(method: str, clip: dear.FrozenClip, classes: Sequence[str] = (), **config: Any) -> dear.Model:
    """Any registered method on a CLIP, for some classes."""
    made = make_method(method, clip, {**SPECIAL_CONFIGS.get(method, {}), **config}, seed=3)
    model = dear.Model(clip, made, trained_on=tuple(classes))
    return model.for_classes(classes) if classes else model


def plain_images(clip: dear.FrozenClip, count: int, seed: int = 1) -> torch.Tensor:
    """Random pixels of the size that a CLIP reads."""
    size = clip.geometry.image_size
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def move_parameters(model: dear.Model, seed: int = 0) -> None:
    """Shake everything trainable, as training would."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.trainable().values():
        scale = 0.3 * (float(parameter.std()) if parameter.numel() > 1 else 1.0) or 0.1  # some start at zero
        parameter += scale * torch.randn(parameter.shape, generator=generator)


def rewrite(path: Path, **changes: Any) -> None:
    """Edit the manifest of an adapter and make its own hash right again."""
    manifest = {key: value for key, value in {**json.loads(path.read_text()), **changes}.items() if key != "sha256"}
    own_hash = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**manifest, "sha256": own_hash}))


def largest(numbers: Iterable[float]) -> float:
    """The largest number, 0 if there is none, and NaN if any is NaN, unlike Python's `max`."""
    return float(torch.tensor([0.0, *numbers], dtype=torch.float64).max())


def make_photos(root: Path, classes: Sequence[str], images: int, seed: int = 0) -> Path:
    """A folder of class folders with small noisy PNGs, each class of its own colour."""
    random = np.random.default_rng(seed)
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(images):
            pixels = random.integers(0, 90, (36, 40, 3), dtype=np.uint8)
            pixels[..., label % 3] += 120
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def heed_interrupts() -> None:
    """For a child process: Ctrl-C and hanging up work even if the parent was started with them ignored, as by nohup."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
