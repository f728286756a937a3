"""What `dear app` alone opens: the quickstart's adapter, and an index of drawings, made at the first time."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from dear.backbone.clip import FrozenClip
from dear.engine.workspace import Say
from dear.model.artefact import MANIFEST
from dear.options.commands import Calibrate
from dear.options.parts import Quickstart
from dear.retrieval.index import INDEX
from dear.storage.locks import mark
from dear.storage.user_cache import APP, cache_home
from dear.workflows.calibrate import calibrate_run
from dear.workflows.index import index_images
from dear.workflows.quickstart import run_quickstart
from dear.workflows.report import PAGE
from dear.world.datasets import World, load_world_dataset

WORLD_NOTE = (
    "This small CLIP was trained on drawings only, to try everything within a minute: it knows nothing of photographs. "
    "For photos of your own, open a run of yours (dear app RUN) or a large CLIP (dear app --clip NAME)."
)
SETS, EACH = ("world-things", "world-textures", "world-scenes"), 2
"""Data sets whose drawings are searched, and drawings per class."""
SIDE = 160
"""Pixels of a drawing to search, which has 64 itself."""


def world_run(say: Say) -> Path:
    """The quickstart's run in the user's cache, trained and calibrated at the first time."""
    run = _home() / "quickstart"
    if not (run / MANIFEST).is_file() or not (run / PAGE).is_file():
        say("the first time, a small adapter is trained, which takes a minute or two; it is stored for the next time")
        run_quickstart(Quickstart(out=run), say=say)
        calibrate_run(Calibrate(run=run), say=say)
    return run


def world_index(clip: FrozenClip, say: Say) -> Path:
    """An index of drawings in the user's cache."""
    photos, index = _home() / "drawings", _home() / "index"
    if not (index / INDEX).exists():
        say("indexing drawings to search …")
        photos.mkdir(parents=True, exist_ok=True)
        for name in SETS:
            world = load_world_dataset(name)
            for label in range(len(world.class_names)):
                for number in range(EACH):
                    _save(world, label, number, photos)
        index_images(photos, index, clip=clip)
    return index


def _home() -> Path:
    home = cache_home()
    home.mkdir(parents=True, exist_ok=True)
    mark(home, "cache")
    return home / APP


def _save(world: World, label: int, number: int, folder: Path) -> None:
    item = world.item("test", label, number)
    drawing = Image.fromarray(item.render()).resize((SIDE, SIDE), Image.Resampling.NEAREST)
    drawing.save(folder / f"{item.name.replace(' ', '-')}-{world.declaration.name.removeprefix('world-')}-{number}.png")
