"""The document `run.json`: what a run was asked to do, and with what."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from dear.errors import DataError
from dear.storage.documents import Document, OpenRecord


class _Backbone(OpenRecord):
    name: str
    pretrained: str | None
    precision: str
    weights_sha256: str


class _Description(OpenRecord):
    data: str
    template: str
    classes: list[str]
    shots: int = Field(ge=1)
    seed: int = Field(ge=0)
    method: str
    settings: dict[str, Any]
    train: dict[str, Any]
    backbone: _Backbone


class _Source(OpenRecord):
    data: str | None = None
    root: str | None = None
    renamed: dict[str, str] | None = None
    added: list[str] | None = None


class _RoleMap(OpenRecord):
    sha256: str
    source: str


class RunRecord(Document, OpenRecord):
    """The record of a run; entries that are not named here are stored and read back as they are."""

    format = "dear-run"
    version = 2
    noun = "run record"
    error = DataError

    description: _Description
    source: _Source | None = None
    role_map: _RoleMap | None = None
    test_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of each class that was set aside for the test; runs of earlier versions set none aside."""
    other_shots: list[str] | None = None
    """Images of the other half that the shots file of the run lists; None if shots were sampled."""
    class_chunk: int | None = Field(default=None, ge=1)
    """Classes that were encoded at once, chosen or found from the free memory; None: all. Not in the fingerprint."""
