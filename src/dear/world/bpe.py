"""Train the byte-pair encoding of the world's tokenizer, in the file format of open_clip."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

HEADER = "#version: dear world 1"
_WORD = re.compile(r"[a-z]+|[0-9]|[^\sa-z0-9]+")


def train_merges(texts: Iterable[str], count: int) -> list[tuple[str, str]]:
    """Return up to `count` merges, most frequent pair first, ties in alphabetical order."""
    frequency = Counter(word for text in texts for word in _WORD.findall(text.lower()))
    split = {word: (*word[:-1], word[-1] + "</w>") for word in frequency}
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in split.items():
            for pair in pairwise(parts):
                pairs[pair] += frequency[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        split = {word: _merge(parts, best) for word, parts in split.items()}
    return merges


def _merge(parts: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for part in parts:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return tuple(out)


def write_merges(merges: Iterable[tuple[str, str]], path: Path) -> None:
    """Write merges as the gzipped text that open_clip's tokenizer reads (the same bytes every time)."""
    text = "\n".join([HEADER, *(f"{a} {b}" for a, b in merges)])
    with path.open("wb") as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
        packed.write(text.encode())


def vocabulary_size(merges: int) -> int:
    """Return the tokenizer's vocabulary size: bytes, bytes that end a word, merges, start and end."""
    return 512 + merges + 2
