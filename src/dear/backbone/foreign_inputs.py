"""Tokenizer and preprocessing of a folder in transformers' format, read from its JSON files; no code of it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from open_clip.constants import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
from open_clip.tokenizer import SimpleTokenizer, get_clean_fn
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch import Tensor

from dear.backbone.tensors import first_line
from dear.config import problems
from dear.errors import BackboneError, MissingExtraError
from dear.storage import documents
from dear.storage.files import is_file

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
IMAGES, PROCESSOR = "preprocessor_config.json", "processor_config.json"
VOCABULARY, MERGES = "vocab.json", "merges.txt"
INPUT_FILES = (IMAGES, PROCESSOR, TOKENIZER_CONFIG, TOKENIZER, VOCABULARY, MERGES)
"""All files that are read besides configuration and weights; none has to exist."""
CLIP_WORDS = 49408
"""Size of the vocabulary of CLIP's own tokenizer."""
INTERPOLATIONS = {2: "bilinear", 3: "bicubic"}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a stranger."""
    try:
        text = documents.read_bytes(path, error=BackboneError)
    except OSError as error:
        raise BackboneError(f"{path} cannot be read: {error.strerror}.") from None
    content = documents.parse(text, where=str(path), what="a configuration", error=BackboneError)
    if not isinstance(content, dict):
        raise BackboneError(f"{path} is not a configuration: it must be a JSON object.")
    return content


class _Images(BaseModel):
    """An image processor of transformers, as far as it can be reproduced."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)
    do_resize: Literal[True] = True
    do_rescale: Literal[True] = True
    do_normalize: bool = True
    do_center_crop: bool = True
    size: dict[str, int] | None = None
    crop_size: dict[str, int] | None = None
    resample: Literal[2, 3] = 3
    rescale_factor: float = Field(1 / 255, gt=0.0039, lt=0.00393)
    image_mean: list[float] = Field(list(OPENAI_DATASET_MEAN), min_length=3, max_length=3)
    image_std: list[float] = Field(list(OPENAI_DATASET_STD), min_length=3, max_length=3)

    @field_validator("size", "crop_size", mode="before")
    @classmethod
    def _one_number(cls, value: Any) -> Any:
        return {"shortest_edge": value} if type(value) is int else value

    @field_validator("image_std")
    @classmethod
    def _positive(cls, value: list[float]) -> list[float]:
        if min(value) <= 0:
            raise ValueError("must be positive")
        return value


