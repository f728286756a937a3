"""A saved adapter: settings, trained tensors, role map and a card in one folder. No pickle, nothing of CLIP.

`adapter_config.json` is the manifest: it carries the hash of every other file and of itself, and is written last.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from dear.backbone.clip import FrozenClip
from dear.card import card, is_card
from dear.errors import (
    ArtefactError,
    BackboneMismatchError,
    ConfigError,
    CorruptArtefactError,
    DearError,
    ForeignArtefactError,
    NewerFormatError,
    OverwriteError,
)
from dear.files import as_folder, sha256, write_atomic
from dear.methods.base import Method
from dear.methods.registry import get_method

FORMAT = "dear-adapter"
FORMAT_VERSION = 1
MANIFEST = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
CARD = "README.md"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FileEntry(_Strict):
    """Size and hash of a file."""

    bytes: int
    sha256: str


class BackboneEntry(_Strict):
    """The backbone an adapter belongs to."""

    name: str
    pretrained: str | None
    precision: str
    seed: int | None
    weights_sha256: str
    geometry: dict[str, int | bool]


class ClassesEntry(_Strict):
    """The classes that were set when the adapter was saved."""

    names: list[str]
    template: str


class Manifest(_Strict):
    """Content of `adapter_config.json`, without its own hash."""

    format: str
    format_version: int
    method: str
    settings: dict[str, Any]
    backbone: BackboneEntry
    classes: ClassesEntry | None
    files: dict[str, FileEntry]


def save(model: Method, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Write a model's adapter into a folder; something else that is already there is kept unless `overwrite`."""
    folder = as_folder(folder)
    files = _contents(model)
    manifest = _manifest(model, files)
    files[MANIFEST] = _to_json(manifest)
    trained = sum(parameter.numel() for parameter in model.trainable().values())
    try:
        if not overwrite:
            _refuse_replacing(folder, files)
        stale = _files_of_the_adapter_there(folder) - set(files) if overwrite else set()
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(stale):
            (folder / name).unlink(missing_ok=True)
        for name, data in files.items():
            write_atomic(folder / name, data)
        if not (folder / CARD).exists() or is_card((folder / CARD).read_bytes()):
            write_atomic(folder / CARD, card(manifest.model_dump(), model.facts(), trained).encode())
    except OSError as error:
        if isinstance(error, DearError):
            raise
        raise ArtefactError(f"The adapter could not be saved in {folder}: {error.strerror or error}.") from error
    return folder


def load(
    folder: str | Path,
    clip: FrozenClip | None = None,
    *,
    device: str | torch.device | None = None,
) -> Any:
    """Load a saved adapter onto its backbone: the one given, else the one it names, loaded onto `device`.

    Returns the model of the method that was saved (a `DeAR`, a `ZeroShot`, …), its classes set as when it was saved.
    """
    if clip is not None and device is not None:
        raise ConfigError("Give either a backbone or a device: a backbone that is given stays where it is.")
    folder = as_folder(folder)
    manifest = read_manifest(folder)
    files = {name: _checked_bytes(folder / name, entry) for name, entry in manifest.files.items()}
    if TENSORS not in files:
        raise CorruptArtefactError(_damaged(folder / MANIFEST))
    tensors = _parse_tensors(files.pop(TENSORS), folder / TENSORS)
    method = get_method(manifest.method)
    clip = _backbone(manifest.backbone, clip, device or "cpu", folder)
    try:
        model = method.from_artefact(clip, manifest.settings, {n: data.decode() for n, data in files.items()})
    except KeyError as error:
        raise CorruptArtefactError(f"{folder} lacks {error}, which the method {method.name!r} needs.") from None
    _fill(model, tensors, folder)
    if manifest.classes is not None:
        model.set_classes(manifest.classes.names, manifest.classes.template)
    return model


