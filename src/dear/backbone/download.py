"""Files of the hub: found in the cache, or downloaded into it, resumed after a broken connection and checked.

The cache is the hub library's own, in its documented layout, so other programs find the files. The library itself
cannot resume: it deletes what it has if a connection breaks.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from filelock import FileLock
from huggingface_hub import constants, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.file_download import repo_folder_name
from pydantic import BaseModel, Field, StringConstraints, ValidationError

from dear.backbone import hub
from dear.backbone.hub import WEIGHTS, Wanted, answer_to, check_online, endpoint, out_of_reach
from dear.errors import CacheError, DearError, HubError
from dear.progress.display import watched
from dear.progress.stages import Advance, is_unheard, remark, stage
from dear.storage.files import write_atomic

MEGABYTE = 1_000_000
CHUNK = 1 << 20
LARGEST_LIST = 16 * MEGABYTE
"""Bytes of a hub's list of files; one of a thousand files has 0.3 MB."""
TRIES = 3
"""Connections per run and file."""

Sha1 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class HubFile:
    """A file of a repository, as the hub lists it."""

    name: str
    size: int
    blob: str
    """Its name in the cache, which is its checksum: sha256 for large files, git's sha1 for small ones."""


@dataclass(frozen=True)
class Listing:
    """What the hub says about a repository."""

    repository: str
    commit: str
    license: str | None
    files: Mapping[str, HubFile]
    private: bool = False

    def first(self, names: Sequence[str]) -> HubFile | None:
        """The first of some files that exists."""
        return next((self.files[name] for name in names if name in self.files), None)


class _Large(BaseModel):
    sha256: Sha256
    size: int = Field(ge=0)


class _Sibling(BaseModel):
    rfilename: str
    size: int = Field(ge=0)
    blobId: Sha1
    lfs: _Large | None = None


class _Answer(BaseModel):
    """The parts that are read of the answer of `/api/models/REPOSITORY`."""

    sha: Sha1
    siblings: list[_Sibling]
    cardData: dict[str, Any] | None = None
    private: bool = False


def cached(wanted: Wanted) -> Path | None:
    """The file in the cache; None if it has to be downloaded."""
    for name in wanted.names:
        try:
            found = try_to_load_from_cache(wanted.repository, name, revision=wanted.revision)
        except HFValidationError:
            raise wanted.missing(
                f"{wanted.repository!r} cannot be the name of a repository: write hf-hub:ORGANISATION/REPOSITORY."
            ) from None
        if isinstance(found, str):
            return Path(found)
    return None


def listing(wanted: Wanted) -> Listing:
    """Ask the hub which files a repository has."""
    check_online(wanted)
    url = f"{constants.ENDPOINT}/api/models/{wanted.repository}/revision/{quote(wanted.revision, safe='')}?blobs=true"
    try:
        with answer_to(wanted, url) as answer:
            found = _Answer.model_validate_json(_limited(wanted, answer.iter_bytes()))
    except DearError:
        raise
    except ValidationError as error:
        raise HubError(f"{endpoint()} does not answer as a model hub does: check HF_ENDPOINT.") from error
    except Exception as error:  # without a network, the libraries raise many kinds of errors
        raise out_of_reach(wanted) from error
    files = (
        HubFile(one.rfilename, one.lfs.size if one.lfs else one.size, one.lfs.sha256 if one.lfs else one.blobId)
        for one in found.siblings
    )
    terms = (found.cardData or {}).get("license")
    named = terms if isinstance(terms, str) else None
    return Listing(wanted.repository, found.sha, named, {one.name: one for one in files}, found.private)


def _limited(wanted: Wanted, chunks: Iterable[bytes]) -> bytes:
    """A hub's list of files, if it is not far too long."""
    found = bytearray()
    for chunk in chunks:
        found += chunk
        if len(found) > LARGEST_LIST:
            raise HubError(
                f"The list of the files of {wanted.page} has more than {LARGEST_LIST // MEGABYTE} MB, far more than a "
                "model needs: check the name of the repository, and HF_ENDPOINT."
            )
    return bytes(found)


