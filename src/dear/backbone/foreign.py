"""CLIPs in transformers' format, `CLIPModel`, `MetaClip2Model` and `SiglipModel`, converted to open_clip's.

Everything behind this module sees an open_clip model. Its weights have the same names and values, and so the same hash,
as if they had been published for open_clip, so adapters and role maps of the one fit the other. transformers is not
imported, and no code of the folder is run. Sizes are those of the weights; `config.json` adds what they cannot say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import timm
import torch
from open_clip.model import CLIP, CustomTextCLIP, set_model_preprocess_cfg
from open_clip.timm_model import TimmModel
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from dear.backbone.foreign_inputs import preprocessing, read_json, tokenizer
from dear.backbone.foreign_weights import TEXT, VISION, State, Take, clip_state, siglip_state
from dear.backbone.safety import check_config
from dear.backbone.tensors import Tensors, first_line
from dear.config import problems
from dear.errors import BackboneError, backbone
from dear.storage.files import is_file

CONFIG = "config.json"
MOST_LAYERS, MOST_TOKENS = 1000, 10_000
TRUNK = "vit_base_patch16_siglip_224"
"""The timm model whose sizes are replaced by those of a SigLIP."""
T = TypeVar("T", bound="_Tower")


class _Tower(BaseModel):
    """What the shapes of a tower's weights do not say."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)
    num_attention_heads: int = Field(12, ge=1, le=1024)
    layer_norm_eps: float = Field(1e-5, gt=0, lt=0.1)
    image_size: Any = None


class _ClipVision(_Tower):
    hidden_act: Literal["quick_gelu", "gelu"] = "quick_gelu"


class _ClipText(_ClipVision):
    num_attention_heads: int = Field(8, ge=1, le=1024)
    eos_token_id: int = Field(49407, ge=0)


class _Siglip(_Tower):
    layer_norm_eps: float = Field(1e-6, gt=0, lt=0.1)
    hidden_act: Literal["gelu_pytorch_tanh", "gelu"] = "gelu_pytorch_tanh"


@dataclass(frozen=True)
class Sizes:
    """Sizes of a tower, by the shapes of its weights."""

    width: int
    layers: int
    hidden: int
    heads: int

    @property
    def mlp_ratio(self) -> float:
        """The ratio that gives `hidden` if it is multiplied by the width and rounded down."""
        ratio = self.hidden / self.width
        return ratio if int(self.width * ratio) == self.hidden else (self.hidden + 0.5) / self.width


@dataclass(frozen=True)
class Foreign:
    """A CLIP in transformers' format, with the configuration that open_clip needs for it."""

    name: str
    folder: Path
    config: dict[str, Any]
    """The `model_cfg` of an open_clip_config.json."""
    preprocess: dict[str, Any]
    tensors: Tensors
    convert: Callable[[Take], State]
    """The weights by open_clip's names."""
    trunk: dict[str, Any] | None = None
    """Arguments of the timm model that is SigLIP's image tower."""

    def check(self) -> None:
        """Raise `BackboneError` unless all weights have the shapes of the model; nothing is allocated."""
        used: set[str] = set()
        with torch.device("meta"), self._fits_together():
            found = self.convert(lambda name: used.add(name) or self.tensors.outline(name))  # type: ignore[func-returns-value]
            wanted = self._empty().state_dict()
        for name in sorted({*wanted, *found}):
            ours, theirs = (tuple(state[name].shape) if name in state else None for state in (wanted, found))
            if ours != theirs:
                raise BackboneError(
                    f"The weights of {self.name} do not fit together: {name} has the shape {theirs} instead of {ours}."
                )
        left = (name for name in self.tensors.names if name not in used and not name.endswith(".position_ids"))
        if unknown := next(left, None):
            raise BackboneError(
                f"{self.name} has weights that its architecture does not have, such as {unknown[:80]!r}: merge them "
                "into the model, or save it without them."
            )

    def build(self, *, random: bool) -> Any:
        """The model with its weights, or with random ones."""
        model = self._empty()
        if not random:
            model.load_state_dict(self.convert(self.tensors.read))
        set_model_preprocess_cfg(model, {**self.preprocess, "size": model.visual.image_size})
        return model

    def tokenizer(self) -> Callable[..., Tensor]:
        """The tokenizer of the folder."""
        return tokenizer(self.name, self.folder, self.config["text_cfg"])

    def _empty(self) -> Any:
        """The model with random weights."""
        config = {name: value for name, value in self.config.items() if name != "custom_text"}
        if self.trunk is None:
            return CLIP(**config)
        model = CustomTextCLIP(**{**config, "vision_cfg": {"layers": 1, "width": 64, "image_size": 16}})
        with torch.device("meta"):
            model.visual = TimmModel(TRUNK, config["embed_dim"], self.trunk["img_size"], pool="map", proj="none")
        model.visual.trunk = timm.create_model(TRUNK, num_classes=0, **self.trunk)
        return model

    @contextmanager
    def _fits_together(self) -> Iterator[None]:
        """Convert errors about sizes into one sentence."""
        try:
            yield
        except BackboneError:
            raise
        except Exception as error:
            raise BackboneError(f"The weights of {self.name} do not fit together: {first_line(error)}.") from error


