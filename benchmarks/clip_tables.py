"""The tables of docs/how-to/which-clip.md: families and methods from the package, costs from results/."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median
from typing import Any

from documented_numbers import document
from which_method import link

from dear.backbone.catalogue import ListedBackbone, list_known
from dear.backbone.support import Can
from dear.methods.registry import OWN, get_method
from dear.storage.markdown import table
from dear.workflows.backbones import POOLS

FILE = "backbone-sizes"
FAMILIES = {
    "the world's CLIP": "world$",
    "the world's CLIP of the other kind": "world-siglip$",
    "SigLIP 2": "ViT.*SigLIP2",
    "SigLIP": "ViT.*SigLIP",
    "MetaCLIP 2": ".*worldwide",
    "CLIPA": ".*CLIPA",
    "CLIP (OpenAI, LAION, DataComp, DFN, MetaCLIP)": "ViT-",
    "PE-Core": "PE-Core",
    "EVA-01, EVA-02": "EVA",
    "ViTamin": "ViTamin",
    "MobileCLIP B and L": "MobileCLIP2?-[BL]",
    "MobileCLIP S": "MobileCLIP2?-S",
    "ResNet": "RN",
    "ConvNeXt": "convnext",
    "CoCa": "coca",
    "NLLB, RoBERTa and XLM-R text towers": "nllb|.*roberta",
}
"""Patterns of names; the first that fits counts."""
Facts = dict[str, Any]


def family_of(name: str) -> str:
    """The family of a backbone; raises `ValueError` for a name that none fits."""
    for family, pattern in FAMILIES.items():
        if re.match(pattern, name):
            return family
    raise ValueError(f"{name} belongs to no family: add it to FAMILIES")


def family_table() -> str:
    """What can be done with each family of `dear ls backbones`."""
    members: dict[str, list[ListedBackbone]] = {family: [] for family in FAMILIES}
    for one in list_known():
        members[family_of(one.name)].append(one)
    head = ("family", "models", "weights", "text layers", "image layers", "image feature", "extra")
    rows = []
    for family, found in members.items():
        counts = (str(len(found)), str(sum(len(one.tags) or 1 for one in found)))
        reached = (_share(found, can) for can in (Can.TEXT_LAYERS, Can.IMAGE_LAYERS))
        pools = ", ".join(sorted({POOLS[one.pool] for one in found}))
        extra = ", ".join(sorted({f"`[{one.extra}]`" for one in found if one.extra})) or "–"
        rows.append((family, *counts, *reached, pools, extra))
    return table(head, rows)


def _share(found: Sequence[ListedBackbone], can: Can) -> str:
    count = sum(can in one.can for one in found)
    return {0: "no", len(found): "yes"}.get(count, f"{count} of {len(found)}")


def needs_table() -> str:
    """The methods by what they need of a CLIP."""
    groups: dict[tuple[Can, ...], list[str]] = {}
    for name in OWN:
        needed = get_method(name).needs_of_clip
        groups.setdefault(tuple(can for can in Can if can in needed), []).append(name)
    lines = ["| needs | methods |", "|---|---|"]
    for needed, names in sorted(groups.items(), key=lambda one: (len(one[0]), one[0])):
        what = ", ".join(can.value for can in needed if can != Can.FEATURES) or "features only"
        lines.append(f"| {what} | {', '.join(link({'method': name, 'variant': ''}) for name in sorted(names))} |")
    return "\n".join(lines)


def _middle(one: Facts) -> dict[str, float]:
    return {way: median(times) for way, times in one["seconds"].items()}


def cost_table(facts: Facts | None = None) -> str:
    """Milliseconds per image and per class."""
    facts = facts or document(FILE)
    head = ("backbone", "parameters", "pixels", "ms per image", "tokens", "ms per class, stock", "ms per class, here")
    rows = []
    for one in facts["rows"]:
        middle, classes = _middle(one), facts["classes"]
        costs = (middle["stock text"] / classes, middle["our text"] / classes)
        image, *texts = (f"{1000 * cost:.0f}" for cost in (middle["stock image"] / facts["batch"], *costs))
        sizes = (f"{one['parameters'] / 1e6:,.0f} M", str(one["pixels"]))
        rows.append((f"`{one['backbone']}`", *sizes, image, str(one["tokens"]), *texts))
    return table(head, rows)


def step_table(facts: Facts | None = None) -> str:
    """A training step beside the stock forward of both towers."""
    head = ("backbone", "method", "trained numbers", "stock forward, s", "step, s", "step ÷ forward")
    head += ("peak of the forward, MB", "peak of the step, MB")
    rows = []
    for one in (facts or document(FILE))["rows"]:
        middle, memory = _middle(one), one["megabytes"]
        stock, step = middle["stock image"] + middle["stock text"], middle["step"]
        peaks = (f"{max(memory['stock image'], memory['stock text']):,}", f"{memory['step']:,}")
        times = (f"{stock:.2f}", f"{step:.2f}", f"{step / stock:.2f}")
        rows.append((f"`{one['backbone']}`", f"`{one['method']}`", f"{one['trained']:,}", *times, *peaks))
    return table(head, rows)
