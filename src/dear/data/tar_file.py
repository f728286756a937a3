"""Find the members of a tar file without extracting anything: each is read at its place when it is needed.

Regular members are listed, and hard links to them. Names are keys, never paths: none is opened or created on disk.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from dear.errors import DataError
from dear.storage.files import MEGABYTE, NotRegularError, open_regular, shown

LARGEST_HEADER = MEGABYTE
"""Most bytes that tarfile may read at once: headers only, never the content of a member."""
BLOCK = tarfile.BLOCKSIZE


class Member(NamedTuple):
    """Where the bytes of a member are."""

    start: int
    size: int


def list_tar(path: Path) -> dict[str, Member]:
    """The regular members of an uncompressed tar file by name; of several with one name, the last counts, as for tar.

    Names are relative paths without "..". A hard link has the bytes of the member before it that it names, if any.
    """
    found: dict[str, Member] = {}
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            with tarfile.open(fileobj=_Headers(file), mode="r:") as tar:
                at = -1
                while (member := tar.next()) is not None:
                    tar.members = []  # type: ignore[attr-defined]  # tarfile would store them all
                    if tar.offset <= at or member.size < 0:
                        raise tarfile.ReadError("a header leads back")
                    at = tar.offset
                    name, place = harmless(member.name), None
                    if member.isreg() and not member.issparse():
                        place = Member(member.offset_data, member.size)
                    elif member.islnk():
                        place = found.get(harmless(member.linkname))  # looked up in the table, never opened as a path
                    if place is not None:
                        found.pop(name, None)
                        found[name] = place
            rest = os.pread(file.fileno(), BLOCK, tar.offset)
    except OSError as error:
        raise DataError(f"{shown(path)} cannot be read ({error.strerror or error}).") from None
    except (tarfile.TarError, ValueError, EOFError, RecursionError, OverflowError):
        raise _damaged(path) from None
    if rest.strip(b"\0") or any(one.start < 0 or one.start + one.size > size for one in found.values()):
        raise _damaged(path)
    return found


def read_member(path: Path, member: Member, *, most: int) -> bytes:
    """The bytes of a member of at most `most` bytes."""
    if member.size > most:
        raise NotRegularError(0, f"it has {member.size:,} bytes, more than the {most:,} that fit", str(path))
    with open_regular(path) as file:
        file.seek(member.start)
        data = file.read(member.size)
    if len(data) < member.size:
        raise NotRegularError(0, "its tar file is shorter than its table says", str(path))
    return data


def harmless(name: str) -> str:
    """A name as a relative path that stays below its folder and can be printed in a list."""
    parts = [part for part in name.replace("\\", "/").replace("\0", "").split("/") if part not in ("", ".")]
    return "/".join("__" if part == ".." else part for part in parts) or "__"


class _Headers:
    """A file of which only headers can be read, so that no header can fill the memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, count: int = -1) -> bytes:
        """At most a header's bytes."""
        if not 0 <= count <= LARGEST_HEADER:
            raise tarfile.ReadError("a header is far too large")
        return self._file.read(count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _damaged(path: Path) -> DataError:
    return DataError(
        f"{shown(path)} is not a whole, uncompressed tar file: download it again, or unpack a .tar.gz to .tar first."
    )
