"""Zero-shot accuracy of a CLIP on the world: each attribute on held-out images, and every data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from dear.world.clip import to_input
from dear.world.datasets import World, load_world_dataset
from dear.world.grammar import PROMPTS, prompt
from dear.world.raster import Bytes
from dear.world.samples import held_out_image, scene_has_held_out_pair, truth
from dear.world.vocabulary import ATTRIBUTES, NAMES

BATCH = 250


@torch.inference_mode()
def encode_images(model: Any, images: Iterable[Bytes]) -> Tensor:
    """Return normalised features of images, computed in batches."""
    features: list[Tensor] = []
    waiting: list[Bytes] = []
    for image in images:
        waiting.append(image)
        if len(waiting) == BATCH:
            features.append(model.encode_image(to_input(waiting), normalize=True))
            waiting = []
    if waiting:
        features.append(model.encode_image(to_input(waiting), normalize=True))
    return torch.cat(features)


@torch.inference_mode()
def encode_texts(model: Any, tokenizer: Any, texts: list[str]) -> Tensor:
    """Return normalised features of texts."""
    features: Tensor = model.encode_text(tokenizer(texts), normalize=True)
    return features


def attribute_accuracy(model: Any, tokenizer: Any, images: int = 4000) -> dict[str, dict[str, float | None]]:
    """Return top-1 accuracy (per cent) and chance of every attribute on held-out images, with one prompt per value.

    "top1" is over all images, "seen" over those with combinations that pre-training also shows, "unseen" over the
    others; a group without images has None.
    """
    rendered = [held_out_image(i) for i in range(images)]
    features = encode_images(model, (image for image, _ in rendered))
    values = torch.tensor([truth(scene) for _, scene in rendered])
    unseen = torch.tensor([scene_has_held_out_pair(scene) for _, scene in rendered])
    out: dict[str, dict[str, float | None]] = {}
    for i, attribute in enumerate(ATTRIBUTES):
        texts = [prompt(attribute, name, PROMPTS[attribute][0]) for name in NAMES[attribute]]
        picks = (features @ encode_texts(model, tokenizer, texts).T).argmax(dim=1)
        right = 100 * (picks == values[:, i]).double()
        out[attribute] = {
            "top1": _mean(right),
            "seen": _mean(right[~unseen]),
            "unseen": _mean(right[unseen]),
            "chance": 100 / len(texts),
        }
    return out


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def _half(features: Tensor, labels: Tensor, texts: Tensor, first: int, last: int) -> float:
    chosen = (labels >= first) & (labels < last)
    picks = (features[chosen] @ texts[first:last].T).argmax(dim=1) + first
    return 100 * float((picks == labels[chosen]).double().mean())


def dataset_accuracy(model: Any, tokenizer: Any, data: World, per_class: int | None = None) -> dict[str, float]:
    """Return top-1 accuracy (per cent) on all test images, and on each half among its own classes."""
    names = data.class_names
    count = min(per_class or data.count("test"), data.count("test"))
    items = [data.item("test", label, index) for label in range(len(names)) for index in range(count)]
    features = encode_images(model, (item.render() for item in items))
    labels = torch.tensor([item.label for item in items])
    texts = encode_texts(model, tokenizer, [data.template.format(name) for name in names])
    half = (len(names) + 1) // 2
    return {
        "classes": len(names),
        "images": len(items),
        "all": _half(features, labels, texts, 0, len(names)),
        "base": _half(features, labels, texts, 0, half),
        "novel": _half(features, labels, texts, half, len(names)),
    }


def score(
    model: Any,
    tokenizer: Any,
    names: Iterable[str],
    *,
    images: int = 4000,
    per_class: int | None = None,
    on_done: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return the accuracies of attributes and data sets, and the mean over the data sets."""
    result: dict[str, Any] = {"attributes": attribute_accuracy(model, tokenizer, images), "datasets": {}}
    for name in names:
        result["datasets"][name] = dataset_accuracy(model, tokenizer, load_world_dataset(name), per_class)
        if on_done:
            on_done(name)
    rows = list(result["datasets"].values())
    if rows:
        result["mean"] = {part: sum(row[part] for row in rows) / len(rows) for part in ("all", "base", "novel")}
    return result


def score_table(result: dict[str, Any]) -> str:
    """Return scores as two Markdown tables."""
    lines = [
        "| attribute | top-1 | seen combinations | never-seen combinations | chance |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, row in result["attributes"].items():
        values = [row[part] for part in ("top1", "seen", "unseen", "chance")]
        lines.append(f"| {name} | {' | '.join('–' if value is None else f'{value:.1f}' for value in values)} |")
    lines += ["", "| data set | classes | images | all | base | novel |", "|---|---:|---:|---:|---:|---:|"]
    for name, row in result["datasets"].items():
        figures = " | ".join(f"{row[part]:.1f}" for part in ("all", "base", "novel"))
        lines.append(f"| {name} | {row['classes']} | {row['images']} | {figures} |")
    if "mean" in result:
        figures = " | ".join(f"{result['mean'][part]:.1f}" for part in ("all", "base", "novel"))
        lines.append(f"| mean | | | {figures} |")
    return "\n".join(lines)
