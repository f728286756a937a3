"""Ann, who may push; her run; and another person, who has neither her token nor her cache."""

from pathlib import Path

import pytest
from huggingface_hub import constants

import dear
from hub_runs import PETS, make_run


@pytest.fixture(autouse=True)
def token(hub, monkeypatch):
    """Ann's token."""
    hub.writers["hf_ann"] = {"ann"}
    monkeypatch.setenv("HF_TOKEN", "hf_ann")


@pytest.fixture
def run(hub, tmp_path) -> Path:
    """The folder of a run with an adapter, and with files of the run that nobody else should see."""
    return make_run(tmp_path / "run")


@pytest.fixture
def elsewhere(hub, monkeypatch, tmp_path):
    """Continue as another person: no token, an empty cache, another working directory."""

    def go():
        monkeypatch.delenv("HF_TOKEN")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "their-cache"))
        (tmp_path / "theirs").mkdir()
        monkeypatch.chdir(tmp_path / "theirs")
        hub.requests.clear()

    return go


@pytest.fixture
def pushed(hub, run, elsewhere):
    """A repository with an adapter, seen from elsewhere."""
    dear.push(run, PETS)
    elsewhere()
    return hub