def is_foreign(folder: Path, own: str) -> bool:
    """Whether a folder has a configuration of transformers and not the one of open_clip, called `own`."""
    return is_file(folder / CONFIG) and not (folder / own).exists()


def check_foreign(name: str, folder: Path) -> dict[str, Any]:
    """The configuration of a folder in transformers' format; raises `BackboneError` unless it can be converted."""
    config = read_json(folder / CONFIG)
    if config.get("auto_map"):
        raise BackboneError(
            f"{name} names Python code of its own (auto_map in {CONFIG}), which is never run: use a repository of the "
            "plain architecture."
        )
    kind = config.get("model_type")
    if kind == "siglip2":
        raise BackboneError(_naflex(name))
    if not isinstance(kind, str) or kind not in _CONVERT:
        what = f"a {kind[:40]!r} model" if isinstance(kind, str) else "a model of an unknown type"
        raise BackboneError(
            f"{name} is {what} in the format of transformers, of which DeAR reads CLIPModel, "
            f"MetaClip2Model and SiglipModel (model_type {', '.join(_CONVERT)}): use one of these."
        )
    return config


def read_foreign(name: str, folder: Path) -> Foreign:
    """Read configuration and sizes of a folder in transformers' format; its weights are read by `Foreign.build`."""
    config = check_foreign(name, folder)
    foreign = _CONVERT[config["model_type"]](name, folder, config, Tensors(folder))
    check_config(name, foreign.config)
    foreign.check()
    return foreign


def _clip(name: str, folder: Path, config: Mapping[str, Any], tensors: Tensors) -> Foreign:
    vision = _tower(name, config, "vision_config", _ClipVision)
    text = _tower(name, config, "text_config", _ClipText)
    if vision.hidden_act != text.hidden_act:
        raise BackboneError(
            f"{name} has two activation functions, {vision.hidden_act} and {text.hidden_act}, which open_clip cannot "
            "express: use a model with one."
        )
    sizes, text_sizes = _sizes(name, tensors, VISION, vision), _sizes(name, tensors, TEXT, text)
    patch, image_size = _image_size(name, tensors, vision, class_rows=1)
    vocab, _ = _matrix(name, tensors, f"{TEXT}.embeddings.token_embedding.weight")
    embed_dim, _ = _matrix(name, tensors, "visual_projection.weight")
    text_cfg = _text_cfg(name, tensors, text_sizes, vocab) | _eps(text, 1e-5)
    if config["model_type"] != "clip" or text.eos_token_id not in (2, vocab - 1):  # 2 is a mistake of old files
        text_cfg |= {"pool_type": "eos", "eos_id": text.eos_token_id}
    model_cfg = {
        "embed_dim": embed_dim,
        "quick_gelu": vision.hidden_act == "quick_gelu",
        "vision_cfg": {
            "image_size": image_size,
            "patch_size": patch,
            "width": sizes.width,
            "layers": sizes.layers,
            "head_width": sizes.width // sizes.heads,
            "mlp_ratio": sizes.mlp_ratio,
            **_eps(vision, 1e-5),
        },
        "text_cfg": text_cfg,
    }
    images = preprocessing(folder, image_size, squash=False)
    convert = partial(clip_state, layers=sizes.layers, text_layers=text_sizes.layers)
    return Foreign(name, folder, model_cfg, images, tensors, convert)


def _siglip(name: str, folder: Path, config: Mapping[str, Any], tensors: Tensors) -> Foreign:
    vision, text = (_tower(name, config, key, _Siglip) for key in ("vision_config", "text_config"))
    sizes, text_sizes = _sizes(name, tensors, VISION, vision), _sizes(name, tensors, TEXT, text)
    patch, image_size = _image_size(name, tensors, vision, class_rows=0)
    vocab, _ = _matrix(name, tensors, f"{TEXT}.embeddings.token_embedding.weight")
    text_cfg = {
        **_text_cfg(name, tensors, text_sizes, vocab),
        "no_causal_mask": True,
        "proj_bias": True,
        "pool_type": "last",
        "norm_kwargs": {"eps": text.layer_norm_eps},
        "tokenizer_kwargs": {"clean": "canonicalize"},
        **({"act_kwargs": {"approximate": "tanh"}} if text.hidden_act == "gelu_pytorch_tanh" else {}),
    }
    trunk = {
        "img_size": image_size,
        "patch_size": patch,
        "embed_dim": sizes.width,
        "depth": sizes.layers,
        "num_heads": sizes.heads,
        "mlp_ratio": sizes.mlp_ratio,
        "norm_layer": partial(nn.LayerNorm, eps=vision.layer_norm_eps),
        "act_layer": "gelu_tanh" if vision.hidden_act == "gelu_pytorch_tanh" else "gelu",
    }
    model_cfg = {
        "embed_dim": sizes.width,
        "custom_text": True,
        "init_logit_bias": -10,
        "vision_cfg": {
            "image_size": image_size,
            "timm_model_name": TRUNK,
            "timm_pool": "map",
            "timm_proj": "none",
        },
        "text_cfg": text_cfg,
    }
    images = preprocessing(folder, image_size, squash=True)
    convert = partial(siglip_state, width=sizes.width, layers=sizes.layers, text_layers=text_sizes.layers)
    return Foreign(name, folder, model_cfg, images, tensors, convert, trunk)


