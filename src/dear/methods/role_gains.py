"""Role gains: one learned factor for the heads of each role and concept.

An image's CLIP embedding is a sum of contributions of heads and MLPs. The contributions are grouped by role and concept
of the heads, and each group has a factor, its gain. The loss is convex in the gains, so Newton's method finds them from
the contributions in the training images, which are computed once.

Shapes: B images, N training images, G groups (the last has all other contributions), C classes, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor, nn

from dear.backbone.clip import FrozenClip
from dear.backbone.frozen import PLAIN, TERMS
from dear.backbone.head_contributions import name_groups
from dear.data.images import ImageList
from dear.data.prompts import ClassList
from dear.errors import ConfigError
from dear.methods.api import About, Batch, Can, Draw, Method, Needs, Output, Reading, Recipe, Resource, Settings, unit
from dear.methods.base import tokens_of
from dear.methods.dear.config import MaskName, checked_roles
from dear.methods.dear.method import first_layer
from dear.methods.dear.roles import roles_for, with_auto_roles
from dear.roles.groups import REST, groups_of
from dear.roles.known import check_roles
from dear.roles.rolemap import ROLES, RoleMap

BLOCK = 256  # images at once
MOST_STEPS = 100


class RoleGainsConfig(Settings):
    """Config of role gains."""

    pull: float = Field(default=0.01, gt=0)
    """Weight of the sum of (gain - 1)², which pulls towards plain CLIP."""
    first_layer: int | None = Field(default=None, ge=1)
    """First layer whose heads have roles; default: the last four layers."""
    roles: Annotated[Any, Resource()] = Field(default=None, exclude=True)
    """Role map: a name, a roles.json, a folder of 'dear roles discover', or auto; default: the weights' known one.
    This and the next decide the map that is saved with the adapter."""
    mask: MaskName = Field(default="roles", exclude=True)
    """Variant of the map, for ablations."""

    _roles = field_validator("roles")(checked_roles)


class RoleGains(Method[RoleGainsConfig]):
    """One factor for the heads of each role and concept, from frozen contributions; fitted in a second."""

    name = "role_gains"
    needs_of_clip = frozenset({Can.IMAGE_LAYERS})
    recipe = Recipe(epochs=0)
    about = About(
        citation="This project, 2026",
        year=2026,
        touches="contributions of heads to the image feature",
        parameters=None,
        needs="a role map",
        trained="14 (shipped map)",
    )
    readouts: ClassVar[Mapping[str, str]] = {"default": "gains", "transfer": "plain"}

    @classmethod
    def prepare(
        cls, clip: FrozenClip, images: ImageList, config: Mapping[str, Any], say: Callable[[str], None]
    ) -> Mapping[str, Any]:
        """Find the role map for `roles="auto"`."""
        return with_auto_roles(clip, images, config, say)

    def __init__(self, clip: FrozenClip, config: RoleGainsConfig, **others: Any) -> None:
        super().__init__(clip, config, **others)
        first = first_layer(self.config.first_layer, clip.vision.depth, "first_layer")
        if ROLES in self.files:
            self.roles = RoleMap.from_json(self.files[ROLES], where=ROLES)
        else:
            self.roles = roles_for(clip, self.config.roles, self.config.mask, first_layer=first, seed=self.seed)
        check_roles(self.roles, clip, first)
        self.files[ROLES] = self.roles.to_json()
        groups = groups_of(self.roles)
        self.groups = (*groups, REST)
        self.quantity = TERMS + name_groups(list(groups.values()))
        self.needs = Needs(image=(self.quantity,), training=(PLAIN + self.quantity,))
        self.gains = nn.Parameter(torch.ones(len(self.groups)))

    def facts(self) -> dict[str, str]:
        """The gains, largest first, and where the roles come from."""
        largest_first = sorted(zip(self.groups, self.gains.tolist(), strict=True), key=lambda one: -one[1])
        return {
            "gains": ", ".join(f"{name} {gain:.2f}" for name, gain in largest_first),
            "role map": self.roles.provenance.source,
        }

    def begin(self, clip: FrozenClip, draw: Draw) -> None:
        """Fit the gains."""
        terms_NGE = draw.image[PLAIN + self.quantity]
        found = best_gains(
            terms_NGE * clip.temperature, self.classes(clip, draw.classes), draw.labels, self.config.pull
        )
        with torch.no_grad():
            self.gains.copy_(found)

    def classes(self, clip: FrozenClip, classes: ClassList) -> Tensor:
        """Plain CLIP's class features, of unit length: (C, E)."""
        tokens_of(clip, classes)
        return clip.encode_text(classes.prompts())

    def forward(
        self, clip: FrozenClip, image: Mapping[str, Tensor], text: Tensor, batch: Batch | None = None
    ) -> Output:
        """Cosines of the weighted and of the plain sum with the classes; one feature per group of heads."""
        terms_BGE = image[self.quantity]
        plain_BE, weighted_BE = terms_BGE.sum(1), (self.gains[:, None] * terms_BGE).sum(1)
        each = dict(zip(self.groups[:-1], unit(terms_BGE).unbind(1), strict=False))
        return Output(
            {
                name: clip.temperature * sum_BE @ text.T
                for name, sum_BE in (("gains", weighted_BE), ("plain", plain_BE))
            },
            features={"cls": unit(plain_BE), **each},
            weights=dict(zip(self.groups, self.gains.unbind(), strict=True)),
            classes=text,
        )

    def readings(self, clip: FrozenClip, readout: str) -> tuple[Reading, ...]:
        """The [CLS] row with gains as factors."""
        if readout != "gains":
            return (Reading(),)
        gains = dict(zip(self.groups, self.gains.tolist(), strict=True))
        places = {place: gains[name] for name, heads in groups_of(self.roles).items() for place in heads}
        return (Reading(gains=places, rest=gains[REST]),)

    def loss(self, out: Output, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy, and a quadratic pull towards 1."""
        pull = self.config.pull * (self.gains - 1).square().sum()
        return {**super().loss(out, batch), "pull": pull}


@torch.no_grad()
def best_gains(terms_NGE: Tensor, classes_CE: Tensor, labels_N: Tensor, pull: float) -> Tensor:
    """The gains (G,) with the smallest mean cross-entropy + pull · Σ (gain - 1)², by Newton's method in fp64."""
    gains_G = torch.ones(terms_NGE.shape[1], dtype=torch.float64, device=terms_NGE.device)
    data = terms_NGE, classes_CE, labels_N, pull
    value, slope_G, curve_GG = _derivatives(gains_G, *data)
    for _ in range(MOST_STEPS):
        step_G = torch.linalg.solve(curve_GG, slope_G)
        promised = float(slope_G @ step_G)
        if promised < 1e-12:
            break
        size = 1.0
        while size > 1e-6:
            tried = _derivatives(gains_G - size * step_G, *data)
            if tried[0] <= value - 1e-4 * size * promised:
                break
            size /= 2
        gains_G = gains_G - size * step_G
        value, slope_G, curve_GG = tried
    if not bool(gains_G.isfinite().all()):
        raise ConfigError("The gains are not finite: check the role map and the images.")
    return gains_G


def _derivatives(
    gains_G: Tensor, terms_NGE: Tensor, classes_CE: Tensor, labels_N: Tensor, pull: float
) -> tuple[float, Tensor, Tensor]:
    """Value, gradient and Hessian of the loss, some images at a time."""
    off_G, count = gains_G - 1, terms_NGE.shape[0]
    value, slope_G = pull * float(off_G @ off_G), 2 * pull * off_G
    curve_GG = 2 * pull * torch.eye(gains_G.shape[0], dtype=torch.float64, device=gains_G.device)
    for at in range(0, count, BLOCK):
        labels_B = labels_N[at : at + BLOCK]
        scores_BGC = terms_NGE[at : at + BLOCK].double() @ classes_CE.double().T
        logits_BC = torch.einsum("g,bgc->bc", gains_G, scores_BGC)
        value += float(F.cross_entropy(logits_BC, labels_B, reduction="sum")) / count
        chances_BC = logits_BC.softmax(1)
        mean_BG = torch.einsum("bc,bgc->bg", chances_BC, scores_BGC)
        right_BG = scores_BGC[torch.arange(labels_B.shape[0], device=labels_B.device), :, labels_B]
        slope_G = slope_G + (mean_BG - right_BG).sum(0) / count
        second_GG = torch.einsum("bc,bgc,bhc->gh", chances_BC, scores_BGC, scores_BGC)
        curve_GG = curve_GG + (second_GG - mean_BG.T @ mean_BG) / count
    return value, slope_G, curve_GG
