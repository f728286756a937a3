"""Counts the scans of a JPEG file without decoding it: each of them takes as long as the whole image."""

from __future__ import annotations

import re

JPEG, SCAN, MOST_SCANS = b"\xff\xd8", b"\xff\xda", 100
"""How a JPEG file and each of its scans begin, and the most scans that are decoded; cameras write one, editors ten."""
END, MOST_SEGMENTS = b"\xff\xd9", 100_000
"""How the first image of a JPEG file ends, and the most parts of it that are looked at."""
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
"""How a part of a JPEG file begins; not what fills, continues or restarts one."""


def has_too_many_scans(data: bytes) -> bool:
    """Whether some bytes are a JPEG file with far more scans than cameras and editors write."""
    return data.startswith(JPEG) and data.count(SCAN) > MOST_SCANS and _scans(data) > MOST_SCANS


def _scans(data: bytes) -> int:
    """Scans of the first image of a JPEG file; what follows it, such as the film of a motion photo, does not count."""
    count, at = 0, 2
    for _ in range(MOST_SEGMENTS):
        found = _MARKER.search(data, at)
        if found is None or found[0] == END:
            return count
        size = int.from_bytes(data[found.end() : found.end() + 2], "big")
        count += found[0] == SCAN
        if size < 2 or count > MOST_SCANS:
            return count
        at = found.end() + size
    return MOST_SCANS + 1
