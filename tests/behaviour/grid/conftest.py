"""Photos, the options of a small grid on them, and a list of what was trained."""

import pytest

from dear.evaluation import cell_run
from grid_cells import CLASSES
from helpers import make_photos
from small_runs import small_grid


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return make_photos(tmp_path_factory.mktemp("data") / "photos", CLASSES, 4)


@pytest.fixture
def setting(tiny_folders, tmp_path):
    def setting(out="out", **changes):
        return small_grid(tmp_path / out, tiny_folders, **{"workers": 1, "threads": 1, "epochs": 2, **changes})

    return setting


@pytest.fixture
def trainings(monkeypatch):
    """Names of the runs that are trained or resumed."""
    ran, train_model = [], cell_run.train_model

    def counted(job, model, folder, **more):
        ran.append((folder.name, more["if_exists"] == "resume"))
        return train_model(job, model, folder, **more)

    monkeypatch.setattr(cell_run, "train_model", counted)
    return ran
