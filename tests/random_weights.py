"""Files of random weights, for the imitation of the hub."""

from __future__ import annotations

import json
from pathlib import Path

import open_clip
import torch
from safetensors.torch import save_file


def save_weights(state, path: Path) -> None:
    """Write weights as safetensors, or pickled for any other file name."""
    save = save_file if path.suffix == ".safetensors" else torch.save  # noqa: TID251 the hub has pickled files
    save(state, path)


def random_files(clip: str, folder: Path, *, names: tuple[str, ...] = ("open_clip_model.safetensors",)):
    """Random weights of an architecture that open_clip knows, with its configuration, written once to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": open_clip.get_model_config(clip)}))
    missing = [folder / name for name in names if not (folder / name).exists()]
    if missing:
        torch.manual_seed(0)
        state = open_clip.create_model(clip).state_dict()
        for path in missing:
            save_weights(state, path)
    return {name: folder / name for name in ("open_clip_config.json", *names)}
