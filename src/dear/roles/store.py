"""What a discovery leaves behind: roles.json, discovery.json with all the evidence, index.html, and a summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dear.backbone.clip import FrozenClip
from dear.data.images import ImageList
from dear.files import write_atomic
from dear.roles.corpus import TextPool
from dear.roles.discover import Discovery, DiscoverySettings, pool_features
from dear.roles.examples import head_examples
from dear.roles.grid import role_grid
from dear.roles.moments import Collected
from dear.roles.page import role_page
from dear.roles.stability import Variation, stability

FORMAT_VERSION = 1


def write_discovery(
    folder: Path,
    clip: FrozenClip,
    collected: Collected,
    pool: TextPool,
    discovery: Discovery,
    settings: DiscoverySettings,
    example_images: ImageList | None,
) -> str:
    """Write all files of a discovery and return a summary for the terminal."""
    variations = stability(clip, collected, pool, discovery, settings)
    examples = None
    if example_images is not None:
        texts_TE = pool_features(clip, pool)
        examples = head_examples(clip, example_images, discovery.places, discovery.spans, texts_TE)
    record = _record(pool, discovery, settings, variations)
    tables = {"Stability": _stability_rows(variations), "Concepts found": _cluster_rows(discovery)}
    page = role_page(discovery.roles, title=f"What the heads of {clip.name} do", examples=examples, tables=tables)
    write_atomic(folder / "discovery.json", (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    write_atomic(folder / "index.html", page.encode())
    write_atomic(folder / "roles.json", discovery.roles.to_json().encode())
    return "\n".join([role_grid(discovery.roles), "", *_remarks(discovery, variations), "", str(folder / "index.html")])


def _record(
    pool: TextPool, discovery: Discovery, settings: DiscoverySettings, variations: list[Variation]
) -> dict[str, Any]:
    heads = []
    for place, span, by_dominance, by_quantile in zip(
        discovery.places,
        discovery.spans,
        discovery.by_rule["dominance"],
        discovery.by_rule["quantile"],
        strict=True,
    ):
        rows = [
            {
                "phrase": pool.phrases[pick],
                "score": score,
                "concept": discovery.labels.every[pick],
                "attribute": discovery.labels.core[pick],
            }
            for pick, score in zip(span.picks, span.scores, strict=True)
        ]
        heads.append(
            {
                "layer": place[0],
                "head": place[1],
                "explained_variance": span.explained,
                "dominance": [by_dominance[0].value, by_dominance[1]],
                "quantile": [by_quantile[0].value, by_quantile[1]],
                "phrases": rows,
            }
        )
    return {
        "format": "dear-discovery",
        "format_version": FORMAT_VERSION,
        "settings": settings.model_dump(mode="json"),
        "pool": {"name": pool.name, "phrases": len(pool.phrases), "sha256": pool.sha256},
        "images": {"read": discovery.images_read, "problems": list(discovery.problems)},
        "concepts": discovery.concepts.record,
        "dbcv_by_number_of_attributes": {str(count): score for count, score in discovery.validity.items()},
        "stability": [{"what": v.what, "same_role": v.same_role, "kappa": v.kappa} for v in variations],
        "heads": heads,
    }


def _stability_rows(variations: list[Variation]) -> list[dict[str, str]]:
    return [
        {"changed": v.what, "heads that keep role and concept": f"{100 * v.same_role:.0f} %", "kappa": f"{v.kappa:.2f}"}
        for v in variations
    ]


def _cluster_rows(discovery: Discovery) -> list[dict[str, str]]:
    clusters = discovery.concepts.record["clusters"]
    return [
        {"concept": c["name"], "phrases": str(c["phrases"]), "most central": "; ".join(c["examples"])} for c in clusters
    ]


def _remarks(discovery: Discovery, variations: list[Variation]) -> list[str]:
    record = discovery.concepts.record
    clusters, noise = len(record["clusters"]), record["noise"]
    best = max(discovery.validity, key=lambda count: discovery.validity[count]) if discovery.validity else None
    resampled = [v.same_role for v in variations if v.what.startswith("images resampled")]
    remarks = [
        f"{discovery.images_read} images read, {len(discovery.problems)} skipped.",
        f"{clusters} clusters among {record['phrases']} phrases, {noise} noise; {record['method']}.",
    ]
    if best is not None:
        remarks.append(f"DBCV prefers {best} attributes.")
    if resampled:
        remarks.append(
            f"With resampled images {100 * min(resampled):.0f}-{100 * max(resampled):.0f} % keep their role."
        )
    return remarks
