"""Roles of the world's CLIP, and whether removing an attribute's heads destroys that attribute.

The world's heads have 16 dimensions, so a head has at most 16 phrases, the last of which describe next to nothing:
`--phrases` says how many count.

    python benchmarks/world_roles.py --out world-roles.json
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import torch

from dear.backbone.load import load_clip
from dear.data.images import image_batches
from dear.reports.ablation import ablation_markdown
from dear.roles.ablation import collect_terms, measure
from dear.roles.capture import contributions
from dear.roles.concepts import load_encoder
from dear.roles.discover import RULES, DiscoverySettings, discover, first_examined_layer
from dear.roles.grid import role_grid
from dear.roles.moments import collect_moments
from dear.roles.rolemap import CORE_ATTRIBUTES, Role
from dear.roles.sources import WORLD, images_from, pool_from, tasks_from
from dear.roles.stability import stability


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clip", default=WORLD)
    parser.add_argument("--pretrained")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--phrases", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--first-layer", type=int)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    clip = load_clip(args.clip, args.pretrained)
    images, pool, encode = images_from(WORLD, args.images), pool_from(WORLD), load_encoder()
    first = first_examined_layer(clip, args.first_layer)
    collected = collect_moments(clip, images, first_layer=first)
    few = torch.stack([clip.preprocess_eval(images.open(index)) for index in range(8)])
    error = float((contributions(clip, few).total() - clip.encode_image(few)).abs().max())
    print(f"terms sum to the embedding: largest error {error:.1e}\n")
    task_images, tasks = tasks_from(WORLD, "{}", args.images)
    terms, read = collect_terms(clip, image_batches(task_images, clip.preprocess_eval, size=64))
    tasks = [task.only(read) for task in tasks]
    results = []
    for phrases in args.phrases:
        for rule in RULES:
            settings = DiscoverySettings(rule=rule, phrases=phrases, first_layer=args.first_layer)
            found = discover(clip, collected, pool, encode, settings)
            counts = Counter(head.concept for head in found.roles.heads if head.role is Role.CORE)
            print(f"## {phrases} phrases a head, {rule} rule\n\n```\n{role_grid(found.roles)}\n```\n")
            print("core heads: " + ", ".join(f"{name} {counts[name]}" for name in CORE_ATTRIBUTES) + "\n")
            variations = stability(clip, collected, found, settings)
            print("\n".join(f"- {v.what}: {100 * v.same_role:.0f} % keep their role" for v in variations) + "\n")
            ablation = measure(clip, found.roles, terms, tasks, draws=args.draws)
            print(ablation_markdown(ablation) + "\n", flush=True)
            facts = {"phrases": phrases, "rule": rule, "core_heads": counts, "error": error}
            results.append({**facts, "ablation": asdict(ablation), "stability": [v.record() for v in variations]})
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