_CONVERT: dict[str, Callable[[str, Path, Mapping[str, Any], Tensors], Foreign]] = {
    "clip": _clip,
    "metaclip_2": _clip,
    "siglip": _siglip,
}


def _tower(name: str, config: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """The settings of a tower; in old files `…_config_dict` replaces them, with its own defaults."""
    old = config.get(f"{key}_dict") if config["model_type"] != "siglip" else None
    values = config.get(key) if old is None else old
    try:
        return kind.model_validate({} if values is None else values)
    except ValidationError as error:
        raise BackboneError(f"The {key} of {name} cannot be used. {' '.join(problems(error))}") from None


def _sizes(name: str, tensors: Tensors, tower: str, settings: _Tower) -> Sizes:
    """The sizes of a tower, if layers and heads are plausible."""
    start = f"{tower}.encoder.layers."
    layers = len({one.removeprefix(start).partition(".")[0] for one in tensors.names if one.startswith(start)})
    hidden, width = _matrix(name, tensors, f"{start}0.mlp.fc1.weight")
    if layers > MOST_LAYERS or width % settings.num_attention_heads:
        raise BackboneError(
            f"The {tower} of {name} has {layers} layers of width {width} and {settings.num_attention_heads} heads, "
            f"which is not a transformer: check its {CONFIG}."
        )
    return Sizes(width, layers, hidden, settings.num_attention_heads)


def _matrix(name: str, tensors: Tensors, weight: str) -> tuple[int, int]:
    """The shape of a matrix, without an empty dimension."""
    shape = tensors.shape(weight)
    if len(shape) != 2 or 0 in shape:
        raise BackboneError(f"{weight} of {name} has the shape {shape}, which is not a matrix: save the model again.")
    return shape[0], shape[1]


def _image_size(name: str, tensors: Tensors, settings: _Tower, class_rows: int) -> tuple[int, int]:
    """Patch and image size; pixels beyond the last whole patch are allowed, as in SigLIP's 384 pixels of patch 14."""
    shape = tensors.shape(f"{VISION}.embeddings.patch_embedding.weight")
    rows, _ = _matrix(name, tensors, f"{VISION}.embeddings.position_embedding.weight")
    if len(shape) == 2:
        raise BackboneError(_naflex(name))
    grid = math.isqrt(max(rows - class_rows, 0))
    if len(shape) != 4 or 0 in shape or shape[2] != shape[3] or grid**2 != rows - class_rows or grid < 1:
        raise BackboneError(f"{name} has patches of shape {shape} and {rows} positions, which are not a square image.")
    patch, stated = shape[-1], settings.image_size
    return patch, stated if type(stated) is int and stated // patch == grid else grid * patch


def _text_cfg(name: str, tensors: Tensors, sizes: Sizes, vocab: int) -> dict[str, Any]:
    """The part of `text_cfg` that all text towers share."""
    context, _ = _matrix(name, tensors, f"{TEXT}.embeddings.position_embedding.weight")
    if context > MOST_TOKENS:
        raise BackboneError(f"The text tower of {name} has {context:,} positions, more than {MOST_TOKENS:,}.")
    return {
        "context_length": context,
        "vocab_size": vocab,
        "width": sizes.width,
        "heads": sizes.heads,
        "layers": sizes.layers,
        "mlp_ratio": sizes.mlp_ratio,
    }


def _eps(settings: _Tower, usual: float) -> dict[str, Any]:
    return {} if settings.layer_norm_eps == usual else {"norm_kwargs": {"eps": settings.layer_norm_eps}}


def _naflex(name: str) -> str:
    fixed = backbone("hf-hub:google/siglip2-base-patch16-224")
    return (
        f"{name} is a SigLIP 2 for images of any size (NaFlex), which is not supported: use one with a fixed size, "
        f"such as {fixed}."
    )
