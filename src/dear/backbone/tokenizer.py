"""The tokenizer of a CLIP of open_clip, by the configuration that was checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import open_clip
from open_clip.tokenizer import DEFAULT_CONTEXT_LENGTH, HFTokenizer
from torch import Tensor

from dear.backbone.guarded import one_sentence, quiet, without_code
from dear.backbone.safety import check_merges
from dear.errors import BackboneError

MERGES_FILE = "bpe_merges.txt.gz"


def read_tokenizer(
    source: str, folder: Path | None, text_cfg: Mapping[str, Any], vocab_size: int
) -> Callable[..., Tensor]:
    """The tokenizer that belongs to the weights; a folder may contain its own merges (`bpe_merges.txt.gz`).

    Args:
        source: the name of the CLIP for open_clip.
        folder: its configuration, in the hub's cache for a repository; None for a name of open_clip.
        text_cfg: the checked configuration of the text tower.
        vocab_size: number of tokens of the text tower.
    """
    with quiet(), one_sentence(source, what="tokenizer"):
        if text_cfg.get("hf_tokenizer_name"):
            return _of_transformers(source, folder, text_cfg)
        tokenizer = _own(source, folder)
    if getattr(tokenizer, "vocab_size", 0) > vocab_size:
        raise BackboneError(
            f"{source} has {vocab_size} tokens, but its tokenizer produces more: add its own {MERGES_FILE}."
        )
    return tokenizer


def _of_transformers(source: str, folder: Path | None, text_cfg: Mapping[str, Any]) -> Callable[..., Tensor]:
    """A tokenizer of transformers as open_clip makes it, without code of its own; that of a local folder is in it."""
    with without_code(source):
        tokenizer: Callable[..., Tensor] = HFTokenizer(
            str(folder) if source.startswith("local-dir:") else text_cfg["hf_tokenizer_name"],
            context_length=text_cfg.get("context_length", DEFAULT_CONTEXT_LENGTH),
            tokenizer_mode=text_cfg.get("tokenizer_mode"),
            **{**(text_cfg.get("tokenizer_kwargs") or {}), "trust_remote_code": False},
        )
    return tokenizer


def _own(source: str, folder: Path | None) -> Callable[..., Tensor]:
    """A tokenizer of open_clip."""
    own = {}
    if folder and source.startswith("local-dir:") and (folder / MERGES_FILE).is_file():
        check_merges(folder / MERGES_FILE)
        own = {"bpe_path": str(folder / MERGES_FILE)}
    tokenizer: Callable[..., Tensor] = open_clip.get_tokenizer(f"local-dir:{folder}" if folder else source, **own)
    return tokenizer
