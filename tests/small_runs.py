"""The smallest jobs and grids on a folder of photos."""

from dear.data.open import open_dataset
from dear.engine.job import make_job
from dear.engine.settings import TrainSettings
from dear.evaluation.cells import make_cells
from dear.evaluation.grid import run_grid
from dear.options.parts import Bench

FEW = TrainSettings(epochs=1, batch_size=2)


def job_on(photos, seed=1, **more):
    return make_job(open_dataset(photos), shots=2, seed=seed, config={"mask": "all_mixed"}, train=FEW, **more)


def small_grid(out, tiny_folders, **options):
    """Options of a grid on a tiny CLIP, two images per step."""
    few = {"epochs": 1, "batch_size": 2}
    clip = {"clip": f"local-dir:{tiny_folders['shallow']}", "pretrained": "random"}
    return Bench(**{"out": out, **few, **clip, **options})


def grid_on(photos, tiny_folders, out, **now):
    options = small_grid(out, tiny_folders, workers=1, **now)
    cells = make_cells("few-shot", [str(photos)], methods=["zero_shot"], seeds=[1], shots=[1])
    return run_grid(cells, options)
