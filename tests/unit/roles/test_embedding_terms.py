"""The terms of an image sum to its CLIP embedding, and each is what the model's own pieces add."""

import pytest
import torch

import dear
from dear.roles.capture import contributions
from helpers import TINY_CONFIGS


def batch(clip, count=4):
    size = clip.geometry.image_size
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_terms_sum_to_the_embedding(tiny_clips, name):
    clip = tiny_clips[name]
    images = batch(clip)
    terms = contributions(clip, images)
    assert (terms.total() - clip.encode_image(images)).abs().max() <= 1e-5
    sizes = clip.geometry
    assert terms.heads_BLHE.shape == (4, sizes.vision_layers, sizes.vision_heads, sizes.embed_dim)
    assert terms.mlps_BLE.shape == (4, sizes.vision_layers, sizes.embed_dim)


def test_terms_sum_to_the_embedding_of_a_trained_clip(shared_data):
    clip = dear.load_clip(f"local-dir:{shared_data / 'clip-s14'}")
    images = batch(clip, 2)
    assert (contributions(clip, images).total() - clip.encode_image(images)).abs().max() <= 1e-5


def test_one_image_does_not_depend_on_the_others(clip):
    images = batch(clip)
    alone = contributions(clip, images[2:3]).heads_BLHE[0]
    assert torch.allclose(contributions(clip, images).heads_BLHE[2], alone, atol=1e-6)


def test_a_silenced_head_contributes_the_same_to_every_image(tiny_folders):
    clip = dear.load_clip(f"local-dir:{tiny_folders['plain']}", "random", seed=7)
    attention, width = (
        clip.model.visual.transformer.resblocks[2].attn,
        clip.geometry.vision_width // clip.geometry.vision_heads,
    )
    with torch.no_grad():
        attention.out_proj.weight[:, width : 2 * width] = 0
        attention.out_proj.bias.zero_()
        clip.vision.final_norm.bias.zero_()
    heads_BLHE = contributions(clip, batch(clip)).heads_BLHE
    # What is left of it is its share of the final norm's mean: the same direction for every image.
    silent_BE = heads_BLHE[:, 2, 1]
    assert torch.linalg.matrix_rank(silent_BE.double(), rtol=1e-4) <= 1
    assert torch.linalg.matrix_rank(heads_BLHE[:, 2, 0].double(), rtol=1e-4) > 1
