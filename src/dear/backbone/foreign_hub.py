"""Repositories of the hub in transformers' format: only the files that are read are downloaded.

Files that a repository does not have are marked in the cache, as the hub library does, so that the next run needs no
request.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from dear.backbone.download import Listing, cached, download, listing
from dear.backbone.foreign import CONFIG, check_foreign
from dear.backbone.foreign_inputs import IMAGES, INPUT_FILES, PROCESSOR, TOKENIZER
from dear.backbone.hub import CONFIG_FILE, Wanted
from dear.backbone.names import IN_TRANSFORMERS_FORMAT
from dear.backbone.origin import PAGE
from dear.backbone.tensors import INDEX, WEIGHTS, no_weights, shards_of
from dear.errors import BackboneError, HubError, backbone
from dear.storage.files import is_file

ALL_FILES = (CONFIG_FILE, CONFIG, *INPUT_FILES, WEIGHTS, INDEX)
BY_HAND = (CONFIG, IMAGES, TOKENIZER, WEIGHTS)


def repository_folder(name: str) -> Path:
    """The folder of a repository in the cache: with open_clip's configuration, or with all files of transformers'."""
    wanted = Wanted(name, name.removeprefix("hf-hub:"), (CONFIG_FILE,))
    if own := cached(wanted):
        return own.parent
    theirs = cached(replace(wanted, names=(CONFIG,)))
    if theirs and _is_complete(wanted, theirs.parent):
        return theirs.parent
    try:
        listed = listing(wanted)
    except HubError:
        if theirs and _is_usable(theirs.parent):
            return theirs.parent
        raise
    if CONFIG_FILE in listed.files or CONFIG not in listed.files:
        return download(replace(wanted, names=(CONFIG_FILE, CONFIG)), listed).parent
    return _download_foreign(replace(wanted, by_hand=BY_HAND), listed)


def _download_foreign(wanted: Wanted, listed: Listing) -> Path:
    """Download what is read of a repository in transformers' format, weights last."""
    folder = download(replace(wanted, names=(CONFIG,)), listed).parent
    check_foreign(wanted.what, folder)
    if WEIGHTS not in listed.files and INDEX not in listed.files:
        if same := IN_TRANSFORMERS_FORMAT.get(wanted.repository.lower()):
            raise BackboneError(
                f"{wanted.page} has no {WEIGHTS}, and other formats can contain code: {backbone(*same)} loads the same "
                "weights."
            )
        raise BackboneError(no_weights(wanted.page, sorted(listed.files)))
    for name in (PAGE, *INPUT_FILES):
        if name in listed.files:
            download(replace(wanted, names=(name,)), listed)
    for name in _weights(listed, folder):
        download(replace(wanted, names=(name,)), listed)
    for name in (one for one in ALL_FILES if one not in listed.files):
        marker = folder.parent.parent / ".no_exist" / listed.commit / name
        with suppress(OSError):
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
    return folder


def _weights(listed: Listing, folder: Path) -> Iterator[str]:
    """The files of the weights; the index comes first and is read before the others."""
    if WEIGHTS in listed.files:
        yield WEIGHTS
        return
    yield INDEX
    yield from sorted(set(shards_of(folder).values()))


def _is_complete(wanted: Wanted, folder: Path) -> bool:
    """Whether all files of a repository are in the cache, or known not to exist."""
    small = (CONFIG_FILE, *INPUT_FILES)
    return _has_weights(folder) and all(try_to_load_from_cache(wanted.repository, name) is not None for name in small)


def _is_usable(folder: Path) -> bool:
    """Whether a folder that transformers has downloaded can be used without asking the hub for more."""
    return _has_weights(folder) and any(is_file(folder / name) for name in (IMAGES, PROCESSOR))


def _has_weights(folder: Path) -> bool:
    if is_file(folder / WEIGHTS):
        return True
    return is_file(folder / INDEX) and all(is_file(folder / one) for one in set(shards_of(folder).values()))
