"""What an adapter looks like on the hub: its files without paths of this machine, and its card."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from huggingface_hub import EvalResult, ModelCard

from dear.backbone.clip import short_name
from dear.errors import ArtefactError, CorruptArtefactError
from dear.model.artefact import (
    CARD,
    MANIFEST,
    TENSORS,
    FileEntry,
    Manifest,
    count_values,
    read_files,
    read_manifest,
)
from dear.model.card import FOLDER, card, metadata
from dear.model.hub_adapter import PREFIX, local_backbone
from dear.storage.documents import as_bytes, parse, read_text, to_json
from dear.storage.files import sha256
from dear.storage.yaml_text import parse_yaml


class Shared(NamedTuple):
    """The files of a commit, and what its readers have to provide themselves."""

    manifest: Manifest
    files: dict[str, bytes]
    card: str
    replaced: dict[str, str]
    """Settings that named a path, with what they are now: its last part."""


def shareable(folder: Path) -> Shared:
    """Read an adapter as it can be published; every file is checked against its hash.

    Raises `ArtefactError` if its backbone is a folder or a file of this machine: nobody else could load it.
    """
    manifest = read_manifest(folder)
    if local := local_backbone(manifest):
        raise ArtefactError(
            f"{folder} was trained on the CLIP in {local}, which others do not have: upload that CLIP, and save the "
            f"adapter again with dear.load(RUN, dear.load_clip('{PREFIX}ORG/CLIP')).save_pretrained(FOLDER)."
        )
    found: dict[str, str] = {}
    files = {name: _without_paths_in(name, data, found) for name, data in read_files(folder, manifest).items()}
    settings = {name: without_paths(value, found) for name, value in manifest.settings.items()}
    replaced = {name: str(value) for name, value in settings.items() if value != manifest.settings[name]}
    entries = {name: FileEntry(bytes=len(data), sha256=sha256(data)) for name, data in files.items()}
    classes = manifest.classes
    if classes and classes.dataset:
        classes = classes.model_copy(update={"dataset": without_paths(classes.dataset, found)})
    manifest = manifest.model_copy(update={"settings": settings, "files": entries, "classes": classes})
    text = _card_of(folder, manifest, files[TENSORS])
    for path in sorted(found, key=len, reverse=True):
        text = text.replace(path, found[path])
    return Shared(manifest, {MANIFEST: as_bytes(manifest.to_json()), **files}, text, replaced)


def without_paths(value: Any, found: dict[str, str]) -> Any:
    """The same value with each absolute path in it replaced by its last part; `found` collects the replacements."""
    if isinstance(value, Mapping):
        return {name: without_paths(one, found) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(one, found) for one in value]
    if not isinstance(value, str):
        return value
    path = value.removeprefix("local-dir:")
    kind = next((kind for kind in (PurePosixPath, PureWindowsPath) if kind(path).is_absolute()), None)
    if kind is None:
        return value
    found[path] = kind(path).name or "folder"
    return value[: len(value) - len(path)] + found[path]


def published_card(shared: Shared, repository: str, results: Sequence[EvalResult]) -> str:
    """The card for a repository: how to load the adapter from there, its metadata, and scores if there are some."""
    text = shared.card.replace(f'"{FOLDER}"', f'"{PREFIX}{repository}"')
    wanted = metadata(shared.manifest.model_dump())
    if not text.startswith("---"):
        text = f"---\n{wanted.to_yaml()}\n---\n{text}"
    try:
        if top := re.match(r"\s*---\s*\n(.*?)\n---", text, re.DOTALL):
            parse_yaml(top[1])  # an alias could stand for terabytes
        page: Any = ModelCard(text, ignore_metadata_errors=True)
        for name, value in vars(wanted).items():
            if page.data.get(name) is None:
                setattr(page.data, name, value)
        if results:
            page.data.model_name = repository.rpartition("/")[2]
            page.data.eval_results = list(results)
        return str(page)
    except Exception as error:  # a card is written by hand, and its metadata can be anything
        raise ArtefactError(
            f"The metadata at the top of {CARD} cannot be read ({_short(error)}): correct them, or delete {CARD}."
        ) from error


def _card_of(folder: Path, manifest: Manifest, tensors: bytes) -> str:
    """The card in the folder, or a new one if there is none."""
    try:
        return read_text(folder / CARD, error=CorruptArtefactError)
    except FileNotFoundError:
        return card(manifest.model_dump(), {}, count_values(tensors, folder / TENSORS))


def _without_paths_in(name: str, data: bytes, found: dict[str, str]) -> bytes:
    """A file without paths: JSON is searched, tensors and text are not."""
    if not name.endswith(".json"):
        return data
    try:
        before = parse(data, where=name, what="JSON", error=CorruptArtefactError)
        after = without_paths(before, found)
        return data if after == before else as_bytes(to_json(after))
    except (ValueError, RecursionError) as error:
        if isinstance(error, CorruptArtefactError):
            raise
        raise CorruptArtefactError(f"{name} cannot be published ({_short(error)}): save the adapter again.") from None


def backbone_name(manifest: Manifest) -> str:
    """The backbone in words: "ViT-B-16-quickgelu (openai)"."""
    weights = manifest.backbone.pretrained
    return short_name(manifest.backbone.name) + (f" ({weights})" if weights else "")


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:120].rstrip(".") or type(error).__name__
