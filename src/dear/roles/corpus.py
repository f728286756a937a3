"""Text pools: the short image descriptions from which TextSpan picks the phrases of a head.

The pool for photographs is our own: word lists and templates in `assets/pools/photographs.json`. Any other pool is a
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

# The article follows the sound, which the first letter does not always tell.
_STARTS_WITH_VOWEL: Final = re.compile(r"[aeiou]|hour|heir|honest|x-", re.IGNORECASE)
_STARTS_LIKE_YOU_OR_ONE: Final = re.compile(r"u(?:ni(?![dmn])|ku|se|te|ti|-)|eu|ewe|one\b", re.IGNORECASE)


class PoolError(DearError, ValueError):
    """A text pool is missing, unreadable or too small."""


@dataclass(frozen=True)
class TextPool:
    """Phrases to describe heads with, in a fixed order; the same phrases always have the same hash."""

    name: str
    phrases: tuple[str, ...]
    duplicates_dropped: int = 0
    exemplars: Mapping[str, tuple[str, ...]] | None = None
    """What each concept means in the pool's own language; None: the twelve concepts of photographs."""

    @property
    def sha256(self) -> str:
        """Hash of the phrases, one per line, in UTF-8."""
        return sha256("\n".join(self.phrases).encode("utf-8"))


class _Group(TypedDict):
    templates: list[str]
    templates_per_word: int
    words: list[str]


def load_pool(source: str | Path) -> TextPool:
    """Read the pool "photographs" by name, or a UTF-8 file with one phrase per line.

    Blanks around a phrase, empty lines and repetitions of a phrase are dropped; the repetitions are counted.
    """
    if source == PHOTOGRAPHS:
        return photograph_pool()
    path = Path(source)
    lines = [line.strip() for line in _lines(_read(path), path)]
    for number, line in enumerate(lines, start=1):
        if len(line) > LONGEST_PHRASE:
            raise PoolError(
                f"Line {number} of {path} has {len(line)} characters, but a phrase has at most {LONGEST_PHRASE}: "
                "give one short image description per line."
            )
    filled = [line for line in lines if line]
    phrases = tuple(dict.fromkeys(filled))
    if not phrases:
        raise PoolError(f"The text pool {path} is empty: give one short image description per line.")
    if len(phrases) < FEWEST_PHRASES:
        raise PoolError(
            f"TextSpan needs at least {FEWEST_PHRASES} different phrases, but {path} has only {len(phrases)}."
        )
    return TextPool(name=path.name, phrases=phrases, duplicates_dropped=len(filled) - len(phrases))


def photograph_pool() -> TextPool:
    """The project's own pool for photographs, concept after concept."""
    phrases = [phrase for group in photograph_phrases().values() for phrase in group]
    return TextPool(name=PHOTOGRAPHS, phrases=tuple(phrases))


def photograph_phrases() -> dict[str, tuple[str, ...]]:
    """The phrases of the pool for photographs by the concept they were written for."""
    file = resources.files("dear") / "assets" / "pools" / "photographs.json"
    concepts: dict[str, list[_Group]] = json.loads(file.read_text(encoding="utf-8"))["concepts"]
    return {
        concept: tuple(phrase for group in groups for phrase in _fill(group)) for concept, groups in concepts.items()
    }


def with_article(noun: str) -> str:
    """The noun with "a" or "an" before it, as its first sound asks."""
    vowel = _STARTS_WITH_VOWEL.match(noun) and not _STARTS_LIKE_YOU_OR_ONE.match(noun)
    return f"{'an' if vowel else 'a'} {noun}"


def _fill(group: _Group) -> list[str]:
    """Put each word into its share of the templates, each word starting one template further on than the last."""
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
