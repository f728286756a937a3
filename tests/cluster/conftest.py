"""A Ray of its own for the tests of a file."""

import pytest

from dear.cluster.connection import connected
from needs import needs, needs_posix


@pytest.fixture(scope="module")
def ray():
    """Ray on this machine, whose workers other programs do not starve: by default they are nice to them."""
    needs("ray")
    needs_posix()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        with connected("ray") as ray:
            yield ray