def read_manifest(folder: Path) -> Manifest:
    """Read and check `adapter_config.json`."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_bytes().decode())
    except OSError:
        raise ForeignArtefactError(f"{folder} holds no adapter: there is no readable {MANIFEST} in it.") from None
    except (ValueError, RecursionError):
        raise CorruptArtefactError(_damaged(path)) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ForeignArtefactError(f"{path} was not written by DeAR: its 'format' is not {FORMAT!r}.")
    version = content.get("format_version")
    if type(version) is int and version > FORMAT_VERSION:
        raise NewerFormatError(
            f"{path} has format {version}, this version reads up to {FORMAT_VERSION}: upgrade dear-vlm."
        )
    own_hash = content.pop("sha256", None)
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError:
        raise CorruptArtefactError(_damaged(path)) from None
    if version != FORMAT_VERSION or own_hash != _hash(manifest):
        raise CorruptArtefactError(_damaged(path))
    return manifest


def _contents(model: Method) -> dict[str, bytes]:
    tensors = {name: p.detach().to("cpu", torch.float32).contiguous() for name, p in model.trainable().items()}
    texts = {name: text.encode() for name, text in model.artefact_files().items()}
    return {TENSORS: tensors_to_bytes(tensors), **texts}


def _manifest(model: Method, files: dict[str, bytes]) -> Manifest:
    clip, classes = model.clip, model.classes
    return Manifest(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        method=model.name,
        settings=model.settings(),
        backbone=BackboneEntry(
            name=clip.name,
            pretrained=clip.pretrained,
            precision=clip.precision,
            seed=clip.seed,
            weights_sha256=clip.weights_sha256,
            geometry=clip.geometry.as_dict(),
        ),
        classes=None if classes is None else ClassesEntry(names=list(classes.names), template=classes.template),
        files={name: FileEntry(bytes=len(data), sha256=sha256(data)) for name, data in files.items()},
    )


def _hash(manifest: Manifest) -> str:
    return sha256(json.dumps(manifest.model_dump(), sort_keys=True).encode())


def _to_json(manifest: Manifest) -> bytes:
    content = {**manifest.model_dump(), "sha256": _hash(manifest)}
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _refuse_replacing(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        if path.exists() and (not path.is_file() or path.read_bytes() != data):
            raise OverwriteError(
                f"{path} already holds something else, and nothing was written: choose another folder, "
                f"or pass overwrite=True to replace it."
            )


def _files_of_the_adapter_there(folder: Path) -> set[str]:
    """Names of the files of an adapter that is about to be replaced, if there is one."""
    try:
        return {Path(name).name for name in read_manifest(folder).files}
    except ArtefactError:
        return set()


def _checked_bytes(path: Path, entry: FileEntry) -> bytes:
    try:
        data = path.read_bytes()
    except OSError:
        raise CorruptArtefactError(f"{path} is missing or unreadable: copy the adapter's folder again.") from None
    if len(data) != entry.bytes or sha256(data) != entry.sha256:
        raise CorruptArtefactError(_damaged(path))
    return data


def _parse_tensors(data: bytes, path: Path) -> dict[str, Tensor]:
    try:
        return dict(tensors_from_bytes(data))
    except Exception as error:
        raise CorruptArtefactError(_damaged(path)) from error


def _damaged(path: Path) -> str:
    return f"{path} is damaged (truncated or altered since it was saved): copy the adapter's folder again."


def _backbone(saved: BackboneEntry, clip: FrozenClip | None, device: str | torch.device, folder: Path) -> FrozenClip:
    """The backbone the adapter belongs to, checked by the hash of its weights."""
    seed = "" if saved.seed is None else f", seed={saved.seed}"
    call = f"load_clip({saved.name!r}, pretrained={saved.pretrained!r}{seed})"
    needed = f"{folder} needs {call} with weights {saved.weights_sha256[:12]}…"
    if clip is None:
        from dear.backbone.load import load_clip

        try:
            clip = load_clip(saved.name, saved.pretrained, device, precision=saved.precision, seed=saved.seed or 0)  # type: ignore[arg-type]
        except DearError as error:
            raise type(error)(f"{needed}; give it as clip=… if it is elsewhere. {error}") from error
    if not isinstance(clip, FrozenClip):
        raise ConfigError(f"clip must come from dear.load_clip(…), but is a {type(clip).__name__}.")
    if clip.weights_sha256 != saved.weights_sha256:
        raise BackboneMismatchError(f"{needed}, but this backbone ({clip.name}) has {clip.weights_sha256[:12]}….")
    differing = [key for key, value in clip.geometry.as_dict().items() if saved.geometry.get(key) != value]
    if differing:
        raise BackboneMismatchError(f"{needed}, but this backbone ({clip.name}) has another {', '.join(differing)}.")
    return clip


@torch.no_grad()
def _fill(model: Method, tensors: dict[str, Tensor], folder: Path) -> None:
    parameters = model.trainable()
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}
    if shapes != {name: tuple(t.shape) for name, t in tensors.items()}:
        raise CorruptArtefactError(f"{folder / TENSORS} does not hold the tensors that its settings describe.")
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
