"""Readers of earlier formats of the search index: all images in one JSON file, all features in one tensor file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from safetensors.torch import load as tensors_from_bytes

from dear.errors import DataError
from dear.retrieval.segments import Columns, Stamp, columns_of
from dear.storage import documents
from dear.storage.files import MEGABYTE, read_regular, sha256

LARGEST = 65536 * MEGABYTE
FEATURES = "features-{}.safetensors"


class _Form(documents.Form):
    """Entries of index.json in formats 1 and 2."""

    folder: str
    kinds: list[str] = Field(min_length=1)
    model_sha256: str
    features: str = Field(pattern=r"^features-[0-9a-f]{16}\.safetensors$")
    images: list[Annotated[tuple[str, int, int], Field(strict=False)]]


@dataclass(frozen=True)
class OldIndex:
    """What an index of an earlier format holds."""

    folder: str
    kinds: list[str]
    model_sha256: str
    columns: Columns


def read_old(out: Path, content: Mapping[str, Any], version: int) -> OldIndex:
    """An index of format 1 or 2; whatever is wrong with it is raised as it comes."""
    form = documents.fitting(content, _Form, where=str(out), what="an index", error=DataError)
    if version > 1 and content.get(documents.SEAL) != documents.seal(content):
        raise ValueError("the seal is broken")
    data = read_regular(out / form.features, most=LARGEST)
    if form.features != FEATURES.format(sha256(data)[:16]):
        raise ValueError("the features are others")
    features = tensors_from_bytes(data)["features"].float()
    if features.ndim != 3 or tuple(features.shape[:2]) != (len(form.images), len(form.kinds)):
        raise ValueError("the features do not fit")
    stamps = [Stamp(*image) for image in form.images]
    return OldIndex(form.folder, form.kinds, form.model_sha256, columns_of(features, stamps))
