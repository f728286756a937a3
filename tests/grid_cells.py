"""Cells of a small grid, and their results without what a clock measured."""

from dear.evaluation.cells import make_cells

CLASSES = ["ant", "bee", "cow", "dog"]
UNLIKE = ("seconds", "encoding_seconds", "training_seconds", "peak_memory_mb")


def cells(photos, protocol="base-to-novel", **changes):
    chosen = {"methods": ["zero_shot", "dear"], "seeds": [1], "shots": [2], **changes}
    mask = {"mask": ["all_mixed"]} if "dear" in chosen["methods"] else {}
    return make_cells(protocol, [str(photos)], **{"choices": mask, **chosen})


def comparable(results):
    return [{k: v for k, v in one.model_dump().items() if k not in UNLIKE} for one in results]