def download(wanted: Wanted, listed: Listing, *, is_last: bool = True) -> Path:
    """Download the first of the wanted files that a repository has, unless its content is in the cache.

    If more files belong to it, `is_last` is False for all, and `use_commit` is called when they are here. A cache that
    has everything is not written to.
    """
    file = listed.first(wanted.names)
    if file is None:
        raise wanted.missing(f"{wanted.page} has no {' or '.join(wanted.names)}: check the name of the repository.")
    cache, name = Path(constants.HF_HUB_CACHE), repo_folder_name(repo_id=wanted.repository, repo_type="model")
    blob = cache / name / "blobs" / file.blob
    pointer = cache / name / "snapshots" / listed.commit / file.name
    lock = cache / ".locks" / name / f"{file.blob}.lock"
    with _writing(cache):
        if not _has(pointer, file):
            for one in (blob, pointer, lock):
                one.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(lock):
                if not _has(blob, file):
                    _receive(wanted, listed, file, blob.with_name(f"{file.blob}.incomplete"))
                    blob.with_name(f"{file.blob}.incomplete").replace(blob)
                _link(pointer, blob)
    if is_last:
        use_commit(wanted, listed)
    return pointer


def use_commit(wanted: Wanted, listed: Listing) -> None:
    """Let the cache name a commit for the wanted revision, in place of an earlier one."""
    cache, name = Path(constants.HF_HUB_CACHE), repo_folder_name(repo_id=wanted.repository, repo_type="model")
    ref = cache / name / "refs" / wanted.revision
    with _writing(cache):
        if wanted.revision != listed.commit and not (ref.is_file() and ref.read_bytes() == listed.commit.encode()):
            ref.parent.mkdir(exist_ok=True)
            write_atomic(ref, listed.commit.encode())


def _has(path: Path, file: HubFile) -> bool:
    """Whether the content of a file is at a path."""
    return path.is_file() and checksum(path, file.blob) == file.blob


def checksum(path: Path, like: str) -> str:
    """The checksum of a file, of the kind of another: sha256, or git's sha1 of a blob."""
    digest = _hasher(like, path.stat().st_size)
    for chunk in _chunks(path):
        digest.update(chunk)
    return str(digest.hexdigest())


