"""Save and read adapters: a folder with config, tensors, further files and a card; no pickle, no CLIP weights.

`adapter_config.json` is the manifest. It contains the hash of every other file and of itself, and is written last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import Field, ValidationError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from dear import __version__
from dear.backbone.clip import FrozenClip, content_hash
from dear.data.prompts import ClassList
from dear.errors import (
    ArtefactError,
    CorruptArtefactError,
    DearError,
    ForeignArtefactError,
    NewerFormatError,
    OverwriteError,
)
from dear.methods.base import Method
from dear.model.calibration import Calibration
from dear.model.card import ADDED, added_to, card, is_card
from dear.storage.documents import Document, Record, as_bytes, read_bytes
from dear.storage.files import MEGABYTE, as_folder, read_regular, sha256, write_atomic

MANIFEST = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
CARD = "README.md"
LARGEST = 16384 * MEGABYTE
"""Size limit of an adapter's files, in bytes."""
FILE_NAME = r"^[a-z0-9_][a-z0-9_-]*\.(json|safetensors|txt)$"
"""Allowed file names of an adapter; paths are not allowed."""


class FileEntry(Record):
    """Size and hash of a file."""

    bytes: int = Field(ge=0, le=LARGEST)
    sha256: str


class OriginEntry(Record):
    """The hub repository of a backbone's weights."""

    repository: str
    commit: str | None
    license: str | None


class BackboneEntry(Record):
    """The backbone that an adapter was trained on."""

    name: str
    pretrained: str | None
    precision: str
    seed: int | None
    weights_sha256: str
    geometry: dict[str, int | bool | str]
    origin: OriginEntry | None = None
    """Where the weights come from; not written if it is not the hub."""
    pickled: bool = False
    """Whether the weights are in a pickled file, which has to be allowed again; not written if they are not."""


class ClassesEntry(Record):
    """The classes that the adapter was saved with."""

    names: list[str]
    template: str
    dataset: str | None = None
    descriptions: dict[str, list[str]] | None = None
    """Sentences about each class; not written if there are none."""


class Manifest(Document):
    """Content of `adapter_config.json`."""

    format = "dear-adapter"
    version = 3
    oldest = 2
    noun = "adapter of DeAR"
    sealed = True
    error, foreign, newer = CorruptArtefactError, ForeignArtefactError, NewerFormatError

    method: str
    settings: dict[str, Any]
    backbone: BackboneEntry
    classes: ClassesEntry | None
    trained_on: list[str] = Field(default_factory=list)
    """Classes that were trained on."""
    companions: dict[str, dict[str, str]] = Field(default_factory=dict)
    """What the models were that it was made with, by content; left out if there are none."""
    calibration: Calibration | None = None
    """Temperature and thresholds for these classes; not written if there are none."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of dear, torch and open_clip that it was saved with; none before format 3."""
    files: dict[Annotated[str, Field(pattern=FILE_NAME)], FileEntry] = Field(max_length=16)

    @classmethod
    def invalid(cls, where: str, problem: ValidationError | None) -> DearError:
        """Report any problem as damage: manifests are not written by hand."""
        return cls.error(_damaged(where))

    def to_json(self) -> str:
        """JSON text without empty entries."""
        content = self.model_dump()
        if content["classes"] and content["classes"]["descriptions"] is None:
            del content["classes"]["descriptions"]
        for entries, name in [
            (content, "companions"),
            (content, "calibration"),
            (content["backbone"], "origin"),
            (content["backbone"], "pickled"),
        ]:
            if not entries[name]:
                del entries[name]
        return self.encode(content)


class Saved(NamedTuple):
    """Content of an adapter's folder; every file has been checked against its hash."""

    manifest: Manifest
    tensors: dict[str, Tensor]
    files: dict[str, str]


class Savable(Protocol):
    """The attributes of a model that are saved."""

    clip: FrozenClip
    method: Method
    classes: ClassList | None
    trained_on: tuple[str, ...]
    calibration: Calibration | None

    @property
    def companions(self) -> Mapping[str, Savable]:
        """The models that the method was created with, such as a teacher."""
        ...


def versions() -> dict[str, str]:
    """Versions of dear, torch and open_clip."""
    return {"dear": __version__, **{name: version(name) for name in ("torch", "open_clip_torch")}}


def identity(model: Savable) -> dict[str, str]:
    """Hashes that identify a model by content: its method, CLIP's weights, trained tensors and settings."""
    settings = model.method.config.first_named(exclude=model.companions)
    beside = [settings, model.method.files, {name: identity(one) for name, one in model.companions.items()}]
    state = content_hash(dict(model.method.state_dict())) + json.dumps(beside, sort_keys=True)
    return {
        "method": model.method.name,
        "weights_sha256": model.clip.weights_sha256,
        "state_sha256": sha256(state.encode()),
    }


