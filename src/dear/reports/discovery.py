"""What a discovery leaves behind: roles.json, discovery.json with all the evidence, index.html, and a summary."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dear.backbone.clip import FrozenClip
from dear.files import write_atomic
from dear.reports.parts import Table
from dear.reports.role_page import role_page
from dear.roles.concepts import preferred_count
from dear.roles.corpus import TextPool
from dear.roles.discover import RULES, Discovery, DiscoverySettings
from dear.roles.examples import Examples
from dear.roles.grid import role_grid
from dear.roles.moments import Collected
from dear.roles.stability import RESAMPLED, Variation

FORMAT_VERSION = 1
ROLES, RECORD, PAGE = "roles.json", "discovery.json", "index.html"


def write_discovery(
    folder: Path,
    clip: FrozenClip,
    collected: Collected,
    pool: TextPool,
    discovery: Discovery,
    settings: DiscoverySettings,
    variations: Sequence[Variation],
    examples: Mapping[tuple[int, int], Examples],
) -> str:
    """Write all files of a discovery and return a summary for the terminal."""
    record = _record(collected, pool, discovery, settings, variations)
    tables = [_stability(variations), _clusters(discovery), _validity(discovery)]
    title = f"What the heads of {Path(clip.name).name} do"
    page = role_page(discovery.roles, title=title, examples=examples, tables=tables)
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomic(folder / RECORD, text.encode())
    write_atomic(folder / PAGE, page.encode())
    write_atomic(folder / ROLES, discovery.roles.to_json().encode())
    remarks = _remarks(collected, discovery, variations)
    return "\n".join([role_grid(discovery.roles), "", *remarks, "", str(folder / PAGE)])


def _record(
    collected: Collected,
    pool: TextPool,
    discovery: Discovery,
    settings: DiscoverySettings,
    variations: Sequence[Variation],
) -> dict[str, Any]:
    return {
        "format": "dear-discovery",
        "format_version": FORMAT_VERSION,
        "settings": settings.model_dump(mode="json"),
        "pool": {"name": pool.name, "phrases": len(pool.phrases), "sha256": pool.sha256},
        "images": {"read": collected.whole().count, "problems": list(collected.problems)},
        "concepts": discovery.concepts.record,
        "dbcv_by_number_of_attributes": {str(count): score for count, score in discovery.validity.items()},
        "stability": [{"what": v.what, "same_role": v.same_role, "kappa": v.kappa} for v in variations],
        "heads": [_head_record(pool, discovery, index) for index in range(len(discovery.places))],
    }


def _head_record(pool: TextPool, discovery: Discovery, index: int) -> dict[str, Any]:
    (layer, head), span, labels = discovery.places[index], discovery.spans[index], discovery.labels
    every, core = labels.shares(span)
    decided = {rule: discovery.by_rule[rule][index] for rule in RULES}
    return {
        "layer": layer,
        "head": head,
        "explained_variance": span.explained,
        "shares": every,
        "core_shares": core,
        **{rule: [role.value, concept] for rule, (role, concept) in decided.items()},
        "phrases": [
            {
                "phrase": pool.phrases[pick],
                "score": score,
                "concept": labels.every[pick],
                "attribute": labels.core[pick],
            }
            for pick, score in zip(span.picks, span.scores, strict=True)
        ],
    }


def _stability(variations: Sequence[Variation]) -> Table:
    rows = [(v.what, f"{100 * v.same_role:.0f} %", f"{v.kappa:.2f}") for v in variations]
    return Table(("changed", "heads that keep role and concept", "kappa"), tuple(rows), title="Stability")


def _clusters(discovery: Discovery) -> Table:
    clusters = discovery.concepts.record["clusters"]
    rows = [(c["name"], "; ".join(c["examples"]), str(c["phrases"])) for c in clusters]
    return Table(("named", "most central", "phrases"), tuple(rows), title="Clusters of phrases", words=2)


def _validity(discovery: Discovery) -> Table:
    found = discovery.validity.items()
    rows = [(str(count), "not defined" if score is None else f"{score:.3f}") for count, score in found]
    return Table(("attributes", "DBCV"), tuple(rows), title="Number of attributes")


def _remarks(collected: Collected, discovery: Discovery, variations: Sequence[Variation]) -> list[str]:
    record = discovery.concepts.record
    clusters, noise, phrases = len(record["clusters"]), record["noise"], record["phrases"]
    remarks = [f"{collected.whole().count} images read, {len(collected.problems)} skipped."]
    remarks.append(f"{clusters} clusters among {phrases} phrases, {noise} of them noise ({record['method']}).")
    if "fallback" in record:
        remarks.append(f"Fallback: {record['fallback']}.")
    if silent := sum(not span.picks for span in discovery.spans):
        remarks.append(f"{silent} heads have no phrases: what they write does not vary over these images.")
    if (best := preferred_count(discovery.validity)) is not None:
        remarks.append(f"DBCV prefers {best} attributes.")
    resampled = [100 * v.same_role for v in variations if v.what.startswith(RESAMPLED)]
    if resampled:
        remarks.append(f"With resampled images {min(resampled):.0f}-{max(resampled):.0f} % of heads keep their role.")
    return remarks
