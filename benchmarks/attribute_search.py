"""Search by attribute without training: precision by attribute, swapped attributes, proposed scores, and the speed.

On the world: 1,000 held-out scenes, each searched among all others by every kind of feature; per cent of the ten
nearest that share the query's attribute. Then trials of "this scene with that one's color": scenes A and B differ
in one attribute (each of the five in turn), and the target is A with B's value. Each is rendered with its own place,
size, rotation, light, noise, background and clutter. The target is hidden among the 1,000 scenes and new renderings of
A and B; the query is A with B's part.
On photographs (--data): test images of a data set, per cent of the ten nearest of the same class.
Adapters (--run, may be repeated) are measured beside the heads. Speed: features of heads beside a plain encode_image,
alternating, median of ratios.

    python benchmarks/attribute_search.py --run runs/open --run runs/strict --out attribute-search.json
    python benchmarks/attribute_search.py --clip local-dir:FOLDER --roles ROLES --data caltech101 --data-root DATA
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import dear
from dear.data.images import ImageList, image_batches
from dear.data.open import open_dataset
from dear.paper.measures import Gallery, chance_of, dataset_gallery, precision_at, world_gallery
from dear.retrieval.encoder import Encoder, head_encoder, model_encoder
from dear.retrieval.features import attribute_features, fitting_roles
from dear.retrieval.search import most_alike, proposed
from dear.roles.groups import groups_of
from dear.storage.markdown import table
from dear.world.render import Look, Scene, compose
from dear.world.samples import draw_scene
from dear.world.vocabulary import ATTRIBUTES

NEAREST = 10
TRIALS = 7
"""First number of the keys of the trials; no other random stream uses it."""


@torch.inference_mode()
def encoded(encoder: Encoder, images: ImageList) -> tuple[Tensor, list[int]]:
    """(N, G, E) features of the images that can be read, not normalised, and which those are."""
    found, read = [], []
    for part in image_batches(images, encoder.clip.preprocess_eval, size=64):
        if part.images is not None:
            found.append(encoder.encode(part.images))
            read += part.indices
    return torch.cat(found), read


def precisions(encoder: Encoder, gallery: Gallery) -> tuple[dict[str, list[float]], Tensor]:
    terms_NGE, read = encoded(encoder, gallery.images)
    units_NGE = F.normalize(terms_NGE, dim=-1)
    rows = {}
    for number, kind in enumerate(encoder.kinds):
        rows[kind] = [precision_at(units_NGE[:, number], one.labels_N[read], NEAREST) for one in gallery.tasks]
    return rows, terms_NGE


def swaps(encoder: Encoder, terms_NGE: Tensor, trials: int) -> dict[str, Any]:
    """How often the wanted scene is in the first ten, and first, by the attribute that was exchanged."""
    sampled = [_trial(number) for number in range(trials)]
    images = [Image.fromarray(pixels) for one in sampled for pixels in one[1]]
    parts_TSGE = encoded(encoder, ImageList(tuple(map(str, range(len(images)))), images.__getitem__))[0]
    parts_TSGE = parts_TSGE.view(trials, 5, *terms_NGE.shape[1:])
    found: dict[str, list[int]] = {name: [] for name in ATTRIBUTES}
    for (attribute, _), (a, b, wanted, *others) in zip(sampled, parts_TSGE, strict=True):
        kind = encoder.kinds.index(attribute)
        query = a[0] - a[kind] + b[kind]
        rows = torch.cat([terms_NGE[:, 0], torch.stack([wanted[0], *(one[0] for one in others)])])
        scores = F.normalize(rows, dim=-1) @ F.normalize(query, dim=0)
        found[attribute].append(int((scores > scores[len(terms_NGE)]).sum()))
    every = [rank for ranks in found.values() for rank in ranks]
    share = {name: 100 * sum(rank < NEAREST for rank in ranks) / max(1, len(ranks)) for name, ranks in found.items()}
    return {
        "trials": trials,
        "first ten": 100 * sum(rank < NEAREST for rank in every) / trials,
        "first": 100 * sum(rank == 0 for rank in every) / trials,
        "first ten, by attribute": share,
    }


def _trial(number: int) -> tuple[str, list[Any]]:
    """The exchanged attribute; A, B, the wanted scene, and A and B again, each rendered with its own free choices."""
    attribute, attempt = ATTRIBUTES[number % 5], 1
    a, b = (draw_scene((TRIALS, number, which), held_out_pairs=True) for which in (0, 1))
    while getattr(a, attribute) == getattr(b, attribute):
        attempt += 1
        b = draw_scene((TRIALS, number, attempt), held_out_pairs=True)
    wanted: Scene = a._replace(**{attribute: getattr(b, attribute)})
    look = Look(held_out_places=True)
    return attribute, [
        compose(one, (TRIALS, number, 100 + at), look).image for at, one in enumerate((a, b, wanted, a, b))
    ]


def proposals(encoder: Encoder, terms_NGE: Tensor, gallery: Gallery) -> dict[str, list[float]]:
    """By attribute: per cent of the images at or above the proposed score that are right, and of those right found."""
    rows = {}
    for task in gallery.tasks:
        unit_NE = F.normalize(terms_NGE[:, encoder.kinds.index(task.name)], dim=-1)
        right, found = [], []
        for query in range(0, len(unit_NE), 10):
            scores = unit_NE @ unit_NE[query]
            others = torch.arange(len(scores)) != query
            same = (task.labels_N == task.labels_N[query])[others]
            taken = scores[others] >= proposed(scores)
            right.append(float((same & taken).sum() / taken.sum().clamp(min=1)))
            found.append(float((same & taken).sum() / same.sum().clamp(min=1)))
        rows[task.name] = [100 * sum(right) / len(right), 100 * sum(found) / len(found)]
    return rows


def speed(clip: Any, roles: Any, repeats: int, batch: int) -> list[float]:
    """Ratios of a plain encode_image to the features of all groups of heads: above 1, these are faster."""
    size = clip.geometry.image_size
    images, ratios = torch.randn(batch, 3, size, size), []
    for turn in range(repeats + 1):
        start = time.perf_counter()
        clip.encode_image(images)
        middle = time.perf_counter()
        attribute_features(clip, roles, images)
        if turn:
            ratios.append((middle - start) / (time.perf_counter() - middle))
    return sorted(ratios)


def rows_of(name: str, found: dict[str, list[float]]) -> list[list[str]]:
    return [[f"{name}: {kind}", *(f"{value:.1f}" for value in values)] for kind, values in found.items()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clip", default="world")
    parser.add_argument("--pretrained")
    parser.add_argument("--roles")
    parser.add_argument("--run", action="append", default=[], type=Path)
    parser.add_argument("--data")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    clip = dear.load_clip(options.clip, options.pretrained)
    gallery = (
        dataset_gallery(open_dataset(options.data, options.data_root), options.images)
        if options.data
        else world_gallery(options.images)
    )
    roles = fitting_roles(clip, options.roles)
    heads = head_encoder(clip, roles, list(groups_of(roles)))
    chance = [chance_of(task.labels_N) for task in gallery.tasks]
    table_rows = [["chance", *(f"{value:.1f}" for value in chance)]]
    found, terms_NGE = precisions(heads, gallery)
    table_rows += rows_of("heads", found)
    result: dict[str, Any] = {"images": len(terms_NGE), "chance": chance, "torch": torch.__version__}
    result["precision"] = {"heads": found}
    result["alike"] = {"heads": most_alike(_units(heads, terms_NGE))}
    for run in options.run:
        encoder = model_encoder(dear.load(run, clip))
        result["precision"][run.name], rows_NGE = precisions(encoder, gallery)
        result["alike"][run.name] = most_alike(_units(encoder, rows_NGE))
        table_rows += rows_of(run.name, result["precision"][run.name])
    print(table(["feature", *(task.name for task in gallery.tasks)], table_rows))
    if not options.data:
        result["swaps"] = swaps(heads, terms_NGE, options.trials)
        result["proposed"] = proposals(heads, terms_NGE, gallery)
        print(json.dumps({name: result[name] for name in ("swaps", "proposed")}, indent=1))
    ratios = speed(clip, roles, options.repeats, options.batch)
    result["speed"] = {"median": median(ratios), "least": ratios[0], "most": ratios[-1], "batch": options.batch}
    print(f"speed of features of heads, encode_image = 1: {median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})")
    print("nearest kinds:", json.dumps(result["alike"]))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def _units(encoder: Encoder, terms_NGE: Tensor) -> dict[str, Tensor]:
    return {kind: F.normalize(terms_NGE[:, at], dim=-1) for at, kind in enumerate(encoder.kinds)}


if __name__ == "__main__":
    main()
