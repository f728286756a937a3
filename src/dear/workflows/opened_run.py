"""Open the model that a workflow is called with: a folder, or a model that is loaded already."""

from __future__ import annotations

from pathlib import Path

from dear.engine.ranks import local_device
from dear.model.load import load
from dear.model.model import Model


def model_of(run: str | Path | Model, device: str | None, *, allow_pickled: bool) -> Model:
    """The model of a run, an adapter or hf-hub:ORG/REPO, loaded to a device; a loaded model is returned as it is."""
    if isinstance(run, Model):
        return run
    return load(run, device=local_device(device), allow_pickled=allow_pickled)
