"""What `dear app` alone opens: the quickstart's adapter, and an index of drawings, made at the first time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from dear.backbone.clip import FrozenClip
from dear.engine.workspace import Say
from dear.model.artefact import MANIFEST, read_manifest
from dear.options.commands import Calibrate
from dear.options.parts import Quickstart
from dear.retrieval.index import INDEX
from dear.storage.locks import mark
from dear.storage.user_cache import APP, cache_home
from dear.workflows.calibrate import calibrate_run
from dear.workflows.index import index_images
from dear.workflows.quickstart import run_quickstart
from dear.workflows.report import PAGE
from dear.world.datasets import WorldItem, load_world_dataset

WORLD_NOTE = (
    "A small CLIP that knows drawings only, to try everything out. For photos, open a run of yours (dear app RUN) or a "
    "CLIP for photographs (dear app --clip NAME)."
)
SETS, EACH = ("world-things", "world-textures", "world-scenes"), 3
"""Data sets whose drawings are searched, and drawings per class."""
SIDE = 160
"""Pixels of a drawing to search, which has 64 itself."""


def world_run(say: Say) -> Path:
    """The quickstart's run in the user's cache, trained and calibrated at the first time."""
    run = _home() / "quickstart"
    if not (run / MANIFEST).is_file() or not (run / PAGE).is_file():
        say("the first time, a small adapter is trained, which takes a minute or two; it is stored for the next time")
        run_quickstart(Quickstart(out=run), say=say)
    if read_manifest(run).calibration is None:
        calibrate_run(Calibrate(run=run), say=say)
    return run


def world_index(clip: FrozenClip, say: Say) -> Path:
    """An index of drawings in the user's cache; their names say what they show, so that a person can judge a search."""
    photos, index = _home() / "drawings", _home() / "index"
    if not (index / INDEX).exists():
        say("indexing drawings to search …")
        photos.mkdir(parents=True, exist_ok=True)
        for number, item in enumerate(_drawings()):
            drawing = Image.fromarray(item.render()).resize((SIDE, SIDE), Image.Resampling.NEAREST)
            words = f"{item.scene.color} {item.scene.texture} {item.scene.shape} {number}"
            drawing.save(photos / f"{words.replace(' ', '-')}.png")
        index_images(photos, index, clip=clip)
    return index


def _home() -> Path:
    home = cache_home()
    home.mkdir(parents=True, exist_ok=True)
    mark(home, "cache")
    return home / APP


def _drawings() -> Iterator[WorldItem]:
    for world in map(load_world_dataset, SETS):
        for label in range(len(world.class_names)):
            yield from (world.item("test", label, number) for number in range(EACH))
