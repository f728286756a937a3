"""Score a run, or a loaded model, on test images in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.data.dataset import Dataset, Item
from dear.data.descriptions import with_descriptions
from dear.data.open import opened, refuse_inside
from dear.data.splits import Half
from dear.engine.feature_cache import TESTING
from dear.errors import ConfigError
from dear.evaluation.duplicates import duplicates_sentence, near_duplicates
from dear.evaluation.evaluate import Evaluation, evaluate_items
from dear.evaluation.test_data import TestData, data_of_run
from dear.evaluation.verdict import balance_sentence, mean_per_class, sentence
from dear.model.artefact import TENSORS, read_manifest
from dear.model.hub_adapter import on_hub
from dear.model.model import Model
from dear.options.commands import Evaluate
from dear.options.reading import check_values
from dear.progress.display import watched
from dear.progress.stages import counting
from dear.storage.files import as_folder
from dear.workflows.machine import using_threads
from dear.workflows.opened_run import model_of


def evaluate(
    run: str | Path | Model,
    data: str | Path | Dataset | None = None,
    *,
    half: Half = "all",
    data_root: str | Path | None = None,
    template: str | None = None,
    descriptions: str | Path | Mapping[str, Sequence[str]] | None = None,
    cache: str | Path | None = None,
    workers: int = 2,
    batch_size: int = 64,
    device: str | None = None,
    threads: int | None = None,
    allow_pickled: bool = False,
    progress: bool | Callable[[str, int, int], None] | None = None,
) -> Evaluation:
    """Score a run on test images, by every readout of its method and beside plain CLIP.

    Images that the run was trained on are never tested; if some are nearly the same as one of those, a sentence in
    `warnings` says so. A loaded model does not know them: give the run's folder if the data set has no test images.

    Args:
        run: folder of a run or adapter, hf-hub:ORG/REPO, or a loaded model.
        data: the data set to test on; by default the one that the run was made from.
        half: test all classes, or the base or the novel half of them.
        data_root: folder that contains the paper's data sets.
        template: the prompt around a class name; by default the run's or the data set's.
        descriptions: sentences about each class, for methods that read them; trained classes keep the run's.
        cache: folder for the frozen layers' outputs.
        workers: number of image-loading threads.
        batch_size: images per forward pass.
        device: "cpu", "cuda"; by default a GPU if there is one.
        threads: threads to compute with on a CPU; by default all.
        allow_pickled: also read a backbone's weights from a pickled file (tensors only, never code).
        progress: True for a bar on stderr, or a function of the name of a stage, the number done, the number of all.
    """
    check_values(Evaluate, batch_size=batch_size, workers=workers, device=device, threads=threads)
    tested = _test_data(run, data, data_root, template)
    cache = as_folder(cache) if cache is not None else None
    refuse_inside(tested.dataset, cache)
    items = tested.items(half)
    model = model_of(run, device, allow_pickled=allow_pickled)
    dataset = with_descriptions(tested.dataset, descriptions)
    features: dict[int, Tensor] = {}
    with using_threads(threads), watched(counting(progress, TESTING)):
        found = evaluate_items(
            model.for_classes(dataset.classes(tested.class_names(half))),
            dataset,
            items,
            half=half,
            cache=cache,
            batch_size=batch_size,
            workers=workers,
            beside_plain=True,
            features=features,
        )
        return _with_warnings(found, half, model, dataset, items, features, tested, workers)


def _test_data(
    run: str | Path | Model, data: str | Path | Dataset | None, data_root: str | Path | None, template: str | None
) -> TestData:
    """The images to test on; only the folder of a run knows which ones it was trained on."""
    published = None if isinstance(run, Model) else on_hub(run)
    if not isinstance(run, Model) and not published:
        return data_of_run(as_folder(run), data, data_root, template)
    if data is None:
        what = published or "A loaded model"
        raise ConfigError(f"{what} does not record its data set: name the data set to test on.")
    return TestData(opened(data, data_root, template), (), None)


def _with_warnings(
    found: Evaluation,
    half: Half,
    model: Model,
    dataset: Dataset,
    items: Sequence[Item],
    features: dict[int, Tensor],
    tested: TestData,
    workers: int,
) -> Evaluation:
    """The same, with the classes that are new, and a sentence if test photos are nearly training photos."""
    found = replace(found, new=tested.newness(half))
    same = near_duplicates(model, dataset, items, features, tested.trained_here(), workers=workers)
    right = found.picks == torch.tensor([item.label for item in items])
    return replace(found, warnings=(duplicates_sentence(same, right),)) if same else found


def verdict_sentences(found: Evaluation) -> list[str]:
    """What came out, in a sentence, and a second one if the classes are unbalanced."""
    judged = found.verdict()
    return [text for text in (sentence(judged), balance_sentence(judged), found.calibration_sentence()) if text]


def score_rows(found: Evaluation, *, everything: bool = False) -> list[tuple[str, ...]]:
    """Plain CLIP and the method by its default readout, or by all; beside it the mean per class if they differ much."""
    scores, plain = found.scores, found.plain
    assert plain is not None
    unbalanced = found.verdict().balance is not None
    half = "" if scores.half == "all" else f", {scores.half}"
    head = [f"{scores.data}{half}: {scores.images:,} images, {len(scores.per_class)} classes", "correct"]
    rows = [(*head, "mean per class") if unbalanced else tuple(head)]
    named = [("plain CLIP", plain, next(iter(plain.accuracy)))]
    for readout in scores.accuracy:
        if everything or readout == found.readout:
            label = found.method if readout == found.readout else f"{found.method}, {readout}"
            named.append((label, scores, readout))
    for label, one, readout in named:
        numbers = [one.accuracy[readout], *([mean_per_class(one, readout)] if unbalanced else [])]
        rows.append((label, *(f"{number:6.2f} %" for number in numbers)))
    return rows


def scores_as_dict(found: Evaluation, run: Path | None = None) -> dict[str, Any]:
    """The scores of each class by every readout, plain CLIP's, and the verdict, as plain values.

    With the hash of the adapter's tensors if the scores are those of a folder `run`, so that `dear.push` can check it.
    """
    assert found.plain is not None
    tested = {} if run is None or on_hub(run) else {"adapter_sha256": read_manifest(run).files[TENSORS].sha256}
    return {
        **tested,
        "adapted": found.scores.model_dump(mode="json"),
        "plain": found.plain.model_dump(mode="json"),
        "verdict": found.verdict().as_dict(),
    }
