"""Moments as parts: their sizes depend on the number of images only, and their sum is that of one pass."""

import numpy as np
import pytest

from dear.roles import on_ray
from dear.roles.moments import BATCH, BLOCKS, Collected, collect_moments, read_moments, write_moments
from dear.roles.sources import images_from


@pytest.mark.parametrize("images", [1, 480, 481, 2000, 10_000, 1_000_000])
def test_sizes_of_parts(images):
    size = on_ray.part_size(images)
    assert size % (BATCH * BLOCKS) == 0
    assert -(-images // size) <= on_ray.MOST_PARTS


def test_the_sum_of_parts_is_that_of_one_pass(clip, tmp_path):
    images = images_from("world", 200)
    whole = collect_moments(clip, images, first_layer=1, batch=4, blocks=5, workers=1)
    starts = list(range(0, 200, 20))

    def read(start: int) -> Collected:
        part = images.chosen(range(start, start + 20))
        return collect_moments(clip, part, first_layer=1, batch=4, blocks=5, workers=1, least=0)

    summed = on_ray.added(starts, read)
    assert (summed.position, summed.problems) == (200, ())
    for one, other in zip(whole.blocks, summed.blocks, strict=True):
        assert one.count == other.count
        np.testing.assert_allclose(other.outer_MEE, one.outer_MEE, rtol=1e-12, atol=1e-14)
    write_moments(tmp_path, summed, clip, images, first_layer=1, batch=4, blocks=5)
    again = collect_moments(clip, images, first_layer=1, batch=4, blocks=5, checkpoint=tmp_path)
    np.testing.assert_array_equal(again.blocks[3].outer_MEE, summed.blocks[3].outer_MEE)
    assert read_moments(tmp_path, clip, images, first_layer=1, batch=4, blocks=5).position == 200
