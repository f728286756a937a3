"""The report of a run as one HTML file: scores, setting, weights, curves, confusion, examples, roles, retrieval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from dear.data.dataset import Dataset, Item
from dear.engine.fit import Half, items_to_test, labels_of
from dear.engine.states import evaluation_prefixes
from dear.errors import ImageError
from dear.evaluation.evaluate import Evaluation, evaluate
from dear.evaluation.results import Scores, harmonic_mean
from dear.methods.base import Method
from dear.reports.html import curves, heat_map, page, section, strip, table
from dear.reports.role_grid import role_grid_html
from dear.retrieval.index import feature_kinds, nearest

SHOWN = 8
SIDE = 112
LARGEST_CONFUSION = 40
INDEXED = 1000


@dataclass(frozen=True)
class HalfScores:
    """A half of the classes: its test images and what the adapted and the plain model make of them."""

    half: Half
    items: tuple[Item, ...]
    class_names: tuple[str, ...]
    adapted: Evaluation
    plain: Scores


def run_report(
    model: Method,
    dataset: Dataset,
    description: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    halves: Sequence[HalfScores],
    *,
    workers: int = 2,
) -> str:
    """The page as text. `description` is the run's, `halves` come from `evaluate_halves`."""
    tested = halves[0]
    model.set_classes(tested.class_names, dataset.template)
    parts = [
        _scores(halves, model.name),
        _fusion(model),
        _training(model, metrics),
        _examples(dataset, tested),
        _confusion(tested),
        section("Roles of the adapted layers", role_grid_html(model.roles)) if hasattr(model, "roles") else "",
        _retrieval(model, dataset, tested.items, workers),
        _setting(description),
    ]
    subtitle = f"{model.name} on {model.clip.name}, {description['shots']} shots a class, seed {description['seed']}"
    return page(f"{dataset.name}, adapted", "".join(parts), subtitle=subtitle)


def evaluate_halves(
    model: Method, dataset: Dataset, description: Mapping[str, Any], drawn: Sequence[Item], *, workers: int = 2
) -> list[HalfScores]:
    """Test all classes together, or, where one half was learned, that half and then the other.

    `drawn` are the images that were learned from, with the data set's own labels.
    """
    learned = tuple(description["classes"])
    names: list[Half] = ["all"]
    for half, other in (("base", "novel"), ("novel", "base")):
        labels = labels_of(dataset, half) if len(dataset.class_names) > 1 else range(0)  # type: ignore[arg-type]
        if dataset.class_names[labels.start : labels.stop] == learned:
            names = [half, other]  # type: ignore[list-item]
    found = []
    for half in names:
        labels = labels_of(dataset, half)
        items = items_to_test(dataset, half, drawn=drawn)
        class_names = dataset.class_names[labels.start : labels.stop]
        model.set_classes(class_names, dataset.template)
        tested = evaluate(model, dataset, items, part=half, workers=workers, beside_plain=True)
        assert tested.plain is not None
        found.append(HalfScores(half, items, class_names, tested, tested.plain))
    return found


def score_rows(halves: Sequence[HalfScores], name: str) -> list[list[str]]:
    """Plain CLIP beside the adapted model, and the harmonic mean of two halves; the first row is the head."""

    def row(label: str, values: list[float]) -> list[str]:
        shown = [f"{value:.1f}" for value in values]
        return [label, *shown, f"{harmonic_mean(*values):.1f}"] if len(values) == 2 else [label, *shown]

    head = ["top-1, per cent", *(f"{one.half} classes" for one in halves)]
    return [
        [*head, "harmonic mean"] if len(halves) == 2 else head,
        row("plain CLIP", [one.plain.fusion for one in halves]),
        row(name, [one.adapted.scores.fusion for one in halves]),
        row(f"{name}, decoupled", [one.adapted.scores.decoupled for one in halves]),
    ]


def _scores(halves: Sequence[HalfScores], name: str) -> str:
    head, *rows = score_rows(halves, name)
    images = ", ".join(f"{one.adapted.scores.images:,} {one.half}" for one in halves)
    bad = sum(one.adapted.scores.unreadable for one in halves)
    note = f"Test images: {images}." + (f" {bad} could not be read and count as wrong." if bad else "")
    return section("Scores", table(head, rows), note=note)


def _setting(description: Mapping[str, Any]) -> str:
    rows = {
        "data": f"{description['data']}, {len(description['classes'])} classes",
        "prompt": description["template"],
        "backbone": f"{description['backbone']['name']} ({description['backbone']['weights_sha256'][:12]}…)",
        **{name.replace("_", " "): str(value) for name, value in description["train"].items()},
        **{name.replace("_", " "): str(value) for name, value in description["settings"].items()},
    }
    return section("Setting", table(["", ""], [[name, value] for name, value in rows.items()]))


def _fusion(model: Method) -> str:
    alpha = getattr(model, "alpha", None)
    if alpha is None:
        return ""
    return section(
        "Fusion weights",
        heat_map(["α"], feature_kinds(model), [alpha.tolist()], digits=3),
        note="How much the [CLS] feature and each attribute's feature count in the answer; they sum to 1.",
    )


