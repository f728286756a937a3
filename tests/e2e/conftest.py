"""What several files of commands share."""

from functools import cache

import pytest

from dear.backbone import load


@pytest.fixture(scope="module")
def loaded_once():
    """Backbones never change, so commands in one process can share them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "load_clip", cache(load.load_clip))
        yield
