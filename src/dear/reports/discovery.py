"""What a discovery leaves behind: roles.json, discovery.json with all the evidence, index.html, and a summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dear.backbone.clip import FrozenClip
from dear.errors import DearError, RolesError
from dear.reports.page_sections import Table
from dear.reports.role_page import role_page
from dear.roles.concepts import preferred_count
from dear.roles.corpus import TextPool
from dear.roles.discover import RULES, Discovery, DiscoverySettings
from dear.roles.entropy import Rule
from dear.roles.examples import Examples
from dear.roles.grid import role_grid
from dear.roles.known import is_specialised
from dear.roles.moments import Collected
from dear.roles.rolemap import ROLES, Role, RoleMap, rule_file
from dear.roles.stability import RESAMPLED, Variation
from dear.storage.documents import Document, OpenRecord, as_bytes
from dear.storage.files import write_atomic

RECORD, PAGE = "discovery.json", "index.html"


class DiscoveryRecord(Document, OpenRecord):
    """The document `discovery.json`: every number that a discovery found."""

    format = "dear-discovery"
    version = 1
    noun = "discovery record"
    error = RolesError


def write_discovery(
    folder: Path,
    clip: FrozenClip,
    collected: Collected,
    pool: TextPool,
    discovery: Discovery,
    settings: DiscoverySettings,
    variations: Mapping[Rule, Sequence[Variation]],
    examples: Mapping[tuple[int, int], Examples],
    made_from: str,
) -> str:
    """Write all files of a discovery, map and page for each rule, and return a summary for the terminal.

    `made_from` is the mark of everything that decided it but the rule: see `change_rule`.
    """
    record = _record(collected, pool, discovery, settings, variations)
    title = f"What the heads of {Path(clip.name).name} do"
    for rule, roles in discovery.maps.items():
        tables = [_stability(variations[rule]), _clusters(discovery), _validity(discovery)]
        page = role_page(roles, title=title, examples=examples, tables=tables)
        write_atomic(folder / page_file(rule), page.encode())
        write_atomic(folder / rule_file(rule), roles.to_json().encode())
    _put(folder, {**record, "made_from": made_from}, settings.rule)
    remarks = _remarks(collected, discovery, variations[settings.rule])
    return _summary(folder, remarks)


def page_file(rule: str) -> str:
    """What the page of the map by one rule is called."""
    return f"index-{rule}.html"


def is_whole(folder: Path, made_from: str) -> bool:
    """Whether a folder holds a finished discovery with maps and pages of both rules, made from just this."""
    with suppress(OSError, DearError):
        for rule in RULES:
            RoleMap.load(folder / rule_file(rule))
        record = _read(folder)
        return record.get("made_from") == made_from and all((folder / page_file(rule)).is_file() for rule in RULES)
    return False


def change_rule(folder: Path, rule: Rule) -> tuple[RoleMap, str]:
    """Let a rule decide a finished discovery: its map, and a summary. Nothing is computed, both are there."""
    record = _read(folder)
    settings, by_rule = {**record["settings"], "rule": rule}, record["stability_by_rule"]
    _put(folder, {**record, "settings": settings, "stability": by_rule[rule]}, rule)
    return RoleMap.load(folder), _summary(folder, [f"By the {rule} rule; images and concepts are as they were."])


def _read(folder: Path) -> dict[str, Any]:
    return DiscoveryRecord.read(folder / RECORD).model_dump()


def _put(folder: Path, record: Mapping[str, Any], rule: Rule) -> None:
    """Write the record, and the page and map of the rule that decides; the map comes last."""
    write_atomic(folder / RECORD, as_bytes(DiscoveryRecord.encode(record)))
    write_atomic(folder / PAGE, (folder / page_file(rule)).read_bytes())
    write_atomic(folder / ROLES, (folder / rule_file(rule)).read_bytes())


def _summary(folder: Path, remarks: Sequence[str]) -> str:
    """For the terminal: the grid, what was remarkable, and where the page is."""
    maps = {rule: RoleMap.load(folder / rule_file(rule)) for rule in RULES}
    chosen = RoleMap.load(folder / ROLES)
    told = [*remarks, *unspecialised(chosen, maps)]
    return "\n".join([role_grid(chosen), "", *told, "", str(folder / PAGE)])


def unspecialised(chosen: RoleMap, maps: Mapping[Rule, RoleMap]) -> list[str]:
    """What it means that no head has a role of its own, if that is so, and what to do."""
    if is_specialised(chosen):
        return []
    told = [
        f"No head is specialised by the {chosen.provenance.rule} rule: training with this map does the same as "
        f"training without one (--set mask=all_mixed)."
    ]
    for rule, roles in maps.items():
        special = sum(head.role is not Role.MIXED for head in roles.heads)
        if special:
            told.append(
                f"By the {rule} rule {special} of {len(roles.heads)} heads are: type the same command with "
                f"--rule {rule} --resume, which reads no image again, or give {rule_file(rule)} to --roles."
            )
    return told


def _record(
    collected: Collected,
    pool: TextPool,
    discovery: Discovery,
    settings: DiscoverySettings,
    variations: Mapping[Rule, Sequence[Variation]],
) -> dict[str, Any]:
    by_rule = {
        rule: [{"what": v.what, "same_role": v.same_role, "kappa": v.kappa} for v in found]
        for rule, found in variations.items()
    }
    return {
        "settings": settings.model_dump(mode="json"),
        "pool": {"name": pool.name, "phrases": len(pool.phrases), "sha256": pool.sha256},
        "images": {"read": collected.whole().count, "problems": list(collected.problems)},
        "concepts": discovery.concepts.record,
        "dbcv_by_number_of_attributes": {str(count): score for count, score in discovery.validity.items()},
        "stability": by_rule[settings.rule],
        "stability_by_rule": by_rule,
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
    if collected.gone:
        remarks.append(f"Gone since they were read: {collected.gone} images; what was read of them counts.")
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
