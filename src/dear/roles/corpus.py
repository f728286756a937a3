"""Text pools: short image descriptions from which TextSpan selects the phrases of a head.

The pool for photographs is built from word lists and templates in `assets/pools/photographs.json`. Other pools are a
UTF-8 file with one phrase per line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final, TypedDict

from dear.errors import DearError, did_you_mean
from dear.storage.files import read_regular, sha256

PHOTOGRAPHS: Final = "photographs"
FEWEST_PHRASES: Final = 2
LONGEST_PHRASE: Final = 400

# The article depends on the sound, not only on the first letter.
_STARTS_WITH_VOWEL: Final = re.compile(r"[aeiou]|hour|heir|honest|x-", re.IGNORECASE)
_STARTS_LIKE_YOU_OR_ONE: Final = re.compile(r"u(?:ni(?![dmn])|ku|se|te|ti|-)|eu|ewe|one\b", re.IGNORECASE)


class PoolError(DearError, ValueError):
    """A text pool is missing, unreadable or too small."""


@dataclass(frozen=True)
class TextPool:
    """Phrases that describe heads, in a fixed order."""

    name: str
    phrases: tuple[str, ...]
    duplicates_dropped: int = 0
    exemplars: Mapping[str, tuple[str, ...]] | None = None
    """Example phrases per concept; None for the twelve concepts of photographs."""

    @property
    def sha256(self) -> str:
        """Hash of the phrases, one per line, in UTF-8."""
        return sha256("\n".join(self.phrases).encode("utf-8"))


class _Group(TypedDict):
    templates: list[str]
    templates_per_word: int
    words: list[str]


def load_pool(source: str | Path) -> TextPool:
    """Read the built-in pool "photographs", or a UTF-8 file with one phrase per line.

    Surrounding spaces, empty lines and duplicates are removed; the duplicates are counted.
    """
    if source == PHOTOGRAPHS:
        return photograph_pool()
    path = Path(source)
    lines = [line.strip() for line in _lines(_read(path), path)]
    for number, line in enumerate(lines, start=1):
        if len(line) > LONGEST_PHRASE:
            raise PoolError(
                f"Line {number} of {path} has {len(line)} characters, but a phrase may have at most {LONGEST_PHRASE}: "
                "give one short image description per line."
            )
    filled = [line for line in lines if line]
    phrases = tuple(dict.fromkeys(filled))
    if not phrases:
        raise PoolError(f"The text pool {path} is empty: give one short image description per line.")
    if len(phrases) < FEWEST_PHRASES:
        raise PoolError(
            f"TextSpan needs at least {FEWEST_PHRASES} different phrases, but {path} has {len(phrases)}: add some."
        )
    return TextPool(name=path.name, phrases=phrases, duplicates_dropped=len(filled) - len(phrases))


def photograph_pool() -> TextPool:
    """The built-in pool for photographs, ordered by concept."""
    phrases = [phrase for group in photograph_phrases().values() for phrase in group]
    return TextPool(name=PHOTOGRAPHS, phrases=tuple(phrases))


def photograph_phrases() -> dict[str, tuple[str, ...]]:
    """The phrases of the pool for photographs, by concept."""
    file = resources.files("dear") / "assets" / "pools" / "photographs.json"
    concepts: dict[str, list[_Group]] = json.loads(file.read_text(encoding="utf-8"))["concepts"]
    return {
        concept: tuple(phrase for group in groups for phrase in _fill(group)) for concept, groups in concepts.items()
    }


def with_article(noun: str) -> str:
    """The noun with its indefinite article."""
    vowel = _STARTS_WITH_VOWEL.match(noun) and not _STARTS_LIKE_YOU_OR_ONE.match(noun)
    return f"{'an' if vowel else 'a'} {noun}"


def _fill(group: _Group) -> list[str]:
    """Fill the templates with the words; each word starts one template after the previous word's first."""
    templates = group["templates"]
    phrases = []
    for place, word in enumerate(group["words"]):
        for turn in range(group["templates_per_word"]):
            template = templates[(place + turn) % len(templates)]
            phrase = template.replace("{a}", with_article(word)).replace("{}", word)
            phrases.append(phrase[0].upper() + phrase[1:])
    return phrases


def _read(path: Path) -> bytes:
    try:
        if path.is_file():
            return read_regular(path)
        neighbours = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    except OSError as error:
        raise PoolError(f"The text pool {path} cannot be read ({error.strerror}).") from None
    raise PoolError(
        f"There is no text pool {str(path)!r}: give the path of a text file with one phrase per line, or "
        f"{PHOTOGRAPHS!r} for the pool that comes with DeAR.{did_you_mean(path.name, [PHOTOGRAPHS, *neighbours])}"
    )


def _lines(data: bytes, path: Path) -> list[str]:
    data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        return data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise PoolError(f"Line {number} of {path} is not UTF-8 text: save the file as UTF-8.") from None
