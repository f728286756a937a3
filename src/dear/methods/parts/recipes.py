"""Published training recipes that several methods share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dear.methods.recipe import Special

DASSL: dict[str, Any] = {"optimiser": "sgd", "lr": 2e-3, "batch_size": 32, "drop_last": True, "crop": (0.08, 1.0)}
"""The recipe of CoOp and its successors, which were written with the Dassl toolbox."""
TRANSFER = ("cross-dataset", "domain")
"""Protocols that train on one data set and test on others."""


def by_data(name: str, values: Mapping[str, float]) -> tuple[Special, ...]:
    """Published values of one config field by data set."""
    return tuple(Special(config={name: value}, data=(data,)) for data, value in values.items())