def save(model: Savable, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Write a model's adapter to a folder; other existing files are replaced only with `overwrite`."""
    folder = as_folder(folder)
    files = _contents(model.method)
    manifest = _manifest(model, files)
    files[MANIFEST] = as_bytes(manifest.to_json())
    trained = sum(
        parameter.numel() for parameter in model.method.parameters()
    )  # also for a loaded model, whose parameters need no gradient
    try:
        if not overwrite:
            _refuse_replacing(folder, files)
        stale = files_of_adapter(folder) - set(files) if overwrite else set()
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(stale):
            (folder / name).unlink(missing_ok=True)
        for name, data in files.items():
            write_atomic(folder / name, data)
        before = read_regular(folder / CARD) if (folder / CARD).exists() else None
        if before is None or is_card(before):
            added = added_to((before or b"").decode("utf-8", "replace"))
            write_atomic(folder / CARD, (card(manifest.model_dump(), model.method.facts(), trained) + added).encode())
    except OSError as error:
        if isinstance(error, DearError):
            raise
        raise ArtefactError(f"The adapter could not be saved in {folder}: {error.strerror or error}.") from error
    return folder


def add_to_card(folder: Path, markdown: str) -> None:
    """Add a section to the card of an adapter, in place of what was added before; any other README is left alone."""
    text = read_regular(folder / CARD)
    if is_card(text):
        bare = text.decode().split(ADDED)[0]
        write_atomic(folder / CARD, f"{bare}{ADDED}{markdown}".encode())


def read_adapter(folder: Path) -> Saved:
    """Read an adapter's folder and check every file against its hash."""
    manifest = read_manifest(folder)
    files = read_files(folder, manifest)
    tensors = _parse_tensors(files.pop(TENSORS), folder / TENSORS)
    try:
        return Saved(manifest, tensors, {name: data.decode() for name, data in files.items()})
    except UnicodeDecodeError:
        raise CorruptArtefactError(f"{folder} has a file that is not text in UTF-8: save the adapter again.") from None


def read_files(folder: Path, manifest: Manifest) -> dict[str, bytes]:
    """Read the files that a manifest lists and check them against their hashes."""
    files = {name: _checked_bytes(folder / name, entry) for name, entry in manifest.files.items()}
    if TENSORS not in files:
        raise CorruptArtefactError(_damaged(folder / MANIFEST))
    return files


def read_manifest(folder: Path) -> Manifest:
    """Read and check `adapter_config.json`."""
    path = folder / MANIFEST
    try:
        return Manifest.read(path)
    except OSError:
        if not folder.exists():
            raise ForeignArtefactError(f"{folder} does not exist: give the folder of a run or adapter.") from None
        raise ForeignArtefactError(f"{folder} is not an adapter: it has no readable {MANIFEST}.") from None


def _contents(method: Method) -> dict[str, bytes]:
    tensors = {name: tensor.detach().to("cpu").contiguous() for name, tensor in method.state_dict().items()}
    texts = {name: text.encode() for name, text in method.files.items()}
    return {TENSORS: tensors_to_bytes(tensors), **texts}


def _manifest(model: Savable, files: dict[str, bytes]) -> Manifest:
    clip, classes = model.clip, model.classes
    listed = None
    if classes is not None:
        sentences = {name: list(one) for name, one in (classes.descriptions or {}).items()}
        named: dict[str, Any] = {
            "template": classes.template,
            "dataset": classes.dataset,
            "descriptions": sentences or None,
        }
        listed = ClassesEntry(names=list(classes.names), **named)
    return Manifest(
        method=model.method.name,
        settings=model.method.config.model_dump(mode="json"),
        backbone=BackboneEntry(
            name=clip.name,
            pretrained=clip.pretrained,
            precision=clip.precision,
            seed=clip.seed,
            weights_sha256=clip.weights_sha256,
            geometry=clip.geometry.as_dict(),
            origin=None if clip.origin is None else OriginEntry(**asdict(clip.origin)),
            pickled=clip.pickled,
        ),
        classes=listed,
        trained_on=list(model.trained_on),
        companions={name: identity(one) for name, one in model.companions.items()},
        calibration=model.calibration,
        versions=versions(),
        files={name: FileEntry(bytes=len(data), sha256=sha256(data)) for name, data in files.items()},
    )


def _refuse_replacing(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        if path.exists() and (not path.is_file() or path.stat().st_size != len(data) or path.read_bytes() != data):
            raise OverwriteError(
                f"{path} already exists with other content, and nothing was written: choose another folder, "
                f"or pass overwrite=True to replace it."
            )


def files_of_adapter(folder: Path) -> set[str]:
    """Files of an adapter that is about to be replaced: those whose hash is the one in the manifest.

    Other files are not deleted, even if the manifest names them, because they may belong to somebody else.
    """
    names = set()
    with suppress(ArtefactError):
        for name, entry in read_manifest(folder).files.items():
            with suppress(ArtefactError):
                _checked_bytes(folder / name, entry)
                names.add(name)
    return names


def _checked_bytes(path: Path, entry: FileEntry) -> bytes:
    try:
        data = read_bytes(path, error=CorruptArtefactError, most=entry.bytes)
    except OSError:
        raise CorruptArtefactError(f"{path} is missing or unreadable: copy the adapter's folder again.") from None
    if len(data) != entry.bytes or sha256(data) != entry.sha256:
        raise CorruptArtefactError(_damaged(path))
    return data


def count_values(data: bytes, path: Path) -> int:
    """The number of values in the tensors of an adapter."""
    return sum(tensor.numel() for tensor in _parse_tensors(data, path).values())


def _parse_tensors(data: bytes, path: Path) -> dict[str, Tensor]:
    try:
        return dict(tensors_from_bytes(data))
    except Exception as error:
        raise CorruptArtefactError(_damaged(path)) from error


def _damaged(path: Path | str) -> str:
    return f"{path} is damaged (truncated or altered since it was saved): copy the adapter's folder again."
