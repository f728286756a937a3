"""Accuracy on test images, by both inference strategies at once. An image that cannot be read counts as wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dear.data.dataset import Dataset, Item
from dear.engine.states import evaluation_prefixes
from dear.errors import DataError
from dear.evaluation.results import Part, PerClass, Scores
from dear.methods.base import Method, require_classes


@dataclass(frozen=True)
class Evaluation:
    """Scores, the class picked for every image (-1 where it is unreadable), how surely, and what could not be read."""

    scores: Scores
    picks: Tensor
    confidence: Tensor
    problems: dict[int, str]
    plain: Scores | None = None
    """What plain CLIP scores on the same images, where it was asked for."""


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
    beside_plain: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Score a method on items whose labels are numbers of the classes it has set; on request plain CLIP as well."""
    if not items:
        raise DataError(f"{dataset.name} has no images to test on.")
    names = require_classes(method.classes).names
    labels = torch.tensor([item.label for item in items])
    fused, decoupled, plain = (torch.full((len(items),), -1) for _ in range(3))
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
        if beside_plain:
            with method.disabled():
                plain[indices] = method.from_prefix(one.prefix).logits.argmax(dim=1).cpu()

    def scores(by_fusion: Tensor, by_cls: Tensor) -> Scores:
        return Scores(
            data=dataset.name,
            part=part,
            images=len(items),
            unreadable=len(problems),
            fusion=_percent(by_fusion == labels),
            decoupled=_percent(by_cls == labels),
            per_class=_per_class(names, labels, by_fusion, by_cls),
            problems=tuple(problems[index] for index in sorted(problems)),
        )

    beside = scores(plain, plain) if beside_plain else None
    return Evaluation(scores(fused, decoupled), fused, confidence, problems, beside)


def _per_class(names: Sequence[str], labels: Tensor, by_fusion: Tensor, by_cls: Tensor) -> dict[str, PerClass]:
    chosen = [labels == label for label in range(len(names))]
    return {
        name: PerClass(
            images=int(own.sum()),
            fusion=_percent((by_fusion == labels)[own]),
            decoupled=_percent((by_cls == labels)[own]),
        )
        for name, own in zip(names, chosen, strict=True)
    }


def _percent(right: Tensor) -> float:
    return 100 * float(right.double().mean()) if len(right) else 0.0
