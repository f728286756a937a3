"""Photos for every attack."""

import pytest

from helpers import make_photos


@pytest.fixture
def photos(tmp_path):
    return make_photos(tmp_path / "photos", ["ant", "bee", "cow", "dog"], 4)
