"""Versioned JSON files: one class per format, read, checked and written in one way.

A document is a JSON object with a `format`, a `format_version` and entries. A sealed one also has a hash of all that as
`sha256`. Whatever is wrong with a file becomes one sentence, raised as the error class of the document.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from dear.config import problems
from dear.errors import DearError
from dear.storage.files import LARGEST_TEXT, NotRegularError, read_regular, sha256, write_atomic

FORMAT, VERSION, SEAL = "format", "format_version", "sha256"


class Record(BaseModel):
    """Strict, immutable values inside a document; unknown entries are refused.

    Unlike `Settings`, it leaves pydantic's error alone, so that a document reports the problems of all its records at
    once and with their place.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class OpenRecord(Record):
    """A record that may have further entries, which are read and written unchanged."""

    model_config = ConfigDict(extra="allow")


class Document(Record):
    """Base class of a versioned JSON file: a subclass declares its format and its entries."""

    format: ClassVar[str]
    version: ClassVar[int]
    """The version that is written."""
    oldest: ClassVar[int | None] = None
    """The oldest version that is read; by default the version that is written."""
    noun: ClassVar[str]
    """What the file is, for messages: "role map"."""
    sealed: ClassVar[bool] = False
    """Whether a hash of the content is stored in it and checked."""
    error: ClassVar[type[DearError]]
    foreign: ClassVar[type[DearError] | None] = None
    """Raised for a file of another format; by default `error`."""
    newer: ClassVar[type[DearError] | None] = None
    """Raised for a file of a later version; by default `error`."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a file; a missing one is left to the caller as `OSError`."""
        return cls.from_json(read_bytes(path, error=cls.error), where=str(path))

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str | None = None) -> Self:
        """Parse and check a document; all problems are reported at once. `where` names its source in messages."""
        where = where or f"the {cls.noun}"
        entries = cls.entries(text, where=where)
        try:
            return cls.model_validate(entries)
        except ValidationError as problem:
            raise cls.invalid(where, problem) from None

    @classmethod
    def entries(cls, text: str | bytes, *, where: str) -> dict[str, Any]:
        """The entries of a document as plain values, if format, version and seal are right."""
        what = _with_article(cls.noun)
        content = parse(text, where=where, what=what, error=cls.error)
        foreign = cls.foreign or cls.error
        if not isinstance(content, dict) or content.get(FORMAT) != cls.format:
            raise foreign(f"{where} is not {what}: its 'format' is not {cls.format!r}.")
        version = content.get(VERSION)
        if type(version) is not int or version < 1:
            raise foreign(f"{where} is not {what}: its 'format_version' is not a number.")
        if version > cls.version:
            newer = cls.newer or cls.error
            raise newer(f"{where} has format {version}, this version reads up to {cls.version}: upgrade dear-vlm.")
        if version < (cls.oldest or cls.version):
            raise cls.error(f"{where} has format {version}, which is older than version 0.2 and no longer read.")
        if cls.sealed and content.get(SEAL) != cls.seal(content):
            raise cls.invalid(where, None)
        return {name: value for name, value in content.items() if name not in (FORMAT, VERSION, SEAL)}

    @classmethod
    def invalid(cls, where: str, problem: ValidationError | None) -> DearError:
        """The error for entries of the wrong type, or (None) for a seal that does not fit the content."""
        reasons = problems(problem) if problem else ["It was changed since it was written."]
        return cls.error(f"{where} is not a valid {cls.noun}. {' '.join(reasons)}")

    @classmethod
    def seal(cls, content: Mapping[str, Any]) -> str:
        """The hash that a sealed document carries."""
        return seal(content)

    @classmethod
    def encode(cls, entries: Mapping[str, Any]) -> str:
        """JSON text of a document with these entries; the same entries always give the same text."""
        content = {FORMAT: cls.format, VERSION: cls.version, **entries}
        return to_json({**content, SEAL: cls.seal(content)} if cls.sealed else content)

    def to_json(self) -> str:
        """JSON text; the same document always gives the same text."""
        return type(self).encode(self.model_dump(mode="json"))

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_atomic(path, as_bytes(self.to_json()))


def to_json(content: Mapping[str, Any]) -> str:
    """JSON text as in all our files: one entry per line, the characters themselves, no NaN."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_bytes(text: str) -> bytes:
    """JSON text as it is stored; names of files need not be UTF-8."""
    return text.encode("utf-8", "surrogatepass")


def seal(content: Mapping[str, Any]) -> str:
    """Hash of the content whatever the order of its keys; an old seal in it does not count."""
    bare = {name: value for name, value in content.items() if name != SEAL}
    return sha256(json.dumps(bare, sort_keys=True).encode())


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with its seal."""
    return {**content, SEAL: seal(content)}


def parse(text: str | bytes, *, where: str, what: str, error: type[DearError]) -> Any:
    """JSON as plain values; duplicate keys and numbers that JSON does not know are refused."""
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_number)
    except (ValueError, TypeError, RecursionError) as problem:
        raise error(f"{where} is not {what}: it is not valid JSON ({_short(problem)}).") from None


def read_bytes(path: Path, *, error: type[DearError], most: int = LARGEST_TEXT) -> bytes:
    """The bytes of a regular file of at most `most` bytes; a missing file is left to the caller as `OSError`."""
    try:
        return read_regular(path, most=most)
    except NotRegularError as problem:
        raise error(f"{path} cannot be read: {problem.strerror}.") from None


def read_text(path: Path, *, error: type[DearError]) -> str:
    """The text of a regular file in UTF-8."""
    try:
        return read_bytes(path, error=error).decode("utf-8")
    except UnicodeDecodeError:
        raise error(f"{path} is not a text file in UTF-8.") from None


def _with_article(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r} occurs twice")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _short(problem: BaseException) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0][:120]
