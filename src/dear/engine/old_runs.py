"""Runs of format 1 in the words of format 2, so that they can be read and resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from dear.methods.recipe import Recipe
from dear.storage import documents


class _Backbone(documents.Form):
    name: str
    pretrained: str | None
    precision: str
    weights_sha256: str


class _Description(documents.Form):
    data: str
    template: str
    classes: list[str]
    shots: int = Field(ge=1)
    seed: int = Field(ge=0)
    method: str
    settings: dict[str, Any]
    train: dict[str, Any]
    backbone: _Backbone


class _Source(documents.Form):
    data: str | None = None
    root: str | None = None
    renamed: dict[str, str] | None = None
    added: list[str] | None = None


class _RoleMap(documents.Form):
    sha256: str
    source: str


class RunRecord(documents.Form):
    """What the record of a run says, in format 1 and 2."""

    description: _Description
    source: _Source | None = None
    role_map: _RoleMap | None = None


_RENAMED = {"batch": "batch_size", "weight_decay": "decay"}


def from_format_1(description: Mapping[str, Any]) -> dict[str, Any]:
    """A description whose training is a resolved recipe; it was always AdamW then, and classes were never chunked."""
    told = {_RENAMED.get(name, name): value for name, value in description["train"].items()}
    machine = {"micro_batch": told.pop("micro_batch", None), "class_chunk": None, "precision": told.pop("precision")}
    recipe = Recipe(**(told if description["method"] != "zero_shot" else {"epochs": 0}))
    return {**description, "recipe": "own", "train": {**recipe.model_dump(mode="json"), **machine}}
