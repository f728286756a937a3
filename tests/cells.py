"""Results of cells that never ran, for the tests of tables."""

from __future__ import annotations

import random

from dear.evaluation.results import Backbone, CellResult, Scores

ATTRIBUTES = ("color", "shape", "texture", "object", "location")
WEIGHTS = {"cls": 0.75, **dict.fromkeys(ATTRIBUTES, 0.05)}
READOUTS = {"default": "fusion", "transfer": "decoupled"}
PAPER_CLIP = Backbone(name="ViT-B-16-quickgelu", pretrained="openai", weights_sha256="a" * 64)
PLAIN = {"method": "zero_shot", "readouts": {"default": "logits"}, "weights": {}, "steps": 0, "adapter_sha256": None}
WORLD_CLIP = Backbone(name="world", pretrained=None, weights_sha256="b" * 64)

SETS = ("world-textures", "world-emblems", "world-blooms", "world-scenes", "world-signs")
GAINS = {"zero_shot": 0.0, "coop": 3.0, "maple": 5.0, "dear": 5.1}


def scores(data: str, half: str, accuracies: float | tuple[float, float], unreadable: int = 0) -> Scores:
    """100 test images; the accuracies are those by fusion and decoupled, or the one of a method with one readout."""
    if isinstance(accuracies, tuple):
        accuracy = dict(zip(("fusion", "decoupled"), accuracies, strict=True))
    else:
        accuracy = {"logits": accuracies}
    return Scores(data=data, half=half, images=100, unreadable=unreadable, accuracy=accuracy, per_class={})


def cell(data="dtd", seed=1, base=(80.0, 70.0), novel=(60.0, 65.0), unreadable=0, **values) -> CellResult:
    """A base-to-novel cell of DeAR."""
    both = (scores(data, "base", base, unreadable), scores(data, "novel", novel))
    return _cell(**{"data": data, "seed": seed, "scores": both, **values})


def zero_shot_cell(data="dtd", seed=1, base=50.0, novel=55.0, **values) -> CellResult:
    """A base-to-novel cell of plain CLIP, which has one readout and learns nothing."""
    return cell(data, seed, base, novel, **{**PLAIN, **values})


def few_shot_cell(data="dtd", seed=1, shots=4, accuracies=(66.0, 64.0), **values) -> CellResult:
    """A few-shot cell of DeAR."""
    one = (scores(data, "all", accuracies),)
    return _cell(**{"protocol": "few-shot", "data": data, "seed": seed, "shots": shots, "scores": one, **values})


def cross_cell(seed=1, source=(71.0, 70.0), targets=None, **values) -> CellResult:
    """A cross-dataset cell of DeAR, trained on ImageNet."""
    found = {"dtd": (40.0, 45.0), "eurosat": (50.0, 55.0)} if targets is None else targets
    data = values.pop("data", "imagenet")
    all_scores = (scores(data, "all", source), *(scores(name, "all", pair) for name, pair in found.items()))
    return _cell(**{"protocol": "cross-dataset", "data": data, "seed": seed, "scores": all_scores, **values})


def _cell(**values) -> CellResult:
    usual = {
        "protocol": "base-to-novel",
        "method": "dear",
        "variant": "",
        "shots": 16,
        "readouts": READOUTS,
        "weights": WEIGHTS,
        "seconds": 12.5,
        "steps": 100,
        "skipped": 0,
        "adapter_sha256": "c" * 64,
        "versions": {"dear": "0.1.0"},
        "backbone": PAPER_CLIP,
        "fingerprint": "f",
    }
    return CellResult(**{**usual, **values})


def a_cell(method, data, seed, gain, **changes) -> CellResult:
    """A cell whose method gains this over plain CLIP, more or less."""
    chance = random.Random(f"{method}/{data}/{seed}")
    level = random.Random(data).uniform(50, 70)
    base, novel = (level + gain + chance.random() / 4 for _ in range(2))
    values = {"weights": {}, "readouts": {"default": "logits"}, "backbone": WORLD_CLIP, "recipe": "shared"}
    values |= {"epochs": 10, "parameters": int(1000 * abs(gain + 1))}
    values |= {"peak_memory_mb": 700 + gain, "artefact_bytes": 4000}
    if method == "zero_shot":
        values |= {**PLAIN, "epochs": None, "parameters": 0}
        base = novel = level
    return cell(data, seed, base, novel, **{**values, "method": method, **changes})


def some_cells(gains=GAINS, sets=SETS, seeds=(1, 2, 3), **changes) -> list[CellResult]:
    """Cells to compare methods on."""
    return [
        a_cell(method, data, seed, gain, **changes) for method, gain in gains.items() for data in sets for seed in seeds
    ]