def check_cached_weights() -> dict[Path, bool]:
    """Every weights file of an OpenCLIP model in the cache, and whether its bytes have the checksum it is named by."""
    folders = sorted(Path(constants.HF_HUB_CACHE).glob("models--*/snapshots/*"))
    paths = [folder / name for folder in folders for name in WEIGHTS]
    blobs = {path.resolve(): path for path in paths if path.is_file()}  # one file can belong to several commits
    named = {blob: path for blob, path in blobs.items() if re.fullmatch("[0-9a-f]{64}", blob.name)}
    total = sum(blob.stat().st_size for blob in named) // MEGABYTE
    done, intact = 0, {}
    with stage("checking downloaded weights", total, unit="MB") as advance:
        for blob, path in named.items():
            digest = hashlib.sha256()
            for chunk in _chunks(blob):
                digest.update(chunk)
                done += len(chunk)
                advance(done // MEGABYTE)
            intact[path] = digest.hexdigest() == blob.name
    return intact


def _receive(wanted: Wanted, listed: Listing, file: HubFile, part: Path) -> None:
    """Download a file to `part`, after what is there already, and check it."""
    large = file.size >= MEGABYTE
    alone = large and is_unheard() and not constants.HF_HUB_DISABLE_PROGRESS_BARS
    with watched(True if alone else None), _Part(part, file) as received:
        total, done = round(file.size / MEGABYTE), received.size // MEGABYTE
        if large:
            here = f", of which {done} are here" if done else ""
            remark(f"downloading {wanted.what}, {total} MB{here}, from {wanted.page}")
        with stage(f"downloading {wanted.what}", total, done=done, unit="MB") as advance:
            _complete(wanted, listed, received, advance)
    if received.digest.hexdigest() != file.blob:
        part.unlink()
        raise HubError(
            f"{wanted.page} sent other bytes for {file.name} than it announced (checksum {file.blob[:12]}…), and they "
            "were deleted: run the same command again."
        )


def _complete(wanted: Wanted, listed: Listing, part: _Part, advance: Advance) -> None:
    """Receive the rest of a file, by a new connection if one breaks."""
    for left in reversed(range(TRIES)):
        try:
            return _continue(wanted, listed, part, advance)
        except _BrokenError as error:
            if left:
                hub.sleep(1)
            elif not part.size:
                raise out_of_reach(wanted) from error
            else:
                done, size = (f"{count / MEGABYTE:.0f}" for count in (part.size, part.file.size))
                raise HubError(
                    f"The download of {wanted.what} stopped at {done} of {size} MB: run the same command again, which "
                    "resumes it there."
                ) from error
    return None


class _BrokenError(HubError):
    """A connection ended before the file did."""


class _Part:
    """The beginning of a file on disk, open for more, with its checksum so far."""

    def __init__(self, path: Path, file: HubFile) -> None:
        self.file = file
        self._open = path.open("a+b")
        self.clear() if path.stat().st_size > file.size else self._read(path)

    def __enter__(self) -> _Part:
        """Leave the file open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file; what was received stays for the next run."""
        self._open.close()

    def clear(self) -> None:
        """Start from the first byte."""
        self._open.truncate(0)
        self.size, self.digest = 0, _hasher(self.file.blob, self.file.size)

    def append(self, chunk: bytes) -> None:
        """Write what comes next."""
        self._open.write(chunk)
        self._count(chunk)

    def _read(self, path: Path) -> None:
        self.size, self.digest = 0, _hasher(self.file.blob, self.file.size)
        for chunk in _chunks(path):
            self._count(chunk)

    def _count(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self.digest.update(chunk)


def _continue(wanted: Wanted, listed: Listing, part: _Part, advance: Advance) -> None:
    """Append to a part what one connection brings, and raise `_BrokenError` if the file is not complete then."""
    if part.size == part.file.size:
        return
    url = hf_hub_url(wanted.repository, part.file.name, revision=listed.commit)
    headers = {"accept-encoding": "identity"} | ({"range": f"bytes={part.size}-"} if part.size else {})
    try:
        with answer_to(wanted, url, headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as answer:
            if part.size and not answer.headers.get("content-range", "").startswith(f"bytes {part.size}-"):
                part.clear()  # the whole file comes
            for chunk in answer.iter_bytes():
                if part.size == part.file.size:
                    break  # more than the hub announced
                part.append(chunk[: part.file.size - part.size])
                advance(part.size // MEGABYTE)
    except DearError:
        raise
    except (ConnectionError, TimeoutError) as error:
        raise _BrokenError(str(error)) from error
    except OSError:  # of the disk
        raise
    except Exception as error:  # the session's library has errors of its own
        raise _BrokenError(str(error)) from error
    if part.size < part.file.size:
        raise _BrokenError("closed")


def _link(pointer: Path, blob: Path) -> None:
    """Let the name of a file point to its content; where links are not possible, the content itself goes there.

    Another process that reads the name meanwhile finds what was there before.
    """
    made = pointer.with_name(f"{pointer.name}.link")
    made.unlink(missing_ok=True)
    try:
        made.symlink_to(os.path.relpath(blob, pointer.parent))
    except OSError:
        made = blob
    made.replace(pointer)


@contextmanager
def _writing(cache: Path) -> Iterator[None]:
    """Convert an error of the disk into one sentence."""
    try:
        yield
    except DearError:
        raise
    except OSError as error:
        raise CacheError(
            f"The cache {cache} cannot be written ({error.strerror or error}): make room, or set HF_HUB_CACHE to "
            "another folder."
        ) from error


def _hasher(like: str, size: int) -> Any:
    return hashlib.sha256() if len(like) == 64 else hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
