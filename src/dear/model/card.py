"""Model card (README.md) of a saved adapter: method, backbone, settings and usage. Deterministic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dear.backbone.clip import short_name
from dear.storage import markdown

MARK = "---\nlibrary_name: dear-vlm\n"


def is_card(content: bytes) -> bool:
    """Whether a README was written by `card` and may therefore be replaced."""
    return content.startswith(MARK.encode())


def card(manifest: Mapping[str, Any], facts: Mapping[str, str], trained_parameters: int) -> str:
    """Markdown text of the adapter's README.md."""
    backbone, classes = manifest["backbone"], manifest["classes"]
    weights = f", weights {_code(backbone['pretrained'])}" if backbone["pretrained"] else ""
    rows = {
        "method": _words(manifest["method"]),
        "backbone": f"{_code(short_name(backbone['name']))}{weights} (sha256 {_code(backbone['weights_sha256'])})",
        "trained parameters": f"{trained_parameters:,}",
        **{_words(name): _words(value) for name, value in facts.items()},
        "classes": "none set" if classes is None else _words(_shorten(classes["names"])),
        "template": "none set" if classes is None else _code(classes["template"]),
    }
    values = {name: "default" if value is None else str(value) for name, value in manifest["settings"].items()}
    settings = "\n".join(f"| {_code(name)} | {_words(value)} |" for name, value in values.items())
    return f"""{MARK}tags: [clip, few-shot, {manifest["method"]}]
---
# A {_words(manifest["method"])} adapter for {_words(short_name(backbone["name"]))}

| | |
|---|---|
{chr(10).join(f"| {name} | {value} |" for name, value in rows.items())}

## Use

```python
import dear

model = dear.load("THIS_FOLDER")  # fetches or finds the backbone, and checks that it is the right one
logits = model(images).logits     # images: a batch made with model.clip.preprocess_eval
```

## Settings

| setting | value |
|---|---|
{settings}
"""


def _words(text: str) -> str:
    """Escape untrusted text for a table cell: no HTML, links, code or column separators."""
    flat = markdown.plain(" ".join(text.split()))
    return "".join(f"\\{letter}" if letter in "[]`|" else letter for letter in flat)


def _code(text: str) -> str:
    """Untrusted text as code in a table cell."""
    return f"`{' '.join(text.split()).replace('`', ' ').replace('|', ' ')}`"


def _shorten(names: list[str], most: int = 12) -> str:
    shown = ", ".join(names[:most])
    return f"{len(names)} ({shown}{', …' if len(names) > most else ''})"
