"""What several files of commands share."""

from functools import cache

import pytest

from dear.backbone.load import clips_from, read_clip


@pytest.fixture(scope="module")
def loaded_once():
    """Backbones never change, so commands in one process can share them."""
    with clips_from(cache(read_clip)):
        yield
