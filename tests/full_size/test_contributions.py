"""The terms of an image sum to its embedding at full size too."""

import warnings

import pytest
import torch

import dear
from dear.model.explanation import explain_image
from dear.model.load import make_method
from dear.model.model import Model
from dear.roles.capture import contributions

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("full_size")]


def test_terms_of_vit_b_16_sum_to_the_embedding():
    clip = dear.load_clip("ViT-B-16-quickgelu", "random")
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    terms = contributions(clip, images)
    assert terms.heads_BLHE.shape == (2, 12, 12, 512)
    assert (terms.total() - clip.encode_image(images)).abs().max() <= 1e-5


@pytest.mark.parametrize("method", ["zero_shot", "coop", "dear"])
def test_an_answer_of_vit_b_16_is_the_sum_of_its_parts(method):
    clip = dear.load_clip("ViT-B-16-quickgelu", "random")
    roles = dear.RoleMap.load("vit-b-16")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the map is of other weights
        made = make_method(method, clip, {"roles": roles} if method == "dear" else {}, seed=1)
    image = torch.randn(3, 224, 224, generator=torch.Generator().manual_seed(0))
    found = explain_image(Model(clip, made).for_classes(["cat", "dog", "a red car"]), image, roles=roles)
    assert float(found.parts[-1].values_C.abs().max()) <= 1e-4
    for part in (part for part in found.parts if part.kind == "head"):
        assert torch.allclose(part.sources_NC.sum(0), part.values_C, atol=1e-5)
    assert found.heat("color").shape == (3, 14, 14)
