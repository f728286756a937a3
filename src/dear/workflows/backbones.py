"""List backbones: what can be done with each, and which methods work with it."""

from __future__ import annotations

from dear.backbone.catalogue import ListedBackbone, list_known
from dear.backbone.names import SUGGESTION, resolve_name
from dear.backbone.support import Can, missing
from dear.errors import BackboneError, backbone
from dear.methods.registry import get_method, list_methods

NONE = "-"
POOLS = {
    "token": "[CLS]",
    "average": "average of the patches",
    "map": "attention pooling",
    "": "by the tower as a whole",
}


def known_backbones() -> list[ListedBackbone]:
    """Every backbone that has weights."""
    return list_known()


def find_backbone(name: str) -> ListedBackbone:
    """The backbone of a name, spelt as `dear.load_clip` accepts it."""
    resolved = resolve_name(name)
    found = next((one for one in list_known() if one.name == resolved), None)
    if found is None:
        raise BackboneError(f"No weights of {resolved} are listed: see {backbone(*SUGGESTION)}, or load a folder.")
    return found


def backbone_table() -> list[tuple[str, ...]]:
    """A table of all backbones with its head."""
    head = ("backbone", "pixels", "size", "layers", "extra", "weights")
    return [head, *(_row(one) for one in list_known())]


def describe_backbone(one: ListedBackbone) -> list[tuple[str, str]]:
    """Everything about a backbone, as pairs of a word and a text."""
    working = [name for name in list_methods() if not missing(get_method(name).needs_of_clip, one.can)]
    return [
        ("backbone", one.name),
        ("weights", _weights(one)),
        ("images", f"{one.pixels} × {one.pixels} pixels"),
        ("parameters", "not known before it is loaded" if one.parameters is None else f"{one.parameters:,}"),
        ("can", ", ".join(can.value for can in Can if can in one.can)),
        ("image feature", POOLS[one.pool]),
        ("extra", f'pip install "dear-vlm[{one.extra}]"' if one.extra else NONE),
        ("methods", ", ".join(working)),
    ]


def _row(one: ListedBackbone) -> tuple[str, ...]:
    layers = [name for can, name in ((Can.IMAGE_LAYERS, "image"), (Can.TEXT_LAYERS, "text")) if can in one.can]
    size = NONE if one.parameters is None else f"{one.parameters / 1e6:,.0f} M"
    return one.name, str(one.pixels), size, ", ".join(layers) or NONE, one.extra or NONE, _weights(one)


def _weights(one: ListedBackbone) -> str:
    return ", ".join(one.tags) or "comes with this package"
