"""The training view: decided by the randomness handed in, always inside the image, drawn as torchvision draws."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import RandomResizedCrop

from dear.backbone.augment import ASPECT, crop_box

SCALE = (0.5, 1.0)


def picture(width, height, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


def test_same_randomness_same_bytes(clip):
    image = picture(50, 40)
    views = [clip.preprocess_train(image, random.Random(f"view {i}")) for i in (1, 1, 2)]
    assert views[0].shape == (3, 32, 32)
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])


def test_the_global_generators_play_no_part(clip):
    image, views = picture(50, 40), []
    for seed in (1, 2):
        random.seed(seed)
        torch.manual_seed(seed)
        views.append(clip.preprocess_train(image, random.Random("view")))
    assert torch.equal(*views)


def test_half_of_the_views_are_mirrored(clip):
    pixels = np.zeros((40, 40, 3), np.uint8)
    pixels[:, 20:] = 255
    chances = (random.Random(f"view {i}") for i in range(200))
    views = [clip.preprocess_train(Image.fromarray(pixels), chance) for chance in chances]
    mirrored = sum(bool(view[..., :8].mean() > view[..., -8:].mean()) for view in views)
    assert 70 < mirrored < 130


sizes = st.integers(1, 3000)


@given(height=sizes, width=sizes, seed=st.integers())
def test_boxes_lie_inside_the_image(height, width, seed):
    top, left, h, w = crop_box(height, width, SCALE, random.Random(seed))
    assert 0 <= top <= top + h <= height
    assert 0 <= left <= left + w <= width
    assert h >= 1
    assert w >= 1


@given(height=st.integers(200, 400), width=st.integers(200, 400), seed=st.integers())
def test_area_and_aspect_are_within_bounds(height, width, seed):
    _, _, h, w = crop_box(height, width, SCALE, random.Random(seed))
    assert SCALE[0] - 0.01 <= h * w / (height * width) <= SCALE[1]
    assert ASPECT[0] - 0.02 <= w / h <= ASPECT[1] + 0.02


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 2), (2000, 1), (1, 2000), (1000, 10), (10, 1000)])
def test_degenerate_images_work(clip, width, height):
    assert clip.preprocess_train(picture(width, height), random.Random(0)).shape == (3, 32, 32)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1"])
def test_other_modes_become_rgb(clip, mode):
    assert clip.preprocess_train(picture(40, 30).convert(mode), random.Random(0)).shape == (3, 32, 32)


@pytest.mark.parametrize(("height", "width"), [(300, 300), (300, 400), (300, 700)])
def test_crops_are_like_torchvisions(height, width):
    count = 3000
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    theirs = [RandomResizedCrop.get_params(image, list(SCALE), list(ASPECT)) for _ in range(count)]
    ours = [crop_box(height, width, SCALE, random.Random(i)) for i in range(count)]
    for measure in (
        lambda box: box[2] * box[3] / (height * width),
        lambda box: math.log(box[3] / box[2]),
        lambda box: box[0] / height,
        lambda box: box[1] / width,
    ):
        first, second = (torch.tensor([measure(box) for box in boxes]) for boxes in (theirs, ours))
        error = float((first.var() / count + second.var() / count).sqrt())
        assert float((first.mean() - second.mean()).abs()) < 4 * error + 1e-6
