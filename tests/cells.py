"""Results of cells that never ran, for the tests of tables."""

from __future__ import annotations

from dear.evaluation.results import Backbone, CellResult, Scores

ATTRIBUTES = ("color", "shape", "texture", "object", "location")
WEIGHTS = {"cls": 0.75, **dict.fromkeys(ATTRIBUTES, 0.05)}
READOUTS = {"default": "fusion", "transfer": "decoupled"}
PAPER_CLIP = Backbone(name="ViT-B-16-quickgelu", pretrained="openai", weights_sha256="a" * 64)
PLAIN = {"method": "zero_shot", "readouts": {"default": "logits"}, "weights": {}, "steps": 0, "adapter_sha256": None}
WORLD_CLIP = Backbone(name="world", pretrained=None, weights_sha256="b" * 64)


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
