"""Measure whether heat maps point at the right region, on scenes of the world, whose pixels are known.

For each attribute, plain CLIP names the attribute's value among all values; of the true value's heat map by that
attribute's heads, is the strongest patch on the thing that has the attribute? Color, shape and texture belong to the
shape, location to what is behind both.

    python benchmarks/heat_maps.py --images 300
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from PIL import Image

import dear
from dear.methods.zero_shot import ZeroShot
from dear.model.explanation import explain_image
from dear.roles.known import shipped_roles
from dear.storage.markdown import table
from dear.world.grammar import PROMPTS, prompt
from dear.world.render import Layout, Look, compose
from dear.world.samples import HELD_OUT_STREAM, _per_patch, draw_scene
from dear.world.vocabulary import ATTRIBUTES, NAMES

ON = 64
"""Of 256: the share of a patch that a thing must cover for the patch to lie on it."""


def targets(layout: Layout) -> dict[str, torch.Tensor]:
    """Which patches lie on what each attribute is about."""
    shape, thing = (torch.tensor(_per_patch(cover)) for cover in (layout.shape, layout.object))
    behind = (shape < ON) & (thing < ON)
    return {**dict.fromkeys(("color", "shape", "texture"), shape >= ON), "object": thing >= ON, "location": behind}


def measure(count: int) -> dict[str, dict[str, float]]:
    """Per cent by attribute."""
    clip = dear.load_clip("world")
    roles = shipped_roles(clip)
    plain = dear.Model(clip, ZeroShot(clip, ZeroShot.Config()))
    asked = {}
    for name in ATTRIBUTES:
        before, after = prompt(name, "XYZ", PROMPTS[name][0]).split("XYZ")
        asked[name] = plain.for_classes(NAMES[name], f"{before}{{}}{after}")
    rows = {name: [] for name in ATTRIBUTES}
    for index in range(count):
        scene = draw_scene((HELD_OUT_STREAM, index, 0), held_out_pairs=True)
        layout = compose(scene, (HELD_OUT_STREAM, index, 1), Look(held_out_places=True))
        image = clip.preprocess_eval(Image.fromarray(layout.image))
        on = targets(layout)
        for name in ATTRIBUTES:
            value = getattr(scene, name)
            found = explain_image(asked[name], image, roles=roles, top_k=1, also=[value])
            heat = found.heat(name)[found.classes.index(value)].flatten()
            spoke = heat.clamp(min=0)
            rows[name].append(
                [
                    found.classes[0] == value,
                    bool(on[name][heat.argmax()]),
                    float(spoke[on[name]].sum() / spoke.sum().clamp(min=1e-9)),
                    float(on[name].double().mean()),
                ]
            )
    columns = ("answers right", "strongest patch on it", "evidence for it on it", "patches on it (chance)")
    means = {name: (100 * torch.tensor(each, dtype=torch.float64).mean(0)).tolist() for name, each in rows.items()}
    return {name: dict(zip(columns, (round(one, 1) for one in each), strict=True)) for name, each in means.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.images)
    heads = list(next(iter(found.values())))
    print(table(("per cent", *heads), [[name, *(f"{one[head]:.1f}" for head in heads)] for name, one in found.items()]))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
