"""Collects the content of a run's page from a model and its test: scores, weights, curves, examples, searches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dear.backbone.clip import short_name
from dear.data.dataset import Dataset, Item
from dear.data.splits import Half, span
from dear.engine.feature_cache import evaluation_states
from dear.evaluation.choice import Choice
from dear.evaluation.choice_words import notes, summary, table
from dear.evaluation.evaluate import Evaluation, evaluate_items
from dear.evaluation.results import Scores, harmonic_mean
from dear.evaluation.test_data import TestData
from dear.evaluation.verdict import balance_sentence, sentence
from dear.methods.base import Output
from dear.model.model import Model
from dear.progress.stages import WEIGHT
from dear.reports.render import Picture
from dear.reports.run_page import Confusion, ExampleSearch, MethodChoice, RunPage
from dear.reports.run_pictures import (
    SHOWN,
    Answers,
    class_bars,
    confused,
    corrections,
    corrections_note,
    examples,
    small_picture,
)
from dear.retrieval.encoder import lacking_attributes
from dear.retrieval.search import most_alike, nearest, unlike
from dear.roles.rolemap import ROLES, RoleMap
from dear.workflows.explained_examples import explained_examples

INDEXED = 1000
SMALL = 0.1
"""A loss term below this share of the largest one is shown in a separate chart."""
NO_TERMS = {"lr", "images_per_second"}


@dataclass(frozen=True)
class HalfScores:
    """A half of the classes: its test images, and the results of the adapted and the plain model."""

    half: Half
    items: tuple[Item, ...]
    class_names: tuple[str, ...]
    adapted: Evaluation
    plain: Scores


def run_page(
    model: Model,
    data: TestData,
    description: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    halves: Sequence[HalfScores],
    *,
    choice: Choice | None = None,
    workers: int = 2,
) -> RunPage:
    """Collect the content of the page. `description` is the run's, `halves` come from `evaluate_halves`."""
    tested, dataset = halves[0], data.dataset
    answers = Answers(dataset, tested.items, tested.class_names, tested.adapted)
    view, found = _view(model, dataset, tested.class_names), tested.adapted
    return RunPage(
        title=f"{dataset.name}, adapted",
        subtitle=f"{model.name} on {short_name(model.clip.name)}, {_trained_on(data, description)}",
        verdict=verdict_sentences(halves),
        choice=None if choice is None else MethodChoice(summary(choice), table(choice), notes(choice)),
        corrected=corrections(answers),
        corrected_note=corrections_note(answers),
        confused=confused(answers),
        bars={_bars_title(one): class_bars(one.adapted) for one in halves},
        scores=score_rows(halves, model),
        scores_note=_scores_note(halves),
        weights=tested.adapted.weights,
        curves=_curves(metrics),
        examples=examples(answers),
        confusion=_confusion(tested),
        roles=_roles(model),
        nearest=_searches(view, dataset, tested.items, workers),
        explained=explained_examples(view, dataset, tested.items, found.picks, found.confidence),
        settings=_settings(description),
    )


def _trained_on(data: TestData, description: Mapping[str, Any]) -> str:
    """Number of training images per class, as they were sampled, and the seed."""
    label_of, names = {item.id: item.label for item in data.dataset.train}, data.dataset.class_names
    labels = [label_of[item_id] for item_id in {item.id for item in data.trained_items} if item_id in label_of]
    counts = Counter(label for label in labels if names[label] in description["classes"])
    shots = span(counts.values() or [description["shots"]])
    return f"{shots} training image{'' if shots == '1' else 's'} per class, seed {description['seed']}"


def evaluate_halves(model: Model, data: TestData, *, workers: int = 2) -> list[HalfScores]:
    """Test all classes together, or the trained half and, if the method can name new classes, the other half."""
    scored = []
    halves = data.halves()
    for half in halves if model.method.needs.novel else halves[:1]:
        items, names = data.items(half), data.class_names(half)
        view = _view(model, data.dataset, names)
        tested = evaluate_items(view, data.dataset, items, half=half, workers=workers, beside_plain=True)
        assert tested.plain is not None
        scored.append(HalfScores(half, items, names, replace(tested, new=data.newness(half)), tested.plain))
    return scored


def _view(model: Model, dataset: Dataset, names: Sequence[str]) -> Model:
    return model.for_classes(dataset.classes(names))


def _roles(model: Model) -> RoleMap | None:
    """The role map that was saved with the adapter, if its method has one."""
    text = model.method.files.get(ROLES)
    return None if text is None else RoleMap.from_json(text, where=ROLES)


def score_rows(halves: Sequence[HalfScores], model: Model, *, everything: bool = True) -> list[list[str]]:
    """Table of plain CLIP and each readout of the adapted model, with its header and the harmonic mean of two halves.

    Without `everything`, only the default readout.
    """

    def row(label: str, values: list[float]) -> list[str]:
        shown = [f"{value:.1f}" for value in values]
        return [label, *shown, f"{harmonic_mean(*values):.1f}"] if len(values) == 2 else [label, *shown]

    head = ["top-1, per cent", *(f"{one.half} classes" for one in halves)]
    default, plain = model.readout(), model.plain().readout()
    rows = [
        [*head, "harmonic mean"] if len(halves) == 2 else head,
        row("plain CLIP", [one.plain.accuracy[plain] for one in halves]),
    ]
    for name in halves[0].adapted.scores.accuracy:
        if name != default and not everything:
            continue
        label = model.name if name == default else f"{model.name}, {name}"
        rows.append(row(label, [one.adapted.scores.accuracy[name] for one in halves]))
    return rows


