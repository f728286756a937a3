"""What a run's page shows, gathered from the model and its test: scores, weights, curves, examples, searches."""

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
from dear.reports.render import Picture
from dear.reports.run_page import Confusion, RunPage, Search
from dear.retrieval.index import feature_kinds, nearest

SHOWN = 8
SIDE = 112
INDEXED = 1000


@dataclass(frozen=True)
class HalfScores:
    """A half of the classes: its test images and what the adapted and the plain model make of them."""

    half: Half
    items: tuple[Item, ...]
    class_names: tuple[str, ...]
    adapted: Evaluation
    plain: Scores


def run_page(
    model: Method,
    dataset: Dataset,
    description: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    halves: Sequence[HalfScores],
    *,
    workers: int = 2,
) -> RunPage:
    """Everything the page shows. `description` is the run's, `halves` come from `evaluate_halves`."""
    tested = halves[0]
    model.set_classes(tested.class_names, dataset.template)
    shots, seed = description["shots"], description["seed"]
    return RunPage(
        title=f"{dataset.name}, adapted",
        subtitle=f"{model.name} on {model.clip.name}, {shots} shots per class, seed {seed}",
        scores=score_rows(halves, model.name),
        scores_note=_scores_note(halves),
        weights=_weights(model),
        curves=_curves(model, metrics),
        examples=_examples(dataset, tested),
        confusion=_confusion(tested),
        roles=getattr(model, "roles", None),
        nearest=_searches(model, dataset, tested.items, workers),
        settings=_settings(description),
    )


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


def _scores_note(halves: Sequence[HalfScores]) -> str:
    images = ", ".join(f"{one.adapted.scores.images:,} of {one.half} classes" for one in halves)
    bad = sum(one.adapted.scores.unreadable for one in halves)
    return f"Test images: {images}." + (f" {bad} could not be read and count as wrong." if bad else "")


def _settings(description: Mapping[str, Any]) -> dict[str, str]:
    return {
        "data": f"{description['data']}, {len(description['classes'])} classes",
        "prompt": description["template"],
        "backbone": f"{description['backbone']['name']} ({description['backbone']['weights_sha256'][:12]}…)",
        **{name.replace("_", " "): str(value) for name, value in description["train"].items()},
        **{name.replace("_", " "): str(value) for name, value in description["settings"].items()},
    }


def _weights(model: Method) -> dict[str, float]:
    alpha = getattr(model, "alpha", None)
    return {} if alpha is None else dict(zip(feature_kinds(model), alpha.tolist(), strict=True))


def _curves(model: Method, metrics: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    def lines(names: Mapping[str, str]) -> dict[str, list[float]]:
        found = {name: [row[key] for row in metrics if key in row] for name, key in names.items()}
        return {name: line for name, line in found.items() if line}

    charts = {
        "loss": lines({name: name for name in ("total", "ce", "fusion")}),
        "drift from plain CLIP": lines({name: name for name in ("reg_image", "reg_text")}),
        "weights": lines({kind: f"alpha_{i}" for i, kind in enumerate(feature_kinds(model))}),
    }
    return {title: drawn for title, drawn in charts.items() if drawn}


def confusion(truth: Tensor, picks: Tensor, classes: int) -> list[list[float]]:
    """Per cent of each class's images (rows) that were taken for each class (columns); unreadable ones for none."""
    seen = picks >= 0
    counts = torch.zeros(classes, classes)
    counts.index_put_((truth[seen], picks[seen]), torch.ones(int(seen.sum())), accumulate=True)
    totals = torch.bincount(truth, minlength=classes).clamp(min=1)
    shares: list[list[float]] = (100 * counts / totals[:, None]).tolist()
    return shares


def _confusion(tested: HalfScores) -> Confusion:
    truth = torch.tensor([item.label for item in tested.items])
    shares = confusion(truth, tested.adapted.picks, len(tested.class_names))
    return Confusion(tested.class_names, shares, f"Per cent of the {tested.half} classes; rows are the truth.")


def _examples(dataset: Dataset, tested: HalfScores) -> dict[str, list[Picture]]:
    found = tested.adapted
    readable = [i for i, pick in enumerate(found.picks.tolist()) if pick >= 0]
    order = sorted(readable, key=lambda i: (-float(found.confidence[i]), i))
    wrong = [i for i in order if int(found.picks[i]) != tested.items[i].label]

    def shown(index: int) -> Picture:
        pick, truth = tested.class_names[int(found.picks[index])], tested.class_names[tested.items[index].label]
        sure = f"{100 * float(found.confidence[index]):.0f} % {pick}"
        return Picture(_picture(dataset, tested.items[index]), sure if pick == truth else f"{sure} (is {truth})")

    strips = {
        "Most certain": order[:SHOWN],
        "Least certain": order[-SHOWN:][::-1],
        "Most certain and wrong": wrong[:SHOWN],
    }
    return {title: [shown(i) for i in indices] for title, indices in strips.items() if indices}


def _searches(model: Method, dataset: Dataset, items: Sequence[Item], workers: int) -> list[Search]:
    """For a few queries, the nearest other test images by each kind of feature."""
    kinds = feature_kinds(model)
    if len(kinds) == 1 or len(items) < 2:
        return []
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
    searches = []
    for query in (0, len(order) // 2):
        asked = chosen[order[query]]
        found = {}
        for number, kind in enumerate(kinds):
            hits = nearest(stacked_NGE[query, number], stacked_NGE[:, number], SHOWN + 1)
            others = [(chosen[order[row]], score) for row, score in hits if row != query]
            found[kind] = [Picture(_picture(dataset, item), f"{score:.3f}") for item, score in others[:SHOWN]]
        name = f"query: {dataset.class_names[asked.label]}"
        searches.append(Search(Picture(_picture(dataset, asked), name), found))
    return searches


def _picture(dataset: Dataset, item: Item) -> Image.Image:
    try:
        image = dataset.open(item.id)
    except ImageError:
        return Image.new("RGB", (SIDE, SIDE), "#dfe3e8")
    image.thumbnail((2 * SIDE, 2 * SIDE))
    return image
