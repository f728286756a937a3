"""Cells that were measured before still count as done: their fingerprints are a promise to whoever has results."""

from pathlib import Path

import pytest

from dear.engine.workspace import Workspace
from dear.evaluation.cell_run import done_before
from dear.evaluation.cells import make_cells
from dear.options.parts import Bench

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.covers("T8")
@pytest.mark.parametrize("method", ["dear", "role_gains", "coop", "tip_adapter"])
def test_cells_of_the_world_are_done(method):
    options, workspace = Bench(out=RESULTS / "world", clip="world", recipe="shared", cached_views=10), Workspace()
    sets = ["world-blooms", "world-textures"]
    for cell in make_cells("base-to-novel", sets, methods=[method], seeds=[1, 3], shots=[16]):
        done = done_before(cell, options, workspace)
        assert done is not None, cell.slug
        assert (done.role_map is not None) == (method in ("dear", "role_gains"))  # by its fingerprint, as the recipe
        assert done.training.recipe.epochs == 10
