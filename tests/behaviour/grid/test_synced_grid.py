"""A grid that is synced to a new folder continues there, and its adapters can be loaded."""

import dear
from dear.evaluation.cell_run import RUNS
from dear.evaluation.grid import run_grid
from grid_cells import cells, comparable
from helpers import varied_roles


def test_a_synced_grid_is_resumed_and_its_adapters_are_loaded(photos, setting, trainings, tiny_folders, tmp_path):
    clip = dear.load_clip(f"local-dir:{tiny_folders['shallow']}", "random")
    roles = tmp_path / "roles.json"
    varied_roles(clip).save(roles)
    planned = cells(photos, "few-shot", methods=["dear"], choices={"roles": [str(roles)], "mask": ["roles"]})
    before = run_grid(planned, setting())
    url, new = f"file://{tmp_path}/shared", setting("new", resume=True)
    dear.sync(setting().out, url)
    dear.sync(new.out, url)
    trainings.clear()
    assert comparable(run_grid(planned, new)) == comparable(before)
    assert trainings == []
    (run,) = (new.out / RUNS).iterdir()
    assert dear.load(run, clip=clip).method.roles is not None
