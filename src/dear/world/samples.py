"""The infinite stream of pre-training pairs: pair i of a seed is always the same scene, image and caption."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dear.world.grammar import caption
from dear.world.raster import Bytes
from dear.world.render import SIZE, Look, Scene, compose, words
from dear.world.vocabulary import ATTRIBUTES, HELD_OUT_PAIRS, INDEX, NAMES, pair_is_held_out

PRETRAIN_STREAM = 1
HELD_OUT_STREAM = 2
PATCH = 8


def scene_has_held_out_pair(scene: Scene) -> bool:
    """Return whether a scene shows a combination that pre-training never shows."""
    return any(pair_is_held_out(a, b, getattr(scene, a), getattr(scene, b)) for a, b, _, _ in HELD_OUT_PAIRS)


def draw_scene(key: tuple[int, ...], held_out_pairs: bool = False) -> Scene:
    """Sample all five attributes uniformly; held-out combinations are excluded unless `held_out_pairs` is set."""
    attempt = 0
    while True:
        chance = words((*key, attempt), 5)
        scene = Scene(*(NAMES[a][chance[i] % len(NAMES[a])] for i, a in enumerate(ATTRIBUTES)))
        if held_out_pairs or not scene_has_held_out_pair(scene):
            return scene
        attempt += 1


@dataclass(frozen=True)
class Pair:
    """One image with its caption and its ground truth."""

    image: Bytes
    text: str
    scene: Scene
    mentioned: tuple[str, ...]
    shape_patches: NDArray[np.int32]  # share (0..256) of each 8 × 8 patch that the shape covers
    object_patches: NDArray[np.int32]


def _per_patch(cover: NDArray[np.int32]) -> NDArray[np.int32]:
    side = SIZE // PATCH
    sums = cover.reshape(side, PATCH, side, PATCH).sum(axis=(1, 3), dtype=np.int32)
    share: NDArray[np.int32] = sums.reshape(-1) // (PATCH * PATCH)
    return share


def pretraining_pair(seed: int, index: int) -> Pair:
    """Return pair number `index` of the stream of a seed."""
    scene = draw_scene((PRETRAIN_STREAM, seed, index, 0))
    layout = compose(scene, (PRETRAIN_STREAM, seed, index, 1), Look())
    text, mentioned = caption(scene, (PRETRAIN_STREAM, seed, index, 2))
    return Pair(layout.image, text, scene, mentioned, _per_patch(layout.shape), _per_patch(layout.object))


def held_out_image(index: int) -> tuple[Bytes, Scene]:
    """Return held-out image `index`: new seeds, new backgrounds, held-out combinations included."""
    scene = draw_scene((HELD_OUT_STREAM, index, 0), held_out_pairs=True)
    return compose(scene, (HELD_OUT_STREAM, index, 1), Look(held_out_places=True)).image, scene


def truth(scene: Scene) -> list[int]:
    """Return a scene's values as indices, in the order of `ATTRIBUTES`."""
    return [INDEX[a][getattr(scene, a)] for a in ATTRIBUTES]
