"""Search: the nearest photos of an index, by a photo, words, one attribute, or with an attribute of another photo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dear.app.studio import Photo, Studio, opened, thumbnail
from dear.errors import ConfigError, ImageError
from dear.reports.render import Picture, render
from dear.reports.sheet import SheetRow
from dear.retrieval.index import WHOLE
from dear.retrieval.search import ALL, Found, Hit, asked, find, open_hit

SHOWN = 12
WHOLE_WORDS = "the whole photo"
ALL_WORDS = "each attribute in turn"
LONGEST_TEXT = 200


def kinds(studio: Studio) -> list[tuple[str, str]]:
    """What photos can be compared by, as (words, kind)."""
    if studio.search is None:
        return []
    own = [kind for kind in studio.search.index.kinds if kind != WHOLE]
    return [(WHOLE_WORDS, WHOLE), *((kind, kind) for kind in own), *([(ALL_WORDS, ALL)] if own else [])]


def can_swap(studio: Studio) -> bool:
    """Whether a part of a photo can be exchanged: only features of heads are parts of a whole."""
    return studio.search is not None and studio.search.index.manifest.parts


def search_photos(
    studio: Studio,
    path: str | Path | None,
    text: str | None,
    by: str | None,
    swap: str | None = None,
    other: str | Path | None = None,
) -> str:
    """A part of the page with the nearest photos; only small copies and the names of files are in it."""
    if studio.search is None:
        raise ConfigError("There is no index to search: make one with 'dear search index PHOTOS --run RUN'.")
    if text and len(text) > LONGEST_TEXT:
        raise ConfigError(f"The words are too long: at most {LONGEST_TEXT} letters.")
    index, encoder = studio.search.index, studio.search.encoder
    query = opened(_photo(path)) if path else None
    swaps = {swap: opened(_photo(other))} if swap and other else {}
    wanted = asked(query, text=(text or "").strip() or None, by=by or WHOLE, swap=swaps, top_k=SHOWN)
    rows = [SheetRow(_pictures(one.hits), one.title, _note(one)) for one in find(encoder, index, wanted)]
    return render("app_found.html", rows=rows, count=len(index))


def _photo(path: str | Path) -> Photo:
    return Photo(Path(path), Path(path).name)


def _pictures(hits: Sequence[Hit]) -> tuple[Picture, ...]:
    found = []
    for hit in hits:
        score = f"{hit.score:.2f}" if hit.matches else f"({hit.score:.2f})"
        try:
            found.append(Picture(thumbnail(open_hit(hit)), f"{score} {hit.path.name}"))
        except ImageError:  # its file is gone
            continue
    return tuple(found)


def _note(found: Found) -> str:
    below = sum(not hit.matches for hit in found.hits)
    weak = f"{below} of {len(found.hits)} scores, in brackets, are too low to be a match." if below else ""
    return " ".join(filter(None, (found.remark, weak)))
