"""Adapters on the hub: hf-hub:ORG/REPO or hf-hub:ORG/REPO@REVISION, downloaded into the hub's cache.

The commit is asked for once, and all files are those of this commit. What a stranger's manifest says is checked against
the hub's list before anything large is fetched, and no path of another machine is opened.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from dear.backbone.download import HubFile, Listing, cached, download, listing, use_commit
from dear.backbone.hub import Wanted, endpoint
from dear.errors import (
    ArtefactError,
    ConfigError,
    CorruptArtefactError,
    DearError,
    ForeignArtefactError,
    HubError,
    is_typed,
)
from dear.methods.registry import get_method
from dear.methods.resource import resource_fields
from dear.model.artefact import MANIFEST, TENSORS, FileEntry, Manifest, read_files, read_manifest
from dear.progress.stages import remark
from dear.storage.files import LARGEST_TEXT, is_file, is_folder

PREFIX = "hf-hub:"
REVISION = r"[A-Za-z0-9][\w.-]{0,99}"
"""A branch, a tag or a commit; it also becomes the name of a file in the cache."""
COMMIT = r"[0-9a-f]{40}"


@dataclass(frozen=True)
class HubAdapter:
    """The name of an adapter on the hub."""

    repository: str
    revision: str = "main"

    def __str__(self) -> str:
        """The name as users write it."""
        return f"{PREFIX}{self.repository}" + ("" if self.revision == "main" else f"@{self.revision}")

    @property
    def wanted(self) -> Wanted:
        """Its manifest, as the hub is asked for it."""
        return Wanted(
            str(self),
            self.repository,
            (MANIFEST,),
            self.revision,
            by_hand=(MANIFEST, "the files that it lists"),
            kind="adapter of DeAR",
            use=f"give the folder instead of {self}",
            missing=ForeignArtefactError,
        )


def on_hub(reference: object) -> HubAdapter | None:
    """The adapter that hf-hub:ORG/REPO[@REVISION] names; None for anything else, such as a folder."""
    text = reference.as_posix() if isinstance(reference, Path) else reference
    if not isinstance(text, str) or not text.startswith(PREFIX):
        return None
    repository, at, revision = text.removeprefix(PREFIX).partition("@")
    if at and not re.fullmatch(REVISION, revision):
        raise ConfigError(f"{text!r} has no valid revision: write {PREFIX}ORG/REPO@REVISION with a tag or a commit.")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise ConfigError(f"{text!r} is not a repository of the hub: write {PREFIX}ORG/REPO, or the folder of a run.")
    return HubAdapter(repository, revision or "main")


def fetch_adapter(name: HubAdapter) -> Path:
    """Download an adapter of the hub and check it; the folder of its commit in the hub's cache.

    The hub is asked each time whether there is a newer commit, unless `name` is of a commit that is here already. If it
    cannot be reached, the last download is used.
    """
    stored = cached(name.wanted)
    here = stored.parent if stored and _is_whole(stored.parent) else None
    if here and re.fullmatch(COMMIT, name.revision):
        return here
    try:
        listed = listing(name.wanted)
    except HubError:
        if here is None:
            raise
        remark(f"{endpoint()} is not asked or does not answer: {name} is the commit {here.name[:12]} in the cache")
        return here
    return _download(name, listed)


def _download(name: HubAdapter, listed: Listing) -> Path:
    """Download the files of one commit: the manifest first, then what it lists."""
    place = f"{name} (commit {listed.commit[:12]})"
    if MANIFEST in listed.files and listed.files[MANIFEST].size > LARGEST_TEXT:
        raise ForeignArtefactError(f"{place} is not an adapter of DeAR: its {MANIFEST} is far too large.")
    folder = download(name.wanted, listed, is_last=False).parent  # until all is here, an earlier commit stays usable
    try:
        manifest = read_manifest(folder)
        for file, entry in manifest.files.items():
            _check_listed(file, entry, listed.files.get(file))
        for file in manifest.files:
            download(replace(name.wanted, what=f"{file} of {name}", names=(file,)), listed, is_last=False)
        read_files(folder, manifest)
    except CorruptArtefactError as error:
        reason = str(error) if isinstance(error, _NotAsListedError) else "a file is not what its manifest describes"
        raise CorruptArtefactError(
            f"{place} is damaged ({reason}): ask its author to push it again, or name an earlier commit as "
            f"{PREFIX}{name.repository}@COMMIT."
        ) from error
    except ArtefactError as error:
        raise type(error)(str(error).replace(str(folder / MANIFEST), f"{MANIFEST} of {place}")) from error
    use_commit(name.wanted, listed)
    remark(f"{place} adapts {manifest.backbone.name} ({manifest.backbone.pretrained or 'its own weights'})")
    return folder


class _NotAsListedError(CorruptArtefactError):
    """The list of the hub contradicts the manifest."""


def _check_listed(file: str, entry: FileEntry, listed: HubFile | None) -> None:
    """Compare a manifest with the hub's list, before anything is downloaded."""
    if listed is None:
        raise _NotAsListedError(f"{file} is missing")
    large = len(listed.blob) == len(entry.sha256)
    if listed.size != entry.bytes or (large and listed.blob != entry.sha256):
        raise _NotAsListedError(f"{file} is another file than its manifest describes")


def _is_whole(folder: Path) -> bool:
    """Whether all files of an adapter are in the cache; their content is checked when they are read."""
    try:
        return all(is_file(folder / file) for file in (TENSORS, *read_manifest(folder).files))
    except DearError:
        return False


def is_local(text: str) -> bool:
    """Whether a text names something on a machine: a path, or a folder that happens to be here."""
    absolute = PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute()
    return absolute or text.startswith(("~", ".", "local-dir:")) or "\\" in text or is_folder(text) or is_file(text)


def local_backbone(manifest: Manifest) -> str | None:
    """The folder or file that the backbone is read from; None if it has a name that is valid everywhere."""
    name, weights = manifest.backbone.name, manifest.backbone.pretrained
    if name.startswith("local-dir:"):
        return name.removeprefix("local-dir:")
    return weights if weights and (is_local(weights) or "/" in weights) else None


def local_settings(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Settings that name a folder of a machine, such as a teacher or a language model, with that folder."""
    for field in resource_fields(get_method(manifest.method).Config):
        value: Any = manifest.settings.get(field)
        if isinstance(value, str) and is_local(value):
            yield field, value


def refuse_local_paths(name: HubAdapter, manifest: Manifest, has_clip: bool, replaced: Collection[str]) -> None:
    """Raise `ArtefactError` if a manifest of the hub names paths, which are never opened.

    Args:
        name: the adapter.
        manifest: its manifest.
        has_clip: whether the caller has a CLIP for it.
        replaced: settings for which the caller has something else.
    """
    if not has_clip and local_backbone(manifest):
        call = f"in Python, pass the same CLIP to dear.load({str(name)!r}, clip=…)"
        raise ArtefactError(
            f"{name} names a CLIP by a path of another machine, and such paths are never opened: "
            f"{call if is_typed() else 'pass the same CLIP as clip=…'}."
        )
    for field, _ in local_settings(manifest):
        if field not in replaced:
            raise ArtefactError(
                f"{name} names its {field} by a path, and paths of other machines are never opened: pass it to "
                f"dear.load with companions={{{field!r}: MODEL}} or moved={{{field!r}: FOLDER}}."
            )
