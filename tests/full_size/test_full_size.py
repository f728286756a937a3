"""The paper's backbone and its larger sisters at full size, with random weights."""

import gc
import os

import pytest
import torch

import dear
from helpers import move_parameters, varied_roles
from oracle import assert_matches, compare_with_reference

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("full_size"),  # one after the other: each takes several GB
    pytest.mark.filterwarnings("ignore::dear.errors.DearWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def _all_cores():
    threads = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _free_memory():
    yield
    gc.collect()


def test_vit_b_16_with_the_papers_roles():
    clip = dear.load_clip("ViT-B-16-quickgelu", "random")
    model = dear.DeAR(clip, roles="vit-b-16")
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 399_622
    assert {f"method.{n}" for n in model.trainable()} == {n for n, p in model.named_parameters() if p.requires_grad}
    assert (model.method.first, model.method.text_first) == (9, 9)
    move_parameters(model)
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    names = ["cat", "a rather long class name", "dog"]
    assert_matches(
        compare_with_reference(model, images, torch.tensor([0, 2]), names, "a photo of a {}, a type of pet.")
    )
    assert all(p.grad is None for p in clip.parameters())

    shielded = dear.DeAR(clip, model.method.roles.all_generalization()).for_classes(names)
    move_parameters(shielded)
    model = model.for_classes(names)
    with torch.no_grad():
        assert (shielded(images).features["cls"] - clip.encode_image(images)).abs().max() <= 1e-6
        with model.disabled():
            assert torch.equal(model(images).features["cls"], clip.model.encode_image(images, normalize=True))


@pytest.mark.parametrize(
    ("name", "trainable", "precision"),
    [
        ("ViT-B-32", 5 * 768 + 5 * 512 + 768 * 512 + 6, "fp32"),
        ("ViT-L-14", 5 * 1024 + 5 * 768 + 1024 * 768 + 6, "bf16"),
        ("ViT-H-14", 5 * 1280 + 5 * 1024 + 1280 * 1024 + 6, "fp32"),
    ],
)
def test_larger_and_smaller_sisters(name, trainable, precision):
    clip = dear.load_clip(name, "random", precision=precision)
    model = dear.DeAR(clip, varied_roles(clip)).for_classes(["cat", "dog"])
    assert sum(p.numel() for p in model.trainable().values()) == trainable
    image = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    model.loss(image, torch.tensor([1]))["total"].backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.trainable().values())