def preprocessing(folder: Path, image_size: int, *, squash: bool) -> dict[str, Any]:
    """The `preprocess_cfg` of open_clip; `squash` is whether the family does not crop if there is no file."""
    usual = {"do_center_crop": False, "image_mean": [0.5] * 3, "image_std": [0.5] * 3} if squash else {}
    path, values = _image_settings(folder)
    try:
        images = _Images.model_validate(usual | {name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        raise BackboneError(f"{path} cannot be used. {' '.join(problems(error))}") from None
    square = {"height": image_size, "width": image_size}
    shortest = {"shortest_edge": image_size}
    size = images.size or (square if squash else shortest)
    crop = images.crop_size or square
    cropped = images.do_center_crop and crop in (square, shortest)
    if size != square and not (size == shortest and cropped):
        raise BackboneError(
            f"{path} resizes images to {size} and crops {crop if images.do_center_crop else 'nothing'}, but the image "
            f"tower expects {image_size} pixels: set both to {image_size}."
        )
    mean, std = (images.image_mean, images.image_std) if images.do_normalize else ([0.0] * 3, [1.0] * 3)
    return {
        "mean": tuple(mean),
        "std": tuple(std),
        "interpolation": INTERPOLATIONS[images.resample],
        "resize_mode": "squash" if size == square else "shortest",
    }


def _image_settings(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The settings of the image processor and their file; {} if there are none."""
    if is_file(folder / IMAGES):
        return folder / IMAGES, _without_code(folder / IMAGES)
    path = folder / PROCESSOR
    values = _without_code(path).get("image_processor", {}) if is_file(path) else {}
    if not isinstance(values, dict):
        raise BackboneError(f"{path} cannot be used: its image_processor must be a JSON object.")
    return path, values


def _without_code(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if content.get("auto_map"):
        raise BackboneError(f"{path} names Python code of its own (auto_map), which is never run: remove it.")
    return content


class FileTokenizer:
    """A tokenizer.json, called as open_clip's tokenizers are; texts are padded to the full length."""

    def __init__(self, tokenizer: Any, *, context_length: int, pad: int, clean: str) -> None:
        self._tokenizer, self._pad, self._clean = tokenizer, pad, get_clean_fn(clean)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.context_length = context_length
        self.vocab_size = 1 + max(tokenizer.get_vocab().values(), default=-1)

    def __call__(self, texts: str | Sequence[str], context_length: int | None = None) -> Tensor:
        """Token ids (texts, context_length)."""
        length = context_length or self.context_length
        cleaned = [self._clean(text) for text in ([texts] if isinstance(texts, str) else texts)]
        try:
            found = self._tokenizer.encode_batch(cleaned)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of the library's Rust code, which is not an Exception
                raise
            raise BackboneError(f"The tokenizer is damaged ({first_line(error)}): put a good copy there.") from None
        rows = [self._row(one.ids, one.special_tokens_mask, length) for one in found]
        return torch.tensor(rows, dtype=torch.long)

    def _row(self, ids: list[int], special: list[int], length: int) -> list[int]:
        """Ids cut or padded to a length; special tokens at the end, such as the end token, are not cut."""
        if len(ids) > length:
            end = next((n for n, mark in enumerate(reversed(special)) if not mark), len(special))
            ids = [*ids[: length - end], *ids[len(ids) - end :]][:length]
        return [*ids, *[self._pad] * (length - len(ids))]


def tokenizer(name: str, folder: Path, text_cfg: Mapping[str, Any]) -> Callable[..., Tensor]:
    """The tokenizer of a folder: open_clip's own if its merges are the same, else the one in its tokenizer.json.

    A CLIP of the usual vocabulary without any tokenizer in its folder has CLIP's own.
    """
    vocab, causal = text_cfg["vocab_size"], not text_cfg.get("no_causal_mask")
    settings = _without_code(folder / TOKENIZER_CONFIG) if is_file(folder / TOKENIZER_CONFIG) else {}
    own: Any = SimpleTokenizer(context_length=text_cfg["context_length"])
    if not (causal and vocab == CLIP_WORDS and _same_merges(folder, own)):
        own = _file_tokenizer(name, folder / TOKENIZER, settings, text_cfg)
    if own.vocab_size > vocab:
        raise BackboneError(
            f"The text tower of {name} has {vocab:,} tokens, but its {TOKENIZER} has {own.vocab_size:,}: add the "
            f"tokenizer that it was trained with."
        )
    if causal and not _ends(own, text_cfg.get("eos_id")):
        raise BackboneError(
            f"The tokenizer of {name} does not put the end token after a text, where the text tower is read: add the "
            f"tokenizer that it was trained with."
        )
    found: Callable[..., Tensor] = own
    return found


def _ends(tokenizer: Callable[..., Tensor], eos_id: int | None) -> bool:
    """Whether the token at which a causal text tower is read occurs in a text, after its first token."""
    ids = tokenizer(["a"])[0]
    return int(ids.argmax() if eos_id is None else (ids == eos_id).int().argmax()) > 0


def _same_merges(folder: Path, plain: SimpleTokenizer) -> bool:
    """Whether a folder has the merges and ids of CLIP's own tokenizer, or no tokenizer at all."""
    if is_file(folder / TOKENIZER):
        model = read_json(folder / TOKENIZER).get("model")
        merges, words = (model.get("merges"), model.get("vocab")) if isinstance(model, dict) else (None, None)
    elif is_file(folder / MERGES) and is_file(folder / VOCABULARY):
        lines = documents.read_text(folder / MERGES, error=BackboneError).splitlines()
        merges = [line for line in lines if line and not line.startswith("#version")]
        words = read_json(folder / VOCABULARY)
    else:
        return True
    if not isinstance(merges, list) or not isinstance(words, dict):
        return False
    pairs = [
        tuple(one.split(" ")) if isinstance(one, str) else tuple(one) for one in merges if isinstance(one, str | list)
    ]
    ours = dict(list(plain.encoder.items())[:-2])
    return pairs == list(plain.bpe_ranks) and ours.items() <= words.items() and len(words) == CLIP_WORDS


def _file_tokenizer(name: str, path: Path, settings: Mapping[str, Any], text_cfg: Mapping[str, Any]) -> FileTokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtraError(
            f"The tokenizer of {name} needs the package tokenizers: pip install 'dear-vlm[hf]'."
        ) from None
    if not is_file(path):
        raise BackboneError(
            f"{name} has no {TOKENIZER}: save the tokenizer of the model into the same folder with "
            "AutoTokenizer.from_pretrained(…).save_pretrained(…) of transformers."
        )
    if settings.get("padding_side", "right") != "right":
        raise BackboneError(f"{path.parent / TOKENIZER_CONFIG} pads texts on the left: set its padding_side to right.")
    try:
        read = Tokenizer.from_str(documents.read_text(path, error=BackboneError))
        pad = _pad_id(read, settings)
        if pad is None and text_cfg.get("no_causal_mask"):
            raise BackboneError(f"{path.parent / TOKENIZER_CONFIG} names no pad_token, which the text tower reads.")
        clean = text_cfg.get("tokenizer_kwargs", {}).get("clean", "whitespace")
        ours = FileTokenizer(read, context_length=text_cfg["context_length"], pad=pad or 0, clean=clean)
        ours(["a photo of a cat"])
    except BackboneError:
        raise
    except Exception as error:  # the library raises nothing more special
        raise BackboneError(f"{path} is not a tokenizer ({first_line(error)}): put a good copy there.") from error
    return ours


def _pad_id(read: Any, settings: Mapping[str, Any]) -> int | None:
    """The id of the token that fills up a text."""
    token = settings.get("pad_token")
    token = token.get("content") if isinstance(token, dict) else token
    found: int | None = read.token_to_id(token) if isinstance(token, str) else None
    return found
