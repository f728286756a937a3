"""Tensors of a folder in transformers' format: one safetensors file, or several with an index. All of it is untrusted.

Sizes are read from the files' headers, which safetensors checks against the length of the file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dear.errors import BackboneError
from dear.storage import documents
from dear.storage.files import is_file

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
"""Endings of weights in other formats, which are not read."""
MOST_FILES = 1000
FLOATS = ("F64", "F32", "F16", "BF16")
"""Types of tensors that are read."""
_SHARD = re.compile(r"\w[\w.-]*\.safetensors")


class Tensors:
    """The tensors of a folder, by name; they are read one by one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place = self._single() if is_file(folder / WEIGHTS) else self._shards()

    @property
    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self._place)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, from the header of its file."""
        return tuple(map(int, self._file(name).get_slice(name).get_shape()))

    def outline(self, name: str) -> Tensor:
        """A tensor of the right shape without values, which takes no memory."""
        stored = self._file(name).get_slice(name).get_dtype()
        if stored not in FLOATS:
            raise BackboneError(f"{self._folder} stores {name} as {stored}: save the model as fp32, fp16 or bf16.")
        return torch.empty(self.shape(name), device="meta")

    def read(self, name: str) -> Tensor:
        """A tensor in fp32."""
        try:
            tensor: Tensor = self._file(name).get_tensor(name)
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise _damaged(self._folder, error) from None
        return tensor.float()

    def _file(self, name: str) -> Any:
        if name not in self._place:
            raise BackboneError(f"{self._folder} has no weight {name}, which a whole model has: save it again.")
        return self._place[name]

    def _single(self) -> dict[str, Any]:
        file = self._open(self._folder / WEIGHTS)
        return dict.fromkeys(file.keys(), file)

    def _shards(self) -> dict[str, Any]:
        """The tensors of several files; the index may only name files of this folder."""
        shards = shards_of(self._folder)
        files = {shard: self._open(_inside(self._folder, shard)) for shard in sorted(set(shards.values()))}
        known = {shard: set(file.keys()) for shard, file in files.items()}
        for name, shard in shards.items():
            if name not in known[shard]:
                raise BackboneError(f"{self._folder / shard} has no weight {name[:80]!r}, which {INDEX} names.")
        return {name: files[shard] for name, shard in shards.items()}

    def _open(self, path: Path) -> Any:
        if not is_file(path):
            raise BackboneError(f"{path} is missing or not a regular file: put the weights there.")
        try:
            return safe_open(path, framework="pt")
        except (SafetensorError, OSError, ValueError) as error:
            raise _damaged(path, error) from None


def shards_of(folder: Path) -> dict[str, str]:
    """The file of each tensor, by the index of a folder; raises `BackboneError` if there are no safetensors."""
    path = folder / INDEX
    if not is_file(path):
        raise BackboneError(no_weights(str(folder), sorted(one.name for one in folder.iterdir())))
    content = documents.parse(
        documents.read_bytes(path, error=BackboneError), where=str(path), what="an index", error=BackboneError
    )
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shards, dict) or not shards or not all(isinstance(one, str) for one in shards.values()):
        raise BackboneError(f"{path} is not an index of weights: its 'weight_map' must name a file for each tensor.")
    files = set(shards.values())
    if wrong := sorted(one for one in files if not _SHARD.fullmatch(one)):
        raise BackboneError(f"{path} names {wrong[0][:80]!r}: only safetensors files of the same folder are read.")
    if len(files) > MOST_FILES:
        raise BackboneError(f"{path} names {len(files):,} files, more than the {MOST_FILES:,} that are read.")
    return shards


def no_weights(place: str, files: list[str]) -> str:
    """The sentence for a folder or repository without weights in safetensors files."""
    other = next((one for end in PICKLED for one in files if one.endswith(end)), None)
    if other is None:
        return f"{place} contains no weights: add {WEIGHTS}."
    return (
        f"{place} has its weights in {other}, a format that can contain code, and not as {WEIGHTS}: convert them with "
        "save_pretrained of transformers, or use a repository that has them as safetensors."
    )


def _inside(folder: Path, name: str) -> Path:
    """A file of the folder; a link may only lead to the same folder, or to the blobs of the hub's cache."""
    path, home = folder / name, folder.resolve()
    blobs = home.parent.parent / "blobs"
    if path.resolve().parent not in (home, *([blobs] if home.parent.name == "snapshots" else [])):
        raise BackboneError(f"{path} is a link to another folder: put the file itself there.")
    return path


def _damaged(path: Path, error: Exception) -> BackboneError:
    return BackboneError(
        f"{path} cannot be loaded, because it is damaged ({first_line(error)}): put a good copy there."
    )


def first_line(error: BaseException) -> str:
    """The beginning of an error message of another library."""
    return (str(error).splitlines() or [type(error).__name__])[0][:120].rstrip(".")
