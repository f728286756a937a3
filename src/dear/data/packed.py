"""Images inside tar and Parquet files, named like files: `shards/000.tar/ant/1.jpg`, `photos.parquet/12/1.jpg`.

The first part of such a path is a file on disk, the rest is the name of an image in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dear.data.parquet_file import ParquetImages, list_parquet
from dear.data.tar_file import Member, list_tar, read_member
from dear.errors import DataError
from dear.storage.files import NotRegularError, is_file

TAR, PARQUET = ".tar", ".parquet"
SHARDS = (TAR, PARQUET)
OPEN = 256
"""Shards whose tables stay in memory."""
Mark = tuple[int, ...]
"""Changes when a file does: inode, size, and times of modification and of status change."""


@dataclass(frozen=True)
class Shard:
    """A tar or Parquet file: where the content of each name is."""

    path: Path
    members: Mapping[str, Member]
    """Of a tar file."""
    images: ParquetImages | None
    """Of a Parquet file."""
    rows: Mapping[str, int]

    def read(self, name: str, mark: Mark, *, most: int) -> bytes:
        """The bytes of an image."""
        if name in self.members:
            return read_member(self.path, self.members[name], most=most)
        if self.images is not None and name in self.rows:
            return self.images.read(self.rows[name], mark, most=most)
        raise FileNotFoundError(2, "No such image", str(self.path / name))

    def size(self, name: str) -> int:
        """The number of bytes of an image; 0 if only reading it says so."""
        return self.members[name].size if name in self.members else 0


def is_shard(path: Path) -> bool:
    """Whether a path is a tar or Parquet file, by its ending."""
    return path.suffix.lower() in SHARDS and is_file(path)


def open_shard(path: Path) -> Shard:
    """The table of a shard; it is read again only if the file changed."""
    try:
        return _opened(path, file_mark(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from None


@lru_cache(maxsize=OPEN)
def _opened(path: Path, mark: Mark) -> Shard:
    if path.suffix.lower() == TAR:
        return Shard(path, list_tar(path), None, {})
    images = list_parquet(path)
    return Shard(path, {}, images, {name: row for row, name in enumerate(images.names)})


def file_mark(path: Path) -> Mark:
    """What changes when a file does."""
    facts = path.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def placed(path: Path) -> tuple[Path, str] | None:
    """The shard that a path leads into, and the name of the image in it; None if it leads into none."""
    text = path.as_posix().lower()
    if not any(f"{ending}/" in text for ending in SHARDS):
        return None
    for parent in path.parents:
        if is_shard(parent):
            return parent, path.relative_to(parent).as_posix()
    return None


def is_packed(path: str | Path) -> bool:
    """Whether there is such an image in a tar or Parquet file; False for text that cannot be a path."""
    if "\0" in str(path) or (found := placed(Path(path))) is None:
        return False
    shard = open_shard(found[0])
    return found[1] in shard.members or found[1] in shard.rows


def packed_bytes(path: Path, *, most: int) -> bytes | None:
    """The bytes of an image in a shard; None if the path leads into none."""
    found = placed(path)
    if found is None:
        return None
    try:
        return open_shard(found[0]).read(found[1], file_mark(found[0]), most=most)
    except DataError as error:
        raise NotRegularError(0, str(error).rstrip("."), str(path)) from None


def image_mark(path: Path) -> Mark:
    """What changes when an image does: a file, or the shard that contains it."""
    found = placed(path)
    return file_mark(path if found is None else found[0])


def image_facts(path: Path) -> tuple[int, int]:
    """Size (0 if unknown) and time of modification of an image: a file, or one in a shard."""
    found = placed(path)
    if found is None:
        facts = path.stat()
        return facts.st_size, facts.st_mtime_ns
    return open_shard(found[0]).size(found[1]), found[0].stat().st_mtime_ns
