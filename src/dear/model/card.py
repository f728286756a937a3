"""Model card (README.md) of a saved adapter: method, backbone, settings and usage. Deterministic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from dear.backbone.clip import short_name
from dear.storage import markdown
from dear.storage.files import visible

LIBRARY = "dear-vlm"
MARK = f"---\nlibrary_name: {LIBRARY}\n"
TASK = "zero-shot-image-classification"
"""The task by which the hub lists an adapter: it takes any class names."""
FOLDER = "THIS_FOLDER"
"""Stands for the folder of the adapter in the example of its card."""
UNKNOWN = "unknown"
"""The license where the hub states none; the hub knows this word."""


ADDED = "\n<!-- dear: added after training -->\n"
"""Begins what a workflow has added to a card, which saving the adapter again leaves alone."""


def added_to(text: str) -> str:
    """What was added to a card after it was written, with its mark; "" if nothing was."""
    place = text.find(ADDED)
    return "" if place < 0 else text[place:]


def is_card(content: bytes) -> bool:
    """Whether a README was written by `card` and may therefore be replaced."""
    return content.startswith(MARK.encode())


def card(manifest: Mapping[str, Any], facts: Mapping[str, str], trained_parameters: int) -> str:
    """Markdown text of the adapter's README.md."""
    backbone, classes = manifest["backbone"], manifest["classes"]
    origin = backbone["origin"] or {}
    weights = f", weights {_code(_without_folder(backbone['pretrained']))}" if backbone["pretrained"] else ""
    rows = {
        "method": _words(manifest["method"]),
        "backbone": f"{_code(short_name(backbone['name']))}{weights} (sha256 {_code(backbone['weights_sha256'])})",
        **_base_model(origin),
        "license of the base model": _words(origin.get("license") or UNKNOWN),
        "trained parameters": f"{trained_parameters:,}",
        **{_words(name): _words(_without_folder(value)) for name, value in facts.items()},
        "classes": "none set" if classes is None else _words(_shorten(classes["names"])),
        "template": "none set" if classes is None else _code(classes["template"]),
        "saved with": ", ".join(f"{_words(name)} {_words(one)}" for name, one in manifest["versions"].items()),
    }
    values = {
        name: "default" if value is None else _without_folder(str(value))
        for name, value in manifest["settings"].items()
    }
    settings = "\n".join(f"| {_code(name)} | {_words(value)} |" for name, value in values.items())
    top = metadata(manifest).to_yaml(original_order=["library_name", "pipeline_tag", "license", "base_model"])
    return f"""---
{top}
---
# A {_words(manifest["method"])} adapter for {_words(short_name(backbone["name"]))}

| | |
|---|---|
{chr(10).join(f"| {name} | {value} |" for name, value in rows.items())}

## Use

```python
import dear

model = dear.load("{FOLDER}")  # fetches or finds the backbone, and checks that it is the right one
logits = model(images).logits     # images: a batch made with model.clip.preprocess_eval
```

## Settings

| setting | value |
|---|---|
{settings}
"""


def metadata(manifest: Mapping[str, Any]) -> ModelCardData:
    """What the hub reads of the card: library, task, license, base model and tags."""
    origin = manifest["backbone"]["origin"] or {}
    return ModelCardData(
        library_name=LIBRARY,
        pipeline_tag=TASK,
        license=origin.get("license") or UNKNOWN,
        base_model=origin.get("repository"),
        tags=["clip", "few-shot", manifest["method"]],
        base_model_relation="adapter" if origin else None,
    )


def _base_model(origin: Mapping[str, str | None]) -> dict[str, str]:
    if not origin:
        return {}
    commit = f", commit {_code(origin['commit'])}" if origin["commit"] else ""
    return {"base model": f"{_code(origin['repository'] or '')}{commit}"}


def _without_folder(text: str) -> str:
    """The last part of an absolute path, which says nothing elsewhere; any other text as it is."""
    return Path(text).name if Path(text).is_absolute() else text


def _words(text: str) -> str:
    """Escape untrusted text for a table cell: no HTML, links, code or column separators."""
    flat = markdown.plain(" ".join(text.split()))
    return "".join(f"\\{letter}" if letter in "[]`|" else letter for letter in flat)


def _code(text: str) -> str:
    """Untrusted text as code in a table cell."""
    return f"`{visible(' '.join(text.split())).replace('`', ' ').replace('|', ' ')}`"


def _shorten(names: list[str], most: int = 12) -> str:
    shown = ", ".join(names[:most])
    return f"{len(names)} ({shown}{', …' if len(names) > most else ''})"
