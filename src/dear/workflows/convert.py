"""Convert the weights of a CLIP to a folder with a safetensors file, which can be used without `allow_pickled`."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

from safetensors.torch import save_file

from dear.backbone.clip import FrozenClip
from dear.backbone.foreign_inputs import TOKENIZER, FileTokenizer
from dear.backbone.hub import WHOLE
from dear.backbone.load import config_of, load_clip
from dear.backbone.tokenizer import MERGES_FILE
from dear.errors import BackboneError, DearError, DearWarning, OverwriteError, option
from dear.storage.files import as_folder, is_file, is_folder, whole_folder

CONFIG_FILE, WEIGHTS_FILE = WHOLE


def convert(source: str | Path, out: str | Path, *, clip: str | None = None) -> Path:
    """Write the weights of a CLIP to a folder that `load_clip("local-dir:OUT")` reads; returns the folder.

    A pickled file can contain code; only its tensors are read, and a warning says so.

    Args:
        source: "hf-hub:ORG/REPO", a folder with a configuration and weights, or a file of weights.
        out: folder to write, which must be new or empty.
        clip: the OpenCLIP name of the architecture, for a file of weights.
    """
    folder = as_folder(out)
    _check_folder(folder)
    name, weights = _backbone_of(str(source), clip)
    config = config_of(name)
    if config["text_cfg"].get("hf_tokenizer_name"):
        raise BackboneError(f"{name} cannot be converted: its tokenizer is a model of the hub, not part of a folder.")
    loaded = load_clip(name, weights, allow_pickled=True)
    if isinstance(loaded.tokenizer, FileTokenizer):
        raise BackboneError(f"{name} cannot be converted: its tokenizer is in {TOKENIZER}, which OpenCLIP cannot read.")
    if loaded.pickled:
        warnings.warn(
            f"{source} is pickled, a format that can contain code: only its tensors were read. Use the result only if "
            f"you trust where it comes from.",
            DearWarning,
            stacklevel=2,
        )
    content = {"model_cfg": config, "preprocess_cfg": loaded.model.visual.preprocess_cfg}
    merges = Path(name.removeprefix("local-dir:")) / MERGES_FILE if name.startswith("local-dir:") else None
    try:
        _write(folder, loaded, json.dumps(content, indent=1), merges if merges and merges.is_file() else None)
    except OSError as error:
        if isinstance(error, DearError):
            raise
        raise OverwriteError(f"{folder} cannot be written ({error.strerror or error}).") from error
    return folder


def _backbone_of(source: str, clip: str | None) -> tuple[str, str | None]:
    """Name and weights of a source as `load_clip` takes them."""
    if is_file(source):
        if clip is None:
            example = option(clip="ViT-B-16")
            raise BackboneError(f"{source} does not say which CLIP its weights belong to: name it, as in {example}.")
        return clip, source
    if clip is not None:
        raise BackboneError(f"{source} names its own architecture: leave {option(clip=clip)} out.")
    if is_folder(source):
        return f"local-dir:{source}", None
    if not source.startswith(("hf-hub:", "local-dir:")):
        raise BackboneError(f"There is no file or folder {source!r}: give one, or hf-hub:ORG/REPO.")
    return source, None


def _check_folder(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OverwriteError(f"{folder} already exists and is not empty: choose another folder.")


def _write(folder: Path, clip: FrozenClip, config: str, merges: Path | None) -> None:
    """Write the folder, whole or not at all; what was written is loaded once to compare the weights."""
    with whole_folder(folder) as draft:
        (draft / CONFIG_FILE).write_text(config)
        if merges is not None:
            shutil.copyfile(merges, draft / MERGES_FILE)
        tensors = {name: tensor.contiguous() for name, tensor in clip.model.state_dict().items()}
        save_file(tensors, draft / WEIGHTS_FILE, metadata={"format": "pt"})
        if load_clip(f"local-dir:{draft}").weights_sha256 != clip.weights_sha256:
            raise BackboneError(f"{clip.name} was not converted: the written weights differ from those that were read.")
        _check_folder(folder)
