"""Heads: what each attention head does, with the photos that it responds to."""

from __future__ import annotations

from collections.abc import Mapping

from dear.app.studio import Studio
from dear.backbone.clip import short_name
from dear.errors import ConfigError
from dear.reports.role_page import role_page
from dear.roles.examples import Examples, head_examples
from dear.roles.rolemap import RoleMap
from dear.roles.textspan import Span

MOST_IMAGES = 120
"""Photos that examples are chosen from."""


def heads_page(studio: Studio, *, with_examples: bool = False) -> str:
    """The page of the role map; `with_examples` looks for photos that each head responds to."""
    roles = required_roles(studio)
    examples = example_photos(studio, roles) if with_examples else None
    return role_page(roles, title=f"What the heads of {short_name(studio.model.clip.name)} do", examples=examples)


def required_roles(studio: Studio) -> RoleMap:
    """The role map; raises `ConfigError` if there is none."""
    if studio.roles is None:
        raise ConfigError("There is no role map for this CLIP: make one with 'dear roles discover'.")
    return studio.roles


def example_photos(studio: Studio, roles: RoleMap) -> Mapping[tuple[int, int], Examples]:
    """Photos of the run with the strongest and weakest response of each head along its first phrase."""
    if studio.photos is None or not studio.photos.shots:
        raise ConfigError("The photos that the run was trained on are not here, so there are no examples.")
    described = [head for head in roles.heads if head.phrases]
    texts = studio.model.clip.encode_text([head.phrases[0] for head in described]).double().cpu().numpy()
    spans = [Span((number,), (), 0.0) for number in range(len(described))]
    images = studio.photos.training_images().spread(MOST_IMAGES)
    return head_examples(studio.model.clip, images, [(head.layer, head.head) for head in described], spans, texts)
