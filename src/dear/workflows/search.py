"""Search an index by an image or a text."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dear.backbone.clip import FrozenClip
from dear.errors import ConfigError, DearWarning
from dear.model.model import Model
from dear.retrieval.encoder import encoder_of
from dear.retrieval.index import INDEX, WHOLE, Index, read_index
from dear.retrieval.search import Hit, Query, asked, check, find
from dear.storage.files import as_folder


def search(
    source: str | Path | Model | FrozenClip,
    query: Query | None = None,
    *,
    text: str | None = None,
    by: str = WHOLE,
    without: str | Sequence[str] = (),
    swap: Mapping[str, Query] | None = None,
    top_k: int = 12,
    min_score: float | str | None = None,
    index: str | Path | None = None,
    device: str | None = None,
) -> list[Hit]:
    """Search an index by an image or a text, nearest images first; warns if a feature is not what its name says.

    Args:
        source: folder of an index, or of a run that has one; or a loaded model, or CLIP, with `index`.
        query: path of an image, a PIL image, or a text such as "a striped star".
        text: words besides an image: both count the same.
        by: kind of feature: "cls" for the whole image, "color", "head:11.4"; "all" for the hits of each, one after
            another.
        without: kinds whose part is left out, such as "location": images are compared by everything else.
        swap: takes the part of a kind from another image, as in {"color": "other.jpg"}.
        top_k: number of results.
        min_score: least score of a hit; "auto" for the one proposed by the spread of scores. By default hits below that
            are listed as well, with `matches` false.
        index: folder of the index, if `source` is a model or the folder of a run with another index.
        device: "cpu", "cuda"; by default the CPU.
    """
    how: dict[str, Any] = {"by": by, "without": without, "swap": swap, "top_k": top_k, "min_score": min_score}
    wanted = asked(query, text=text, **how)
    stored, model = opened(source, index)
    check(stored, wanted)
    found = find(encoder_of(stored, model, device=device), stored, wanted)
    for one in found:
        if one.remark:
            warnings.warn(one.remark, DearWarning, stacklevel=2)
    return [hit for one in found for hit in one.hits]


def opened(
    source: str | Path | Model | FrozenClip, index: str | Path | None = None
) -> tuple[Index, Model | FrozenClip | Path | None]:
    """The index that is meant, and the model if it is not the one the index names."""
    if isinstance(source, Model | FrozenClip):
        if index is None:
            raise ConfigError("Name the folder of the index: search(model, query, index=FOLDER).")
        return read_index(as_folder(index)), source
    folder = as_folder(source)
    if index is not None:
        return read_index(as_folder(index)), folder
    if not (folder / INDEX).exists() and (folder / "index" / INDEX).exists():
        return read_index(folder / "index"), folder
    return read_index(folder), None