def _training(model: Method, metrics: Sequence[Mapping[str, Any]]) -> str:
    if not metrics:
        return ""
    terms = {name: [row[name] for row in metrics if name in row] for name in ("total", "ce", "fusion")}
    drift = {name: [row[name] for row in metrics if name in row] for name in ("reg_image", "reg_text")}
    weights = {
        kind: [row[f"alpha_{i}"] for row in metrics if f"alpha_{i}" in row]
        for i, kind in enumerate(feature_kinds(model))
    }
    drawn = [("loss", terms), ("drift from plain CLIP", drift), ("fusion weights", weights)]
    kept = [curves(title, {name: line for name, line in lines.items() if line}) for title, lines in drawn]
    return section("Training", f'<div class="row">{"".join(kept)}</div>')


def confusion(truth: Tensor, picks: Tensor, classes: int) -> list[list[float]]:
    """Per cent of each class's images (rows) that were taken for each class (columns); unreadable ones for none."""
    seen = picks >= 0
    counts = torch.zeros(classes, classes)
    counts.index_put_((truth[seen], picks[seen]), torch.ones(int(seen.sum())), accumulate=True)
    totals = torch.bincount(truth, minlength=classes).clamp(min=1)
    shares: list[list[float]] = (100 * counts / totals[:, None]).tolist()
    return shares


def _confusion(tested: HalfScores) -> str:
    names = tested.class_names
    truth = torch.tensor([item.label for item in tested.items])
    shares = confusion(truth, tested.adapted.picks, len(names))
    wrong = sorted(
        ((shares[i][j], names[i], names[j]) for i in range(len(names)) for j in range(len(names)) if i != j),
        key=lambda one: (-one[0], one[1], one[2]),
    )
    pairs = table(["is", "taken for", "per cent"], [[a, b, f"{share:.0f}"] for share, a, b in wrong[:SHOWN] if share])
    whole = heat_map(names, names, shares, digits=0) if len(names) <= LARGEST_CONFUSION else ""
    return section("Confusion", pairs, whole, note=f"{tested.half} classes; rows are the truth.")


def _examples(dataset: Dataset, tested: HalfScores) -> str:
    found = tested.adapted
    readable = [i for i, pick in enumerate(found.picks.tolist()) if pick >= 0]
    order = sorted(readable, key=lambda i: (-float(found.confidence[i]), i))
    wrong = [i for i in order if int(found.picks[i]) != tested.items[i].label]

    def show(indices: Sequence[int]) -> str:
        pictures = []
        for i in indices:
            pick, truth = tested.class_names[int(found.picks[i])], tested.class_names[tested.items[i].label]
            sure = f"{100 * float(found.confidence[i]):.0f} % {pick}"
            pictures.append((_picture(dataset, tested.items[i]), sure if pick == truth else f"{sure} (is {truth})"))
        return strip(pictures)

    return section(
        "Examples",
        "<p>Most certain</p>",
        show(order[:SHOWN]),
        "<p>Least certain</p>",
        show(order[-SHOWN:][::-1]),
        "<p>Most certain and wrong</p>" if wrong else "",
        show(wrong[:SHOWN]),
    )


def _retrieval(model: Method, dataset: Dataset, items: Sequence[Item], workers: int) -> str:
    """For a few queries, the nearest other test images by each kind of feature."""
    kinds = feature_kinds(model)
    if len(kinds) == 1 or len(items) < 2:
        return ""
    step = -(-len(items) // INDEXED)
    chosen = list(items)[::step]
    features: dict[int, Tensor] = {}
    problems: dict[int, str] = {}
    batches = evaluation_prefixes(
        model, dataset, chosen, cache=None, batch=64, workers=workers, problems=problems, progress=None
    )
    with torch.inference_mode():
        for one in batches:
            out = model.from_prefix(one.prefix)
            rows = torch.cat([out.cls_features[:, None], out.attr_features], dim=1).float().cpu()
            features |= dict(zip(one.indices, rows, strict=True))
    order = sorted(features)
    stacked_NGE = torch.stack([features[i] for i in order])
    parts = []
    for query in (0, len(order) // 2):
        asked = chosen[order[query]]
        parts.append(strip([(_picture(dataset, asked), f"query: {dataset.class_names[asked.label]}")]))
        for number, kind in enumerate(kinds):
            hits = nearest(stacked_NGE[query, number], stacked_NGE[:, number], SHOWN)
            pictures = [(_picture(dataset, chosen[order[row]]), f"{score:.3f}") for row, score in hits if row != query]
            parts.append(f"<p>by {kind}</p>{strip(pictures)}")
    return section("Nearest images by each feature", *parts)


def _picture(dataset: Dataset, item: Item) -> Image.Image:
    try:
        image = dataset.open(item.id)
    except ImageError:
        return Image.new("RGB", (SIDE, SIDE), "#dfe3e8")
    image.thumbnail((2 * SIDE, 2 * SIDE))
    return image
