"""The card of a saved adapter: what it is, what it needs, how to use it. Same adapter, same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MARK = "---\nlibrary_name: dear-vlm\n"


def is_card(content: bytes) -> bool:
    """Whether a README was written by `card`, and may so be replaced by another one."""
    return content.startswith(MARK.encode())


def card(manifest: Mapping[str, Any], facts: Mapping[str, str], trained_parameters: int) -> str:
    """Markdown for the folder's README.md."""
    backbone, classes = manifest["backbone"], manifest["classes"]
    weights = f", weights `{backbone['pretrained']}`" if backbone["pretrained"] else ""
    rows = {
        "method": manifest["method"],
        "backbone": f"`{backbone['name']}`{weights} (sha256 `{backbone['weights_sha256']}`)",
        "trained parameters": f"{trained_parameters:,}",
        **facts,
        "classes": "none set" if classes is None else _shorten(classes["names"]),
        "template": "none set" if classes is None else f"`{classes['template']}`",
    }
    settings = "\n".join(
        f"| `{name}` | {'default' if value is None else value} |" for name, value in manifest["settings"].items()
    )
    return f"""{MARK}tags: [clip, few-shot, {manifest["method"]}]
---
# A {manifest["method"]} adapter for {backbone["name"]}

| | |
|---|---|
{chr(10).join(f"| {name} | {_cell(value)} |" for name, value in rows.items())}

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


def _cell(value: str) -> str:
    """Text that cannot break a table."""
    return " ".join(value.split()).replace("|", "\\|")


def _shorten(names: list[str], most: int = 12) -> str:
    shown = ", ".join(names[:most])
    return f"{len(names)} ({shown}{', …' if len(names) > most else ''})"
