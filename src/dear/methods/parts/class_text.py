"""What `classes` and `text` return in methods that keep their class features near plain CLIP's.

Shapes: C classes, E joint embedding.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from dear.backbone.rows import Rows


class FrozenText(NamedTuple):
    """Rows of the prompts before the first adapted layer, and plain CLIP's class features."""

    rows: Rows
    plain_CE: Tensor


class AdaptedText(NamedTuple):
    """Adapted class features and plain CLIP's, both of unit length."""

    adapted_CE: Tensor
    plain_CE: Tensor
