"""The terms of an image sum to its embedding at full size too."""

import pytest
import torch

import dear
from dear.roles.capture import contributions

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("full_size")]


def test_terms_of_vit_b_16_sum_to_the_embedding():
    clip = dear.load_clip("ViT-B-16-quickgelu", "random")
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    terms = contributions(clip, images)
    assert terms.heads_BLHE.shape == (2, 12, 12, 512)
    assert (terms.total() - clip.encode_image(images)).abs().max() <= 1e-5
