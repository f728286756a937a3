"""Made-up findings of a whole paper, and tiny stand-ins for its data sets."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from PIL import Image

from cells import ATTRIBUTES, WORLD_CLIP
from dear.data.images import ImageList
from dear.evaluation.cells import Cell
from dear.evaluation.results import CellResult, Scores
from dear.paper.measures import Gallery, Retrieval
from dear.paper.page import Findings
from dear.paper.plan import MINI, Scale, cells_by_protocol, plan_paper
from dear.roles.ablation import Ablation, Drop, Group, Task
from dear.roles.rolemap import RoleMap


def made_up(cell: Cell) -> CellResult:
    """What a cell might have found; the same cell always finds the same."""
    chance = random.Random(cell.slug + cell.protocol)
    learns, gains = cell.method == "dear", cell.method == "role_gains"

    def score(data: str, half: str) -> Scores:
        first = 55 + 15 * chance.random() + (8 + 3 * cell.shots**0.5 if learns and half != "novel" else 0)
        accuracy = {"fusion": first, "decoupled": first - 2 * chance.random()} if learns else {"logits": first}
        accuracy = {"gains": first + 1, "plain": first} if gains else accuracy
        return Scores(data=data, half=half, images=100, unreadable=0, accuracy=accuracy, per_class={})

    weights = [0.05 * chance.random() for _ in ATTRIBUTES]
    fused = {"cls": 1 - sum(weights), **dict(zip(ATTRIBUTES, weights, strict=True))}
    gained = {name: 20 * weight - 0.1 for name, weight in zip(ATTRIBUTES, weights, strict=True)} | {"rest": 1.0}
    readouts = {"default": "fusion", "transfer": "decoupled"} if learns else {"default": "logits"}
    return CellResult(
        protocol=cell.protocol,
        method=cell.method,
        variant=cell.variant,
        data=cell.data,
        seed=cell.seed,
        shots=cell.shots,
        scores=tuple(score(*test) for test in cell.tests),
        readouts={"default": "gains", "transfer": "plain"} if gains else readouts,
        weights=fused if learns else gained if gains else {},
        seconds=12.34567,
        steps=100 if learns else 0,
        skipped=0,
        adapter_sha256="c" * 64 if learns else None,
        versions={"dear": "0.1.0"},
        backbone=WORLD_CLIP,
        fingerprint="f",
    )


def gallery(count: int = 40) -> Gallery:
    """Plain squares of some colours."""
    labels = torch.arange(count) % 5
    tasks = tuple(Task(name, labels, tuple("abcde")) for name in ATTRIBUTES)
    images = ImageList(tuple(map(str, range(count))), lambda i: Image.new("RGB", (12, 10), (50 * (i % 5), 6 * i, 90)))
    return Gallery(images, tasks, "squares")


def retrieval() -> Retrieval:
    """Every attribute's feature finds its own attribute best, but for location's."""
    kinds = ("cls", *ATTRIBUTES)
    precision = tuple(tuple(80.0 if kind == name != "location" else 40.0 for name in ATTRIBUTES) for kind in kinds)
    searches = tuple((query, tuple(tuple(range(8)) for _ in kinds)) for query in (0, 10, 20, 30))
    return Retrieval(40, 10, kinds, ATTRIBUTES, precision, (20.0,) * 5, searches)


def ablation(layers: int = 6, heads: int = 4) -> Ablation:
    """The last layers cost most; an attribute's heads cost that attribute, but for shape's."""
    groups = []
    for number, name in enumerate(ATTRIBUTES):
        drops = tuple(0.3 if other == name != "shape" else 0.05 for other in ATTRIBUTES)
        removed = Drop(f"{name} (2 heads)", ((3, number % heads),), drops)
        groups.append(Group(name, removed, (0.02,) * 5, (0.01,) * 5))
    singles = [
        Drop(f"head ({layer}, {head})", ((layer, head),), (0.01 * layer, 0.0, 0.01 * head, -0.001, 0.0))
        for layer in range(3, layers + 1)
        for head in range(heads)
    ]
    whole = [Drop(f"layer {layer}", (), (0.01 * layer,) * 5) for layer in range(1, layers + 1)]
    return Ablation(1000, ATTRIBUTES, (0.9, 0.8, 0.7, 0.6, 0.95), tuple(groups), tuple(whole), tuple(singles), 20)


def findings(done: float = 1.0, present: list[str] | None = None, **others) -> Findings:
    """A mini paper of which a share of the cells is done."""
    experiments = plan_paper(MINI, Scale(), present)
    cells = [cell for found in cells_by_protocol(experiments).values() for cell in found]
    usual = {
        "kind": "mini",
        "sets": MINI,
        "experiments": experiments,
        "results": [made_up(cell) for cell in cells[: int(done * len(cells))]],
        "setting": "Made up for a test.",
        "roles": RoleMap.load("vit-b-16"),
        "retrieval": retrieval(),
        "ablation": ablation(),
        "gallery": gallery(),
    }
    return Findings(**{**usual, **others})


def noise(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.frombytes("RGB", (16, 16), random.Random(path.name + path.parent.name).randbytes(768)).save(path)


def tiny_imagenet(root: Path, classes: int = 4) -> None:
    """ImageNet and ImageNetV2, a few images of noise."""
    folders = [f"n{i:08d}" for i in range(classes)]
    lines = "\n".join(f"{folder} thing {i}" for i, folder in enumerate(folders))
    for name in ("imagenet", "imagenetv2"):
        (root / name).mkdir(parents=True)
        (root / name / "classnames.txt").write_text(lines)
    for label, folder in enumerate(folders):
        for i in range(2):
            noise(root / "imagenet" / "images" / "train" / folder / f"{i}.png")
            noise(root / "imagenet" / "images" / "val" / folder / f"v{i}.png")
            noise(root / "imagenetv2" / "imagenetv2-matched-frequency-format-val" / str(label) / f"w{i}.png")


def tiny_eurosat(root: Path) -> None:
    """EuroSAT with three classes."""
    rows = {"train": [], "val": [], "test": []}
    for label, name in enumerate(("Forest", "SeaLake", "River")):
        for split in ("train", "test"):
            for i in range(2):
                noise(root / "eurosat" / "2750" / name / f"{split}{i}.png")
                rows[split].append([f"{name}/{split}{i}.png", label, name])
    (root / "eurosat" / "split_zhou_EuroSAT.json").write_text(json.dumps(rows))
