"""Where weights come from: a repository of the hub, its commit and its license, read from the hub's cache."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from dear.storage.files import read_regular
from dear.storage.yaml_text import parse_yaml

PAGE = "README.md"
"""The page of a repository; its first lines state the license."""
PICKLED = "open_clip_pytorch_model.bin"
"""The file that open_clip reads if a repository has no safetensors file."""


@dataclass(frozen=True)
class Origin:
    """The hub repository of some weights."""

    repository: str
    commit: str | None = None
    license: str | None = None
    """The license as the repository states it, such as "mit"; None if it states none."""


def origin_of(repository: str, weights: str) -> Origin:
    """The origin of weights in the hub's cache, by the name of their file; nothing is requested."""
    names = [f"{Path(weights).stem}.safetensors", weights, PICKLED]
    cached = next((path for name in names if (path := _cached(repository, name))), None)
    if cached is None:
        return Origin(repository)
    return Origin(repository, cached.parent.name, _license(cached.parent / PAGE))


def _cached(repository: str, name: str) -> Path | None:
    found = try_to_load_from_cache(repository, name)
    return Path(found) if isinstance(found, str) else None


def _license(page: Path) -> str | None:
    """The license in the metadata of a repository's page; the page is untrusted text."""
    with suppress(OSError, ValueError):
        found = re.match(r"---\r?\n(.*?)\r?\n---", read_regular(page).decode(), re.DOTALL)
        content = parse_yaml(found[1])[0] if found else None
        stated = content.get("license") if isinstance(content, dict) else None
        if isinstance(stated, str) and re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,63}", stated):
            return stated
    return None
