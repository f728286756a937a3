"""Config fields that name a file, a folder or another model instead of a plain value."""

from __future__ import annotations

from dataclasses import dataclass

from dear.config import Settings


@dataclass(frozen=True)
class Resource:
    """Metadata of such a field: `lm: Annotated[str, Resource(external=True)] = ""`.

    Tables leave the field out unless several values are compared.
    """

    external: bool = False
    """Whether a saved run needs the resource but does not contain it.

    Its location is then not part of a fingerprint and can be changed on loading: `dear.load(…, moved=…)`.
    """


def resource_fields(config: type[Settings], *, external: bool = False) -> tuple[str, ...]:
    """Names of the config fields that are resources; with `external`, only of the external ones."""
    found = {
        name: one for name, field in config.model_fields.items() for one in field.metadata if isinstance(one, Resource)
    }
    return tuple(name for name, one in found.items() if one.external or not external)
