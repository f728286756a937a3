"""Layer numbers that were published for towers of twelve layers, in towers of other depths."""

from __future__ import annotations

from collections.abc import Iterable

PUBLISHED_DEPTH = 12
"""Number of layers of the towers that methods were published for."""


def of_twelve(depth: int, first: int, last: int) -> dict[int, int]:
    """Layers `first`..`last` of twelve → layers of a tower of another depth, counted from its end, at least one."""
    found = {layer: layer + depth - PUBLISHED_DEPTH for layer in range(first, last + 1)}
    return {layer: own for layer, own in found.items() if own >= 1} or {last: 1}


def counted_from_end(layers: Iterable[int], depth: int) -> tuple[int, ...]:
    """Layers of twelve → layers of a tower of another depth, counted from its end, each once and at least 1."""
    return tuple(sorted({max(1, depth - PUBLISHED_DEPTH + layer) for layer in layers}))
