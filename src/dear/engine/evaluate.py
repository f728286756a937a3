"""Accuracy on test images, by both inference strategies at once. An image that cannot be read counts as wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dear.data.dataset import Dataset, Item
from dear.engine.prefixes import evaluation_prefixes
from dear.errors import DataError
from dear.methods.base import Method, require_classes
from dear.protocols.results import Part, PerClass, Scores


@dataclass(frozen=True)
class Evaluation:
    """Scores, the class picked for every image (-1 where it is unreadable), how surely, and what could not be read."""

    scores: Scores
    picks: Tensor
    confidence: Tensor
    problems: dict[int, str]


@torch.inference_mode()
def evaluate(
    method: Method,
    dataset: Dataset,
    items: Sequence[Item],
    *,
    part: Part = "all",
    cache: Path | None = None,
    batch: int = 250,
    workers: int = 2,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Score a method on items whose labels are numbers of the classes it has set."""
    if not items:
        raise DataError(f"{dataset.name} has no images to test on.")
    names = require_classes(method.classes).names
    labels = torch.tensor([item.label for item in items])
    fused, decoupled = (torch.full((len(items),), -1) for _ in range(2))
    confidence = torch.zeros(len(items))
    problems: dict[int, str] = {}
    prefixes = evaluation_prefixes(
        method, dataset, items, cache=cache, batch=batch, workers=workers, problems=problems, progress=progress
    )
    for one in prefixes:
        out = method.from_prefix(one.prefix)
        indices = list(one.indices)
        best = out.logits.softmax(dim=1).max(dim=1)
        fused[indices], confidence[indices] = best.indices.cpu(), best.values.float().cpu()
        decoupled[indices] = out.cls_logits.argmax(dim=1).cpu()
    scores = Scores(
        data=dataset.name,
        part=part,
        images=len(items),
        unreadable=len(problems),
        fusion=_percent(fused == labels),
        decoupled=_percent(decoupled == labels),
        per_class={
            name: PerClass(
                images=int((labels == label).sum()),
                fusion=_percent((fused == labels)[labels == label]),
                decoupled=_percent((decoupled == labels)[labels == label]),
            )
            for label, name in enumerate(names)
        },
    )
    return Evaluation(scores, fused, confidence, problems)


def _percent(right: Tensor) -> float:
    return 100 * float(right.double().mean()) if len(right) else 0.0
