"""Writes the files of a role discovery: map, figures, discovery.json with all evidence, page, and a summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dear.backbone.clip import FrozenClip
from dear.errors import DearError, RolesError
from dear.reports.page_sections import Table
from dear.reports.role_figure import SUFFIXES, write_figure
from dear.reports.role_page import role_page
from dear.roles.concepts import preferred_count
from dear.roles.corpus import TextPool
from dear.roles.discover import RULES, Discovery, DiscoverySettings
from dear.roles.entropy import Rule
from dear.roles.examples import Examples
from dear.roles.grid import role_grid
from dear.roles.moments import Collected
from dear.roles.rolemap import ROLES, Role, RoleMap, rule_file
from dear.roles.stability import RESAMPLED, Variation, doubt
from dear.storage.documents import Document, OpenRecord, as_bytes
from dear.storage.files import write_atomic

RECORD, PAGE = "discovery.json", "index.html"
FIGURES = tuple(f"roles{suffix}" for suffix in SUFFIXES)


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
    """Write all files of a discovery, with a map and a page per rule, and return a summary for the terminal.

    `made_from` is a hash of everything that determines the discovery except the rule: see `change_rule`.
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
    """File name of the page of one rule."""
    return f"index-{rule}.html"


def is_whole(folder: Path, made_from: str) -> bool:
    """Whether a folder contains a finished discovery with this hash, with figures, and maps and pages of both rules."""
    with suppress(OSError, DearError):
        for rule in RULES:
            RoleMap.load(folder / rule_file(rule))
        record = _read(folder)
        files = (*FIGURES, *(page_file(rule) for rule in RULES))
        return record.get("made_from") == made_from and all((folder / file).is_file() for file in files)
    return False


def change_rule(folder: Path, rule: Rule) -> tuple[RoleMap, str]:
    """Switch a finished discovery to another rule, and return its map and a summary; nothing is computed again."""
    record = _read(folder)
    changed = {"settings": {**record["settings"], "rule": rule}}
    changed |= {name: record[f"{name}_by_rule"][rule] for name in ("stability", "unstable")}
    _put(folder, {**record, **changed}, rule)
    return RoleMap.load(folder), _summary(folder, [f"Switched to the {rule} rule; images and concepts are unchanged."])


def _read(folder: Path) -> dict[str, Any]:
    return DiscoveryRecord.read(folder / RECORD).model_dump()


def _put(folder: Path, record: Mapping[str, Any], rule: Rule) -> None:
    """Write the record, and figures, page and map of the chosen rule; the map is written last."""
    write_atomic(folder / RECORD, as_bytes(DiscoveryRecord.encode(record)))
    for figure in FIGURES:
        write_figure(RoleMap.load(folder / rule_file(rule)), folder / figure)
    write_atomic(folder / PAGE, (folder / page_file(rule)).read_bytes())
    write_atomic(folder / ROLES, (folder / rule_file(rule)).read_bytes())


def _summary(folder: Path, remarks: Sequence[str]) -> str:
    """The summary for the terminal: the grid of roles, remarks, and the path of the page."""
    maps = {rule: RoleMap.load(folder / rule_file(rule)) for rule in RULES}
    chosen = RoleMap.load(folder / ROLES)
    remarks = [*remarks, *filter(None, [doubt(chosen)]), *unspecialised(chosen, maps)]
    return "\n".join([role_grid(chosen), "", *remarks, "", str(folder / PAGE)])


def unspecialised(chosen: RoleMap, maps: Mapping[Rule, RoleMap]) -> list[str]:
    """If no head is specialised: sentences on what that means and what to do, else nothing."""
    if chosen.is_specialised:
        return []
    remarks = [
        f"No head is specialised by the {chosen.provenance.rule} rule: training with this map is the same as training "
        f"without one (--set mask=all_mixed)."
    ]
    for rule, roles in maps.items():
        special = sum(head.role is not Role.MIXED for head in roles.heads)
        if special:
            remarks.append(
                f"By the {rule} rule {special} of {len(roles.heads)} heads are: repeat the command with "
                f"--rule {rule} --resume, which does not read the images again, or pass {rule_file(rule)} to --roles."
            )
            remarks += filter(None, [doubt(roles)])
    return remarks


def _record(
    collected: Collected,
    pool: TextPool,
    discovery: Discovery,
    settings: DiscoverySettings,
    variations: Mapping[Rule, Sequence[Variation]],
) -> dict[str, Any]:
    by_rule = {rule: [one.record() for one in found] for rule, found in variations.items()}
    unstable = {rule: roles.is_unstable for rule, roles in discovery.maps.items()}
    return {
        "settings": settings.model_dump(mode="json"),
        "pool": {"name": pool.name, "phrases": len(pool.phrases), "sha256": pool.sha256},
        "images": {"read": collected.whole().count, "problems": list(collected.problems)},
        "concepts": discovery.concepts.record,
        "dbcv_by_number_of_attributes": {str(count): score for count, score in discovery.validity.items()},
        "stability": by_rule[settings.rule],
        "stability_by_rule": by_rule,
        "unstable": unstable[settings.rule],
        "unstable_by_rule": unstable,
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
    return Table(("changed", "heads with the same role and concept", "kappa"), tuple(rows), title="Stability")


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
        remarks.append(f"Images removed after they had been read: {collected.gone}; they still count.")
    remarks.append(f"{clusters} clusters among {phrases} phrases, {noise} of them noise ({record['method']}).")
    if "fallback" in record:
        remarks.append(f"Fallback: {record['fallback']}.")
    if silent := sum(not span.picks for span in discovery.spans):
        remarks.append(f"{silent} heads have no phrases: their output does not vary over these images.")
    if (best := preferred_count(discovery.validity)) is not None:
        remarks.append(f"DBCV prefers {best} attributes.")
    same = [100 * v.same_role for v in variations if v.what.startswith(RESAMPLED)]
    if same:
        kappas = [v.kappa for v in variations if v.what.startswith(RESAMPLED)]
        remarks.append(
            f"With resampled images {min(same):.0f}-{max(same):.0f} % of heads have the same role "
            f"(kappa {min(kappas):.2f} to {max(kappas):.2f})."
        )
    return remarks
