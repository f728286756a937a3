"""A toy data set in memory, and jobs on it, for the tests of training."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dear.data.dataset import Dataset, Item
from dear.engine.job import Job
from dear.engine.run_folder import METRICS
from dear.engine.settings import TrainSettings
from dear.errors import ImageError
from dear.model.artefact import TENSORS
from helpers import SPECIAL_CONFIGS

CLASSES = ("red thing", "green thing", "blue thing")


class KilledError(BaseException):
    """Stands for the power going off."""


def at_step(number: int) -> Callable[[dict[str, Any]], None]:
    """For `on_step`: the power goes off at that step."""

    def stop(metrics: dict[str, Any]) -> None:
        if metrics["step"] == number:
            raise KilledError

    return stop


class Toy:
    """Noisy images of three colors; counts how often each is opened, and some can be made unreadable."""

    def __init__(self, per_class: int = 3, test_per_class: int = 2) -> None:
        self.opened: Counter[str] = Counter()
        self.bad: set[str] = set()
        splits = {
            split: tuple(Item(f"{split}/{label}/{i}", label) for label in range(len(CLASSES)) for i in range(count))
            for split, count in (("train", per_class), ("val", 0), ("test", test_per_class))
        }
        self.dataset = Dataset("toy", CLASSES, "a photo of a {}.", **splits, open=self.open, fingerprint=str)

    def open(self, item_id: str) -> Image.Image:
        self.opened[item_id] += 1
        if item_id in self.bad:
            raise ImageError(f"{item_id} cannot be read: it is damaged.")
        _, label, _ = item_id.split("/")
        random = np.random.default_rng(list(item_id.encode()))
        pixels = random.integers(0, 120, (36, 44, 3), dtype=np.uint8)
        pixels[..., int(label)] += 120
        return Image.fromarray(pixels)

    def job(self, *, seed: int = 1, cached_views: int = 0, method: str = "dear", **settings) -> Job:
        """All training images, two epochs of three steps."""
        return Job(
            self.dataset,
            self.dataset.train,
            CLASSES,
            shots=3,
            seed=seed,
            method=method,
            config=SPECIAL_CONFIGS.get(method, {}),
            train=TrainSettings(**{"epochs": 2, "batch_size": 3, "cached_views": cached_views, **settings}),
        )


def adapter_hash(folder: Path) -> str:
    return hashlib.sha256((folder / TENSORS).read_bytes()).hexdigest()


def log_lines(folder: Path) -> list[str]:
    return (folder / METRICS).read_text().splitlines()