def verdict_sentences(halves: Sequence[HalfScores]) -> list[str]:
    """One sentence per half, and another one for each half with unbalanced classes."""
    judged = [one.adapted.verdict() for one in halves]
    return [text for one in judged for text in (sentence(one), balance_sentence(one)) if text]


def _bars_title(one: HalfScores) -> str:
    return "All classes" if one.half == "all" else f"The {one.half} classes"


def _scores_note(halves: Sequence[HalfScores]) -> str:
    images = " and ".join(f"{one.adapted.scores.images:,} images, {one.half} classes" for one in halves)
    bad = sum(one.adapted.scores.unreadable for one in halves)
    gap = halves[0].adapted.calibration_sentence()
    unread = f" {bad} could not be read and count as wrong." if bad else ""
    return f"Tested on {images}.{unread}" + (f" {gap}" if gap else "")


def _settings(description: Mapping[str, Any]) -> dict[str, str]:
    clip = description["backbone"]
    return {
        "data": f"{description['data']}, {len(description['classes'])} classes",
        "prompt": description["template"],
        "backbone": f"{short_name(clip['name'])} ({clip['weights_sha256'][:12]}…)",
        **{name.replace("_", " "): str(value) for name, value in description["train"].items()},
        **{name.replace("_", " "): str(value) for name, value in description["settings"].items()},
    }


def _curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Curves of large loss terms, small loss terms and learned weights, each in its own chart."""
    numbers = {name for row in metrics for name, value in row.items() if isinstance(value, float)} - NO_TERMS
    order = [name for name in (metrics[0] if metrics else {}) if name in numbers]
    lines = {name: [row[name] for row in metrics if name in row] for name in order}
    terms = {name: line for name, line in lines.items() if not name.startswith(WEIGHT)}
    largest = max((max(map(abs, line)) for line in terms.values()), default=0.0)
    small = {name for name, line in terms.items() if max(map(abs, line)) < SMALL * largest}
    charts = {
        "loss": {name: line for name, line in terms.items() if name not in small},
        "small terms of the loss": {name: line for name, line in terms.items() if name in small},
        "weights": {name.removeprefix(WEIGHT): line for name, line in lines.items() if name.startswith(WEIGHT)},
    }
    return {title: curves for title, curves in charts.items() if curves}


def confusion(truth: Tensor, picks: Tensor) -> dict[tuple[int, int], float]:
    """Per cent of the images of each class (first) that got each class as answer (second), without unreadable ones."""
    totals = Counter(truth.tolist())
    pairs = Counter((is_, taken) for is_, taken in zip(truth.tolist(), picks.tolist(), strict=True) if taken >= 0)
    return {pair: 100 * count / totals[pair[0]] for pair, count in pairs.items()}


def _confusion(tested: HalfScores) -> Confusion:
    truth = torch.tensor([item.label for item in tested.items])
    shares = confusion(truth, tested.adapted.picks)
    return Confusion(tested.class_names, shares, "Per cent of each class; rows are true classes, columns are answers.")


def _searches(model: Model, dataset: Dataset, items: Sequence[Item], workers: int) -> list[ExampleSearch]:
    """For a few queries, the nearest other test images by each kind of feature; none if fewer than two can be read."""
    if len(items) < 2:
        return []
    step = -(-len(items) // INDEXED)
    chosen = list(items)[::step]
    features: dict[int, Tensor] = {}
    problems: dict[int, str] = {}
    kinds: tuple[str, ...] = ()
    batches = evaluation_states(
        model, dataset, chosen, cache=None, batch_size=64, workers=workers, problems=problems, progress=None
    )
    with torch.inference_mode():
        for one in batches:
            out: Output = model(given=one.states)
            kinds = tuple(out.features)
            if len(kinds) < 2:
                return []
            rows = torch.stack(list(out.features.values()), dim=1).float().cpu()
            features |= dict(zip(one.indices, rows, strict=True))
    order = sorted(features)
    if len(order) < 2:
        return []
    stacked_NGE = torch.stack([features[i] for i in order])
    lacking = lacking_attributes(model.method.files.get(ROLES))
    named = distinct({kind: stacked_NGE[:, n] for n, kind in enumerate(kinds) if kind not in lacking})
    if len(named) < 2:
        return []
    searches = []
    for query in (0, len(order) // 2):
        asked = chosen[order[query]]
        found = {}
        for number, kind in ((number, kind) for number, kind in enumerate(kinds) if kind in named):
            hits = nearest(stacked_NGE[query, number], stacked_NGE[:, number], SHOWN + 1)
            others = [(chosen[order[row]], score) for row, score in hits if row != query]
            found[kind] = [Picture(small_picture(dataset, item), f"{score:.3f}") for item, score in others[:SHOWN]]
        name = f"query: {dataset.class_names[asked.label]}"
        searches.append(ExampleSearch(Picture(small_picture(dataset, asked), name), found))
    return searches


def distinct(features: Mapping[str, Tensor]) -> list[str]:
    """Kinds of features (N, E) that differ clearly from all others; a search by any other kind would be misleading."""
    alike = most_alike(features)
    return [kind for kind in features if not unlike(kind, *alike.get(kind, ("", 0.0)))]
