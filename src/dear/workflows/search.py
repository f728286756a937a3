"""Search an index by an image or a text."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.engine.ranks import local_device
from dear.errors import ConfigError, DearWarning, option
from dear.model.model import Model
from dear.options.commands import Search
from dear.options.reading import check_values
from dear.reports.sheet import write_found
from dear.retrieval.encoder import encoder_of
from dear.retrieval.index import INDEX, WHOLE, Index, read_index
from dear.retrieval.search import Found, Hit, Query, asked, check, find
from dear.storage.files import as_folder
from dear.workflows.machine import using_threads


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
    sheet: str | Path | None = None,
    exact: bool = False,
    device: str | None = None,
    threads: int | None = None,
    allow_pickled: bool = False,
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
        sheet: contact sheet to write: a .html or .png file.
        exact: compare every image, even if `dear.build_search` has built lists for faster search.
        device: "cpu", "cuda"; by default a GPU if there is one.
        threads: threads to compute with on a CPU; by default all.
        allow_pickled: also read a backbone's weights from a pickled file (tensors only, never code).
    """
    found = search_by_kind(
        source,
        query,
        text=text,
        by=by,
        without=without,
        swap=swap,
        top_k=top_k,
        min_score=min_score,
        index=index,
        sheet=sheet,
        exact=exact,
        device=device,
        threads=threads,
        allow_pickled=allow_pickled,
    )
    for one in found:
        if one.remark:
            warnings.warn(one.remark, DearWarning, stacklevel=2)
    return [hit for one in found for hit in one.hits]


def search_by_kind(
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
    run: str | Path | None = None,
    clip: str | None = None,
    pretrained: str | None = None,
    sheet: str | Path | None = None,
    exact: bool = False,
    device: str | None = None,
    threads: int | None = None,
    allow_pickled: bool = False,
) -> list[Found]:
    """As `search`, with one result per kind of feature, its remarks and proposed score.

    `run`, or `clip` and `pretrained`, name what made the index, if that is not where the index says.
    """
    check_values(Search, device=device, threads=threads, exact=exact)
    wanted = asked(query, text=text, by=by, without=without, swap=swap, top_k=top_k, min_score=min_score)
    if run is not None and clip is not None:
        raise ConfigError(
            f"An index is made by a CLIP ({option(clip=clip)}) or by an adapter ({option(run=str(run))}): name one of "
            f"them, or neither."
        )
    stored, model = opened(source, index)
    check(stored, wanted)
    on = local_device(device)
    with using_threads(threads):
        named = run if clip is None else load_clip(clip, pretrained, on, allow_pickled=allow_pickled)
        encoder = encoder_of(stored, named or model, device=on, allow_pickled=allow_pickled)
        found = find(encoder, stored, wanted, exact=exact)
        if sheet is not None:
            write_found(Path(sheet), wanted, found)
    return found


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
