"""Runs to publish on the imitated hub, and what is there afterwards."""

from pathlib import Path

import pytest
import torch

import dear
from helpers import build, move_parameters, plain_images, rewrite

OPENAI = "timm/vit_base_patch16_clip_224.openai"
MANIFEST, TENSORS, CARD = "adapter_config.json", "adapter_model.safetensors", "README.md"
PETS = "ann/pets"


def make_run(folder: Path, method: str = "coop", seed: int = 0, **config) -> Path:
    model = build(method, dear.load_clip("ViT-B-16-quickgelu", "openai"), ["cat", "dog", "ant"], **config)
    move_parameters(model, seed)
    model.save_pretrained(folder, overwrite=True)
    for name in ("shots.json", "run.json", "metrics.jsonl", "config.yaml", "report.html", "notes.txt"):
        (folder / name).write_text('{"photos": "/home/ann/photos"}')
    return folder


def published(hub, repository=PETS) -> dict[str, bytes]:
    return {name: one.content for name, one in hub.repositories[repository].files.items() if name != ".gitattributes"}


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(plain_images(model.clip, 4)).logits


def refused(error, call, *arguments, **options) -> str:
    """The sentence of an error."""
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def replace_files(hub, **changes):
    """Let a stranger replace files of the repository."""
    files = {**published(hub), **changes}
    hub.add(PETS, {name: data for name, data in files.items() if data is not None})


def new_manifest(hub, tmp_path, **changes) -> bytes:
    """The manifest with changes and a right seal."""
    path = tmp_path / "manifest.json"
    path.write_bytes(published(hub)[MANIFEST])
    rewrite(path, **changes)
    return path.read_bytes()
