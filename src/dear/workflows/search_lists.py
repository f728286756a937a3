"""Make search in a large index faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dear.errors import ConfigError
from dear.options.commands import BuildSearch
from dear.options.reading import check_values
from dear.progress.display import watched
from dear.progress.stages import counting, stage
from dear.retrieval.build_lists import build_lists
from dear.retrieval.lists import ListsRecord, advice
from dear.workflows.machine import using_threads
from dear.workflows.search import opened

ROWS = "rows"


def build_search(
    index: str | Path,
    *,
    kinds: Sequence[str] | None = None,
    threads: int | None = None,
    progress: bool | Callable[[str, int, int], None] | None = None,
) -> list[tuple[ListsRecord, bool]]:
    """Build lists for faster search with faiss; returns what each kind has, and whether it was built now.

    The lists are in the user's cache and can be deleted at any time. `dear.search` uses them for queries by one image
    or one text. Images that are added later are compared one by one until this is called again.

    Args:
        index: folder of an index, or of a run that has one.
        kinds: kinds of features; by default all of the index.
        threads: threads to compute with; by default all.
        progress: True for a bar on stderr, or a function of the name of a stage, the number done, the number of all.
    """
    check_values(BuildSearch, threads=threads)
    if kinds is not None and (isinstance(kinds, str) or not all(isinstance(kind, str) for kind in kinds)):
        raise ConfigError(f"kinds is {kinds!r}, but lists kinds of features, as in ['cls', 'color'].")
    stored, _ = opened(index)
    wanted = stored.kinds if kinds is None else tuple(kinds)
    for kind in wanted:
        stored.number(kind)
    found: list[tuple[ListsRecord, bool]] = []
    total = stored.rows * len(wanted)
    with using_threads(threads), watched(counting(progress, ROWS)), stage(ROWS, total) as advance:
        for number, kind in enumerate(wanted):
            before = number * stored.rows
            found.append(build_lists(stored, kind, progress=lambda rows, before=before: advance(before + rows)))  # type: ignore[misc]
            advance(before + stored.rows)
    return found


def search_advice(index: str | Path, kind: str) -> str:
    """What to type so that search by a kind is faster; nothing if it is fast enough."""
    return advice(opened(index)[0], kind)
