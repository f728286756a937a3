"""Every kind of folder that the package writes, each filled by a small job: for tests of crashes and of two writers."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import dear
from dear.backbone.load import clips_from, load_clip, read_clip
from dear.data.dataset import Dataset
from dear.data.open import open_dataset
from dear.engine.job import make_job
from dear.engine.run import run_job
from dear.engine.settings import TrainSettings
from dear.evaluation.cells import make_cells
from dear.evaluation.evaluate import evaluate_items
from dear.evaluation.grid import run_grid
from dear.model.load import load
from dear.model.model import Model
from dear.options.parts import Bench
from dear.paper.run import make_paper
from dear.paper.survey import PaperRequest
from dear.retrieval.index import read_index
from dear.retrieval.lists import open_lists
from dear.retrieval.update import update_index
from dear.storage.user_cache import VARIABLE
from dear.workflows.export import ExportedFile
from helpers import TINY_CONFIGS, make_photos, varied_roles
from papers import tiny_eurosat, tiny_imagenet
from random_weights import save_weights

How = dict[str, bool]
COSTS = {"seconds", "encoding_seconds", "training_seconds", "peak_memory_mb"}
RESUME, OVERWRITE = {"resume": True}, {"overwrite": True}


@dataclass(frozen=True)
class Kind:
    """How a folder of one kind is filled, and its content afterwards."""

    fill: Callable[[Path, How], object]
    state: Callable[[Path], str]
    modes: tuple[str, ...] = ("new", "resume", "overwrite")
    again: tuple[str, ...] = ("resume",)
    """How to continue after a crash: the modes, the first one that is not refused."""
    prepare: Callable[[Path], object] = lambda folder: None
    """What is done to a folder first, undisturbed, as something else has filled it before."""


def digest(*parts: bytes) -> str:
    """One hash of several parts."""
    return hashlib.sha256(b"".join(parts)).hexdigest()


def without_costs(path: Path) -> bytes:
    """A JSON file without measurements, which differ each time."""

    def bare(content: Any) -> Any:
        if isinstance(content, dict):
            return {name: bare(value) for name, value in content.items() if name not in COSTS}
        return [bare(one) for one in content] if isinstance(content, list) else content

    return json.dumps(bare(json.loads(path.read_text())), sort_keys=True).encode()


def files(folder: Path, *patterns: str) -> str:
    """One hash of the names and the bytes of some files."""
    found = sorted(path for pattern in patterns for path in folder.glob(pattern))
    assert found, f"{folder} has none of {patterns}"
    return digest(*(part for path in found for part in (path.name.encode(), path.read_bytes())))


def letters_as_numbers(phrases: Sequence[str]) -> Any:
    """A stand-in for the sentence model: what matters here is who writes, not what."""
    rows = [np.random.default_rng(random.Random(phrase).randrange(2**32)).normal(size=16) for phrase in phrases]
    return np.stack(rows) / np.linalg.norm(np.stack(rows), axis=1, keepdims=True)


class Kinds:
    """Every kind of folder, on a tiny CLIP and a few photos of noise; nothing outside of `place` is written."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "clip").mkdir(parents=True)
        config = {"model_cfg": TINY_CONFIGS["shallow"]}
        (place / "clip" / "open_clip_config.json").write_text(json.dumps(config))
        self.name = f"local-dir:{place / 'clip'}"
        self.clip = load_clip(self.name, "random", seed=7)
        save_weights(self.clip.model.state_dict(), place / "clip" / "open_clip_model.safetensors")
        self.photos = make_photos(place / "photos", ["ant", "bee", "cow"], 4)
        self.data: Dataset = open_dataset(self.photos)
        few = TrainSettings(epochs=1, batch_size=2)
        self.job = make_job(self.data, shots=2, seed=1, config={"mask": "all_mixed"}, train=few)
        self.model: Model = run_job(self.job, self.clip)[0]
        phrases = [f"a {one} {other}" for one in ("red", "big", "old", "wet") for other in ("car", "dog", "hat", "sea")]
        (place / "pool.txt").write_text("\n".join(phrases))
        varied_roles(self.clip).save(place / "roles.json")

    @contextmanager
    def ready(self) -> Iterator[None]:
        """While this is open, no CLIP is read twice, and sentences become numbers without a language model."""

        def provide(name: str, *more: Any, **settings: Any) -> Any:
            return self.clip if name == self.name else read_clip(name, *more, **settings)

        with patch("dear.workflows.discover.load_encoder", lambda name: letters_as_numbers), clips_from(provide):
            yield

    def run(self, folder: Path, how: How) -> object:
        """A training."""
        chosen = next((name for name, on in how.items() if on), "refuse")
        return run_job(self.job, self.clip, folder, if_exists=chosen)  # type: ignore[arg-type]

    def grid(self, folder: Path, how: How) -> object:
        """A grid of two cells."""
        cells = make_cells("few-shot", [str(self.photos)], methods=["zero_shot", "dear"], seeds=[1], shots=[1])
        cells = [cell if cell.method != "dear" else replace(cell, choices=(("mask", "all_mixed"),)) for cell in cells]
        few: dict[str, Any] = {"epochs": 1, "batch_size": 2, "workers": 1, "pretrained": "random"}
        return run_grid(cells, Bench(out=folder, clip=self.name, **few, **how))

    def paper(self, folder: Path, how: How) -> object:
        """A paper on two data sets."""
        if not (self.place / "sets").is_dir():
            tiny_imagenet(self.place / "sets")
            tiny_eurosat(self.place / "sets")
        settings: dict[str, Any] = {"kind": "full", "clip": self.name, "pretrained": "random"}
        settings |= {"data_root": self.place / "sets", "roles": str(self.place / "roles.json"), "seeds": (1,)}
        settings |= {"few_shots": (1,), "images": 6, "workers": 1}
        order = PaperRequest(folder, train=TrainSettings(epochs=1, cached_views=0), jobs=1, **settings)
        chosen = next((name for name, on in how.items() if on), "refuse")
        return make_paper(order, if_exists=chosen)  # type: ignore[arg-type]

    def comparison(self, folder: Path, how: How) -> object:
        """A comparison of two methods."""
        few: dict[str, Any] = {"seeds": (1,), "shots": (1,), "epochs": 1, "workers": 1, "pretrained": "random"}
        return dear.compare(self.photos, self.name, methods=["zero_shot", "coop"], out=folder, **few, **how)

    def auto(self, folder: Path, how: How) -> object:
        """A training whose method is chosen."""
        few: dict[str, Any] = {"epochs": 1, "cached_views": 2, "workers": 0, "budget": "1h"}
        few["candidates"] = "tip_adapter,linear_probe"
        return dear.fit(self.photos, self.clip, method="auto", out=folder, **few, **how)

    def index(self, folder: Path, how: How) -> object:
        """A search index."""
        return update_index(self.model, self.photos, folder, overwrite=how.get("overwrite", False))

    def discovery(self, folder: Path, how: How) -> object:
        """A discovery of roles."""
        settings: dict[str, Any] = {"pool": self.place / "pool.txt", "examples": 0, "phrases": 4}
        return dear.discover_roles(self.clip, self.photos, out=folder, **settings, **how)

    def export(self, folder: Path, how: How) -> object:
        """ONNX files; what matters here is who writes, not what, so torch is not asked for a graph."""

        def write(module: object, path: Path, *_: object) -> None:
            path.write_bytes(b"graph")

        found = ExportedFile(bytes=5, sha256="", precision="fp32", difference=0.0)
        with (
            patch("dear.workflows.export.write_onnx", write),
            patch("dear.workflows.export._checked", lambda *_: found),
            patch("dear.workflows.export.image_encoder", lambda *_: None),
        ):
            return dear.export_onnx(self.model, folder, threads=1, **how)

    def converted(self, folder: Path, how: How) -> object:
        """The weights of a CLIP."""
        return dear.convert(self.place / "clip", folder)

    def table(self, folder: Path, how: How) -> object:
        """Labels of photos."""
        return dear.predict(self.model, self.photos, out=folder / "labels.csv", workers=0)

    def sync(self, folder: Path, how: How) -> object:
        """A copy of a grid in other storage."""
        made = self.place / "grid to copy"
        if not (made / "table.csv").is_file():
            self.grid(made, {})
        return dear.sync(made, f"file://{folder}", **{name: on for name, on in how.items() if name == "overwrite"})

    def cache(self, folder: Path, how: How) -> object:
        """Features of images."""
        found = evaluate_items(self.model, self.data, self.data.train, cache=folder)
        assert found.picks.tolist() == evaluate_items(self.model, self.data, self.data.train).picks.tolist()
        return found

    def lists(self, folder: Path, how: How) -> object:
        """Lists for faster search, in the user's cache."""
        made = self.place / "index to search"
        if not (made / "index.json").is_file():
            self.index(made, {})
        with patch.dict(os.environ, {VARIABLE: str(folder)}):
            return dear.build_search(made)

    def trained(self, folder: Path) -> None:
        """A run with a config file, unless the folder has one."""
        made = self.place / "run to calibrate"
        if not (made / "adapter_config.json").is_file():
            few: dict[str, Any] = {"epochs": 1, "shots": 4, "workers": 0, "mask": "all_mixed"}
            dear.fit(self.photos, self.name, pretrained="random", out=made, **few)
        if not (folder / "adapter_config.json").is_file():
            shutil.copytree(made, folder, dirs_exist_ok=True)

    def calibrated(self, folder: Path, how: How) -> object:
        """A run that is there, with fitted probabilities."""
        self.trained(folder)
        with patch("dear.workflows.calibrate.FEWEST_IMAGES", 1):
            return dear.calibrate(folder, workers=0)

    def _rows(self, folder: Path) -> str:
        """Every row of a cache that is there is right: reading them all computes nothing and finds the same."""
        found = evaluate_items(self.model, self.data, self.data.train, cache=folder)
        return str((found.picks.tolist(), found.scores.accuracy))

    def _nearest(self, folder: Path) -> str:
        """What the lists of the whole image find."""
        index = read_index(self.place / "index to search")
        with patch.dict(os.environ, {VARIABLE: str(folder)}):
            lists = open_lists(index, index.kinds[0])
        assert lists is not None
        return str([row for row, _ in lists.search(index, index.sample(index.kinds[0], 1)[0], 5).best])

    def every(self) -> dict[str, Kind]:
        """The kinds by name."""
        adapter = ("adapter_model.safetensors", "adapter_config.json")

        def tensors(folder: Path) -> str:
            return digest(*(value.numpy().tobytes() for value in load(folder, self.clip).state_dict().values()))

        def cells(folder: Path) -> str:
            return digest(*map(without_costs, sorted((folder / "cells").glob("*.json"))))

        def rows(folder: Path) -> str:
            index = read_index(folder)
            return digest(*(index.features(kind).numpy().tobytes() for kind in index.kinds))

        def chosen(folder: Path) -> str:
            return digest(files(folder, *adapter).encode(), without_costs(folder / "auto.json"))

        twice, once = ("new", "resume"), ("new",)
        return {
            "run": Kind(self.run, tensors),
            "grid": Kind(self.grid, cells),
            "paper": Kind(
                self.paper, lambda folder: digest((folder / "results.json").read_bytes()), ("new", "resume", "resume")
            ),
            "comparison": Kind(self.comparison, cells),
            "auto": Kind(self.auto, chosen),
            "index": Kind(self.index, rows),
            "discovery": Kind(self.discovery, lambda folder: digest((folder / "roles.json").read_bytes())),
            "export": Kind(self.export, lambda folder: files(folder, "*"), ("new", "overwrite"), ("new", "overwrite")),
            "converted": Kind(self.converted, lambda folder: files(folder, "*"), once, ("new",)),
            "table": Kind(self.table, lambda folder: files(folder, "labels.csv"), once, ("new",)),
            "sync": Kind(self.sync, lambda folder: files(folder, "cells/*", "table.*"), ("new", "overwrite"), ("new",)),
            "cache": Kind(self.cache, self._rows, twice, ("new",)),
            "lists": Kind(self.lists, self._nearest, twice, ("new",)),
            "calibrated": Kind(self.calibrated, lambda folder: files(folder, *adapter), twice, ("new",), self.trained),
        }


def modes() -> dict[str, How]:
    """The ways to write into a folder, by name."""
    return {"new": {}, "resume": RESUME, "overwrite": OVERWRITE}


torch.set_num_threads(1)  # before any fork: a child of a process with threads may hang
