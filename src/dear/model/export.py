"""`Baked`: the module that is exported. It maps images to logits; class features are constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from dear.backbone.clip import FrozenClip
from dear.backbone.precision import computing
from dear.methods.base import Method, Output


class Baked(nn.Module):
    """A model for one fixed class list, without a text tower. Created by `Model.baked`."""

    def __init__(self, clip: FrozenClip, method: Method, text: Any, names: Sequence[str]) -> None:
        super().__init__()
        self.clip, self.method, self._names = clip, method, tuple(names)
        leaves, self._spec = tree_flatten(text)
        for place, leaf in enumerate(leaves):
            self.register_buffer(f"text_{place}", leaf.clone())

    def __repr__(self) -> str:
        """One line instead of the module tree."""
        return f"Baked({self.method.name} on {self.clip.name}, without a text tower)"

    def forward(self, images: Tensor) -> Tensor:
        """(B, C) logits of the default readout."""
        leaves = [self.get_buffer(f"text_{place}") for place in range(self._spec.num_leaves)]
        text = tree_unflatten(leaves, self._spec)
        with computing(self.clip.device):
            out: Output = self.method(self.clip, self.clip.frozen(images, self._names), text)
        return out.logits
