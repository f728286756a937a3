"""Every versioned JSON document that we write: made, sealed with a hash, read and checked in one way.

A document is an object with a `format`, a `format_version` and content; a sealed one carries a hash of all that as
`sha256`. Whatever is wrong with a file becomes one sentence of the caller's kind of error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from dear.config import problems
from dear.errors import DearError
from dear.storage.files import LARGEST_TEXT, NotRegularError, read_regular, sha256

SEAL = "sha256"


class Form(BaseModel):
    """The entries of a document that we read, with their types; further ones are left alone."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)


F = TypeVar("F", bound=Form)


def to_json(content: Mapping[str, Any]) -> bytes:
    """A document as bytes: the same content always gives the same ones."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "surrogatepass")  # names of files need not be UTF-8; the reader passes them as well


def seal(content: Mapping[str, Any]) -> str:
    """Hash of a document's content, whatever the order of its keys; an old seal in it does not count."""
    bare = {name: value for name, value in content.items() if name != SEAL}
    return sha256(json.dumps(bare, sort_keys=True).encode())


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its seal."""
    return {**content, SEAL: seal(content)}


def parse(text: str | bytes, *, where: str, what: str, error: type[DearError]) -> Any:
    """JSON as plain values; keys that stand twice are refused."""
    try:
        return json.loads(text, object_pairs_hook=_no_key_twice, parse_constant=_no_number)
    except (ValueError, TypeError, RecursionError) as problem:
        raise error(f"{where} is not {what}: it is not valid JSON ({_short(problem)}).") from None


def check(
    content: Any,
    *,
    where: str,
    what: str,
    form: str,
    newest: int,
    error: type[DearError],
    newer: type[DearError] | None = None,
) -> tuple[dict[str, Any], int]:
    """The document and its version, if it is an object of the right format that this version can read."""
    if not isinstance(content, dict) or content.get("format") != form:
        raise error(f"{where} is not {what}: its 'format' is not {form!r}.")
    version = content.get("format_version")
    if type(version) is not int or version < 1:
        raise error(f"{where} is not {what}: its 'format_version' is not a number.")
    if version > newest:
        raise (newer or error)(f"{where} has format {version}, this version reads up to {newest}: upgrade dear-vlm.")
    return content, version


def fitting(content: Any, form: type[F], *, where: str, what: str, error: type[DearError]) -> F:
    """The document as values of the types that its form says."""
    try:
        return form.model_validate(content)
    except ValidationError as problem:
        raise error(f"{where} is not {what}. {' '.join(problems(problem))}") from None


def read(path: Path, *, what: str, form: str, newest: int, error: type[DearError]) -> tuple[dict[str, Any], int]:
    """Read, parse and check a document; a missing file is left to the caller as `OSError`."""
    content = parse(read_bytes(path, error=error), where=str(path), what=what, error=error)
    return check(content, where=str(path), what=what, form=form, newest=newest, error=error)


def read_bytes(path: Path, *, error: type[DearError], most: int = LARGEST_TEXT) -> bytes:
    """The bytes of a regular file of sensible size; what is no such file is refused, a missing one is `OSError`."""
    try:
        return read_regular(path, most=most)
    except NotRegularError as problem:
        raise error(f"{path} cannot be read: {problem.strerror}.") from None


def read_text(path: Path, *, error: type[DearError]) -> str:
    """The same as text in UTF-8."""
    try:
        return read_bytes(path, error=error).decode("utf-8")
    except UnicodeDecodeError:
        raise error(f"{path} is not a text file in UTF-8.") from None


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r} stands twice")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _short(problem: BaseException) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0][:120]
