"""Settings of DeAR. The defaults are the paper's values, or our choice where the paper gives none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from dear.config import Former, Settings
from dear.methods.resource import Resource
from dear.roles.rolemap import RoleMap

MaskName = Literal["roles", "all_mixed", "all_generalization", "shuffled"]

Routing = Literal["open", "strict"]


def checked_roles(roles: Any) -> Any:
    """A value of the setting `roles`: a map, its path or its name; anything else raises a `ValueError`."""
    if roles is not None and not isinstance(roles, str | Path | RoleMap):
        raise ValueError(f"a role map is a RoleMap, a path or a name, not a {type(roles).__name__}")
    return roles


class DearConfig(Settings):
    """Config of DeAR. Layers are counted from 1."""

    former: ClassVar[Mapping[str, Former]] = {"routing": Former("strict_routing", ((False, "open"), (True, "strict")))}

    first_layer: int | None = Field(default=None, ge=1)
    """First vision layer that sees new tokens (J); default: the last four layers."""
    text_first_layer: int | None = Field(default=None, ge=1)
    """First text layer that sees new tokens; default: the last four layers."""
    tokens_per_attribute: int = Field(default=1, ge=1, le=64)
    """Vision tokens for each core attribute; an attribute's feature is the mean over its tokens."""
    text_tokens: int = Field(default=5, ge=0, le=256)
    """Learnable tokens inserted between the start token and the words."""
    beta: float = Field(default=0.9, ge=0, le=1)
    """Knowledge anchoring: weight of the raw token when a token is carried to the next layer."""
    routing: Routing = "open"
    """What tokens read in the heads of other attributes: open, the image (the main text's Eq. 9, so that they differ
    only in who reads them); strict, nothing but themselves (the supplement's section B)."""
    token_std: float = Field(default=0.02, gt=0)
    """Standard deviation of the tokens' random start."""
    projection: Literal["copy", "random", "low_rank"] = "copy"
    """Start of W_attr: a copy of CLIP's projection, random, or CLIP's frozen one plus a low-rank update."""
    projection_rank: int = Field(default=16, ge=1, le=4096)
    """Rank of the update, for projection='low_rank'."""
    alpha_cls: float = Field(default=0.7, ge=0.001, le=0.999)
    """Fusion weight of the [CLS] feature at the start; the attributes share the rest equally."""
    lambda_reg: float = Field(default=1.0, ge=0)
    """Weight of the two terms that keep the features near plain CLIP's."""
    lambda_fusion: float = Field(default=0.7, ge=0)
    """Weight of the term that keeps the fusion weight of [CLS] large."""
    fusion_loss: Literal["neg_log", "one_minus"] = "neg_log"
    """Form of that term: -ln α_cls, or 1 - α_cls."""
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Random start; default: the run's seed."""

    roles: Annotated[Any, Resource()] = Field(default=None, exclude=True)
    """Role map: a name, a roles.json, the folder of 'dear roles discover', or auto, which finds one if none is shipped
    for the weights; default: the one shipped for the weights. This and the next three decide the map that is saved
    with the adapter."""
    mask: MaskName = Field(default="roles", exclude=True)
    """Variant of the map, for ablations."""
    threshold: float | None = Field(default=None, exclude=True)
    """Cut the heads' entropies again at this percentage."""
    attributes: int | None = Field(default=None, exclude=True)
    """Use fewer or more core attributes."""

    _roles = field_validator("roles")(checked_roles)
