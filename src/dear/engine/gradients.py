"""The gradient of one step: text once, images in micro-batches, classes in chunks, exactly as if it were one piece.

The graph is cut at what `method.text` gives: its gradients are summed over the micro-batches, then go back through the
text tower once, chunk by chunk if the classes are chunked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from dear.backbone.precision import computing
from dear.engine.feed import IMAGES, StepImages
from dear.methods.base import Batch, Output, total_of
from dear.model.model import Model

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
Grads = dict[str, dict[str, Tensor]]
"""From a term of the loss to {parameter: gradient}."""


@dataclass
class Share:
    """What one process's images add to a step: sums over its rows, to be divided by the rows of all processes."""

    rows: int = 0
    grads: Grads = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    out: Output | None = None

    def add(self, term: str, name: str, gradient: Tensor | None) -> None:
        """Add to a parameter's gradient; one without gradient stays without."""
        if gradient is not None:
            of_term = self.grads.setdefault(term, {})
            of_term[name] = of_term[name] + gradient if name in of_term else gradient


class _Text:
    """The classes of a step, cut from the graph: leaves that collect gradients, and the way back."""

    def __init__(self, model: Model, batch: Batch) -> None:
        self._model, self._batch, self._parts = model, batch, model.frozen_parts()
        self._chunked = len(self._parts) > 1
        with torch.set_grad_enabled(not self._chunked):
            made = model.step_text(batch, self._parts)
        self._made, self._spec = tree_flatten(made)
        self._leaves = [self._leaf(one) for one in self._made]
        self.places = [i for i, one in enumerate(self._leaves) if isinstance(one, Tensor) and one.requires_grad]

    def _leaf(self, one: Any) -> Any:
        if not isinstance(one, Tensor) or not one.is_floating_point():
            return one
        return one.detach().requires_grad_(self._chunked or one.requires_grad)

    @property
    def leaves(self) -> list[Tensor]:
        """The leaves that collect gradients."""
        return [self._leaves[place] for place in self.places]

    def tree(self) -> Any:
        """What `forward` is given."""
        return tree_unflatten(self._leaves, self._spec)

    def backward(self, grads: Mapping[str, Mapping[int, Tensor]], share: Share) -> None:
        """Send the leaves' gradients, by term and place, through `method.text`."""
        parameters = self._model.trainable()
        for at, frozen in self._parts:
            made = tree_flatten(self._model.part_text(at, frozen, self._batch))[0] if self._chunked else self._made
            for term, by_place in grads.items():
                used = [place for place in by_place if made[place].requires_grad]
                if not used:
                    continue
                got = torch.autograd.grad(
                    [made[place] for place in used],
                    list(parameters.values()),
                    [by_place[place][at] if self._chunked else by_place[place] for place in used],
                    retain_graph=len(grads) > 1,
                    allow_unused=True,
                )
                for name, gradient in zip(parameters, got, strict=True):
                    share.add(term, name, gradient)


def share_of_step(
    model: Model,
    images: StepImages,
    *,
    seed: int,
    step: int,
    micro_batch: int | None,
    precision: str,
    scaler: torch.amp.GradScaler,
    given: Mapping[str, Tensor] | None = None,
) -> Share:
    """Gradients and loss terms of this process's images, summed over its rows; `given` are draws made elsewhere."""
    device, rows = model.clip.device, len(images.labels)
    share = Share(rows)
    if not rows:
        return share
    autocast = torch.autocast(device.type, DTYPES.get(precision), enabled=precision in DTYPES)
    with autocast, computing(device):
        text = _Text(model, Batch(None, seed, step, given=given))
        collected: dict[str, dict[int, Tensor]] = {}
        size = micro_batch or rows
        for first in range(0, rows, size):
            part = images.part(first, first + size) if size < rows else images
            batch = Batch(part.labels.to(device), seed, step, part.rows, part.size, given)
            _micro_batch(model, text, part, batch, scaler, share, collected)
        text.backward(collected, share)
    return share


def _micro_batch(
    model: Model,
    text: _Text,
    part: StepImages,
    batch: Batch,
    scaler: torch.amp.GradScaler,
    share: Share,
    collected: dict[str, dict[int, Tensor]],
) -> None:
    """Add one micro-batch: gradients of parameters to `share`, those of the text's leaves to `collected`."""
    method, parameters, rows = model.method, model.trainable(), len(part.labels)
    share.out = out = method(model.clip, _states(model, part), text.tree(), batch)
    terms = method.loss(out, batch)
    total = total_of(terms)
    apart = {term: value for term, value in terms.items() if term != "total"}
    losses = apart if method.overrides("combine") else {"total": total}
    for term, value in losses.items():
        if not value.requires_grad:
            continue
        got = torch.autograd.grad(
            scaler.scale(value * rows),
            [*parameters.values(), *text.leaves],
            retain_graph=len(losses) > 1,
            allow_unused=True,
        )
        for name, gradient in zip(parameters, got, strict=False):
            share.add(term, name, gradient)
        for place, gradient in zip(text.places, got[len(parameters) :], strict=True):
            if gradient is not None:
                of_term = collected.setdefault(term, {})
                of_term[place] = of_term[place] + gradient if place in of_term else gradient
    logged = {"total": total, **terms, **{f"weight_{name}": value for name, value in out.weights.items()}}
    for name, value in logged.items():
        share.sums[name] = share.sums.get(name, 0.0) + float(value.detach()) * rows


def _states(model: Model, part: StepImages) -> dict[str, Tensor]:
    """Frozen quantities: the stored ones, or made of the pictures now."""
    inputs = {name: tensor.to(model.clip.device) for name, tensor in part.inputs.items()}
    if IMAGES in inputs:
        return model.states(inputs[IMAGES], training=True, plain_images=inputs.get(f"plain:{IMAGES}"))
    return inputs
