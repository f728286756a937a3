"""Open the model that a workflow is called with: a folder, or a model that is loaded already."""

from __future__ import annotations

from pathlib import Path

from dear.engine.ranks import local_device
from dear.model.load import load
from dear.model.model import Model
from dear.storage.files import as_folder


def model_of(run: str | Path | Model, device: str | None, *, allow_pickled: bool) -> Model:
    """The model of a run or adapter, loaded to a device; a loaded model is returned as it is."""
    if isinstance(run, Model):
        return run
    return load(as_folder(run), device=local_device(device), allow_pickled=allow_pickled)
