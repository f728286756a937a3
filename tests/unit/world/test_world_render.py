"""The renderer: same bytes for the same key, whatever was drawn before, and the truth is what one sees."""

import hashlib

import numpy as np
import pytest

from dear.errors import ConfigError
from dear.world import locations, textures
from dear.world.objects import OBJECT_STEPS, PAINTS, SHAPE_STEPS, object_coverage, shape_coverage
from dear.world.raster import Board, box, line, oval, polygon
from dear.world.render import SIZE, Look, Scene, compose, render
from dear.world.samples import (
    draw_scene,
    held_out_image,
    pretraining_pair,
    scene_has_held_out_pair,
    truth,
)
from dear.world.styles import STYLES, apply_style
from dear.world.vocabulary import ATTRIBUTES, HELD_OUT_PAIRS, NAMES, RGB, VALUES, pair_is_held_out

GOLDEN = [
    "0645509c279d0b61",
    "4cc9ff9d2c6fac6b",
    "26e23dd89564be51",
    "7065b1482e3aee74",
    "b64a8c2057e1e1f5",
    "97cd4dd97c3f2afe",
    "08f0ecbacce1cb94",
    "84a41ff781c89c94",
    "46280f62b676bb04",
    "8d2cd30a58a85060",
    "25fb12b468806cbb",
    "5bf176af5e18c74e",
    "57dc330b3fa6ddd8",
    "89576b634ba2d137",
    "05d4fe33b5a1c55f",
]
GOLDEN_PARTS = "d139f50867a2f8e3"
SCENE = Scene("red", "star", "plain", "key", "desert")


def digest(image):
    return hashlib.sha256(image.tobytes()).hexdigest()[:16]


def test_golden_images():
    found = [digest(pretraining_pair(0, i).image) for i in (0, 1, 999)]
    found += [digest(held_out_image(i)[0]) for i in (0, 7)]
    found += [digest(render(SCENE, (5, 5), Look(style=style))) for style in STYLES]
    assert found == GOLDEN


def test_backgrounds_and_tiles_have_not_changed():
    every = b"".join(locations.background(name, v).tobytes() for name in NAMES["location"] for v in (0, 25))
    every += b"".join(textures.tile(name, 3).tobytes() for name in NAMES["texture"])
    assert hashlib.sha256(every).hexdigest()[:16] == GOLDEN_PARTS


def test_an_image_does_not_depend_on_what_was_drawn_before():
    alone = render(SCENE, (1, 2))
    for i in range(5):
        pretraining_pair(3, i)
    assert np.array_equal(alone, render(SCENE, (1, 2)))
    assert not np.array_equal(alone, render(SCENE, (1, 3)))
    assert alone.shape == (SIZE, SIZE, 3)
    assert alone.dtype == np.uint8


def test_vocabulary_is_large_enough_and_complete():
    for attribute, least in zip(ATTRIBUTES, (8, 8, 8, 10, 8), strict=True):
        assert len(NAMES[attribute]) >= least
        words = [w for v in VALUES[attribute] for w in (*v.seen, *v.held_out)]
        assert len(set(words)) == len(words)
    assert set(RGB) == set(NAMES["color"])
    assert set(SHAPE_STEPS) == set(NAMES["shape"])
    assert set(OBJECT_STEPS) == set(PAINTS) == set(NAMES["object"])
    assert set(textures.PATTERNS) == set(NAMES["texture"])
    assert set(locations.PAINTERS) == set(NAMES["location"])


def test_the_shape_has_its_color():
    for color, rgb in RGB.items():
        layout = compose(SCENE._replace(color=color), (4, 4), Look(light=0, noise=0, clutter=0))
        inside = layout.image[layout.shape >= 252]  # 9 samples give at most 252 of 256
        assert len(inside) > 100
        assert np.abs(np.median(inside, axis=0) - rgb).max() <= 6


def test_shape_and_object_stay_recognisable():
    for i in range(60):
        layout = compose(draw_scene((8, i)), (8, i, 1), Look())
        assert (layout.shape > 128).sum() > 90
        assert (layout.object > 128).sum() > 60
        assert (layout.shape + layout.object).max() <= 256


def test_no_two_sprites_look_alike():
    for coverage, names in ((shape_coverage, NAMES["shape"]), (object_coverage, NAMES["object"])):
        masks = [coverage(name, 32, 0, False).sum(axis=0) > 128 for name in names]
        for i, a in enumerate(masks):
            for b in masks[:i]:
                assert (a ^ b).sum() > 30


def test_held_out_pairs_never_appear_in_pretraining_but_do_later():
    scenes = [pretraining_pair(0, i).scene for i in range(40)]
    scenes += [draw_scene((1, 0, i, 0)) for i in range(3000)]
    assert not any(scene_has_held_out_pair(scene) for scene in scenes)
    later = [draw_scene((2, i), held_out_pairs=True) for i in range(500)]
    assert 0.2 < np.mean([scene_has_held_out_pair(scene) for scene in later]) < 0.7
    for first, second, _, _ in HELD_OUT_PAIRS:
        for a in NAMES[first]:
            held = [pair_is_held_out(first, second, a, b) for b in NAMES[second]]
            assert 0 < sum(held) < len(held) / 2


def test_pretraining_draws_all_values_about_evenly():
    counts = {
        a: np.bincount([truth(draw_scene((1, 0, i, 0)))[k] for i in range(2400)]) for k, a in enumerate(ATTRIBUTES)
    }
    for attribute, count in counts.items():
        assert len(count) == len(NAMES[attribute])
        assert count.min() > 0.5 * count.mean()


def test_held_out_renderings_use_new_backgrounds():
    look = Look(held_out_places=True, noise=0, light=0, clutter=0)
    assert not np.array_equal(render(SCENE, (1, 1), look), render(SCENE, (1, 1), Look(noise=0, light=0, clutter=0)))


def test_styles_change_the_picture_and_unknown_ones_are_named():
    image = render(SCENE, (1, 1))
    for style in STYLES:
        out = apply_style(image, style)
        assert out.dtype == np.uint8
        assert (style == "painted") == np.array_equal(out, image)
    with pytest.raises(ConfigError, match=r"no style 'sketchy'.*Did you mean 'sketch'"):
        apply_style(image, "sketchy")


def test_primitives_cover_their_area():
    board = Board()

    def area(patch):
        return patch[1].sum() / 4  # two cells a unit each way

    assert area(box(board, 10, 10, 30, 20)) == 200
    assert area(polygon(board, [(0, 0), (50, 0), (0, 50)])) == pytest.approx(1250, rel=0.03)
    assert area(oval(board, 50, 50, 20, 10)) == pytest.approx(628, rel=0.02)
    assert area(line(board, 20, 50, 60, 50, 4)) == pytest.approx(172, rel=0.05)
    assert area(box(board, -50, -50, -10, -10)) == 0
