"""Progress while images are read several times."""

import pytest

from dear.data.open import open_dataset
from dear.engine.feature_sets import drawn_images
from dear.progress.stages import heard_by
from helpers import build, make_photos


@pytest.mark.covers("T17")
def test_all_passes_over_the_images_are_one_stage(tiny_clips, tmp_path):
    """Ten passes were ten bars from 0 to 200, and a line every 30 seconds met each of them near 0."""
    data = open_dataset(make_photos(tmp_path / "photos", ["ant", "bee"], 3))
    model = build("tip_adapter_f", tiny_clips["shallow"], data.class_names)
    passes, heard = model.method.needs.passes, []
    with heard_by(lambda name, done, total: heard.append((name, done, total))):
        drawn_images(model, data, data.train, seed=1, crop=(0.5, 1.0), workers=1)
    counts = [(done, total) for name, done, total in heard if name == "reading images"]
    assert passes == 10
    assert counts == [(6 * number, 60) for number in range(11)]
