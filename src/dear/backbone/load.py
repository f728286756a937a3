"""Load a CLIP by OpenCLIP's names, or say what to type instead. Only this file imports open_clip."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import open_clip
import torch
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError
from open_clip.pretrained import get_pretrained_cfg
from open_clip.transformer import LayerNormFp32
from safetensors import SafetensorError
from torch import Tensor, nn
from torchvision import transforms

from dear.backbone.clip import FrozenClip, Geometry, content_hash
from dear.backbone.support import unsupported
from dear.errors import BackboneError, HubError, did_you_mean

Precision = Literal["fp32", "bf16", "fp16"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
RANDOM = "random"
WORLD = "world"
MERGES_FILE = "bpe_merges.txt.gz"
SUGGESTION = 'load_clip("ViT-B-16-quickgelu", pretrained="openai")'


def load_clip(
    name: str,
    pretrained: str | None = None,
    device: str | torch.device = "cpu",
    *,
    precision: Precision = "fp32",
    seed: int = 0,
) -> FrozenClip:
    """Load a frozen CLIP with its preprocessing, tokenizer, geometry and weights' hash.

    Args:
        name: an OpenCLIP name ("ViT-B-16-quickgelu"), "hf-hub:org/repo", "local-dir:path",
            or "world", the small CLIP that ships with this package.
        pretrained: a tag ("openai"), a path to a checkpoint, or "random" for random weights drawn from `seed`.
            Folders and hub repositories bring their own weights: leave it out.
        device: where to put the model.
        precision: type of the frozen weights; what is trained on top stays fp32.
        seed: decides the random weights, where they are asked for.
    """
    if precision not in DTYPES:
        raise BackboneError(f"precision is {precision!r}, but can be 'fp32', 'bf16' or 'fp16'.")
    name = _resolve_name(name)
    source = _source(name)
    config = _read_config(source)
    if reason := unsupported(config):
        raise BackboneError(f"{name} cannot be adapted: {reason}. Use a CLIP ViT, such as {SUGGESTION}.")
    _check_weights_named(source, pretrained, config)
    model = _create(source, pretrained, seed)
    weights_sha256 = content_hash(model.state_dict())
    if precision != "fp32":
        _cast(model, DTYPES[precision])
    preprocess = open_clip.transform.PreprocessCfg(**model.visual.preprocess_cfg)
    text = getattr(model, "text", model)
    return FrozenClip(
        model.to(device),
        name=name,
        pretrained=pretrained,
        precision=precision,
        geometry=_geometry(model, config),
        weights_sha256=weights_sha256,
        preprocess_train=_train_transform(preprocess),
        preprocess_eval=open_clip.transform.image_transform_v2(preprocess, is_train=False),
        tokenizer=_tokenizer(source),
        text_pool=getattr(text, "text_pool_type", None) or text.pool_type,
        text_eos_id=getattr(text, "text_eos_id", None) or text.eos_id,
    )


def _resolve_name(name: str) -> str:
    """Normalise a name as open_clip does ("ViT-B/16" is "ViT-B-16"), refusing unknown ones with the nearest."""
    if name.startswith(("local-dir:", "hf-hub:")):
        if not name.split(":", 1)[1]:
            raise BackboneError(f"{name!r} names nothing: write local-dir:FOLDER or hf-hub:ORGANISATION/REPOSITORY.")
        return name
    if Path(name).is_dir():
        raise BackboneError(f"{name!r} is a folder: write 'local-dir:{name}'.")
    known: list[str] = [WORLD, *open_clip.list_models()]
    cleaned = name.replace("/", "-")
    by_lower = {model.lower(): model for model in known}
    if cleaned.lower() not in by_lower:
        raise BackboneError(f"No backbone is called {name!r}.{did_you_mean(cleaned, known)} For example: {SUGGESTION}.")
    return by_lower[cleaned.lower()]


def _source(name: str) -> str:
    """Where open_clip finds a backbone: those that ship with this package are folders inside it."""
    folder = Path(str(resources.files("dear"))) / "assets" / name
    return f"local-dir:{folder}" if (folder / "open_clip_config.json").is_file() else name


def _read_config(name: str) -> dict[str, Any]:
    """The model's configuration, before anything large is built or downloaded."""
    if name.startswith("local-dir:"):
        path = Path(name.removeprefix("local-dir:")) / "open_clip_config.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return dict(content["model_cfg"])
        except FileNotFoundError:
            raise BackboneError(
                f"{path} does not exist: local-dir: needs a folder with open_clip_config.json and weights."
            ) from None
        except (KeyError, TypeError, ValueError):
            raise BackboneError(f"{path} is not an OpenCLIP configuration: it needs a 'model_cfg' object.") from None
    with _quiet_open_clip(), _hub_errors(name):
        return copy.deepcopy(open_clip.get_model_config(name))


def _check_weights_named(name: str, pretrained: str | None, config: dict[str, Any]) -> None:
    if name.startswith(("local-dir:", "hf-hub:")):
        if pretrained not in (None, RANDOM):
            raise BackboneError(f"{name} brings its own weights: leave pretrained={pretrained!r} out.")
        return
    quick_gelu = bool(config.get("quick_gelu"))
    tags = open_clip.list_pretrained_tags_by_model(name)
    fitting = [tag for tag in tags if bool(get_pretrained_cfg(name, tag).get("quick_gelu")) == quick_gelu]
    if pretrained is None:
        example = f"pretrained={fitting[0]!r}" if fitting else "the path of a checkpoint as pretrained"
        raise BackboneError(f"{name} needs weights: give {example}, or pretrained='random' to ask for random ones.")
    if pretrained == RANDOM or Path(pretrained).is_file():
        return
    tag = get_pretrained_cfg(name, pretrained)
    if not tag:
        others = [repr(model) for model in open_clip.list_pretrained_models_by_tag(pretrained)]
        near = f" They exist for {' and '.join(others[:3])}." if others else did_you_mean(pretrained, tags)
        raise BackboneError(f"{name} has no weights called {pretrained!r}, and no such file exists.{near}")
    if pretrained not in fitting:
        other = name.removesuffix("-quickgelu") if quick_gelu else f"{name}-quickgelu"
        raise BackboneError(
            f"{name} with {pretrained!r} weights would silently lose accuracy, as they were trained "
            f"{'without' if quick_gelu else 'with'} QuickGELU: use load_clip({other!r}, pretrained={pretrained!r})."
        )


def _create(name: str, pretrained: str | None, seed: int) -> Any:
    """Build the model in fp32 on the CPU with the weights that were asked for."""
    with torch.random.fork_rng(devices=[]), _quiet_open_clip(), _hub_errors(name, pretrained):
        torch.manual_seed(seed)
        random = pretrained == RANDOM
        return open_clip.create_model(
            name,
            pretrained=None if random else pretrained,
            load_weights=not random,
            require_pretrained=not random,
        )


def _cast(model: Any, dtype: torch.dtype) -> None:
    """Hold the weights in a lower precision; layer norms still compute in fp32 and the temperature keeps its digits."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.__class__ = LayerNormFp32
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if name != "logit_scale":
                parameter.data = parameter.data.to(dtype)


def _geometry(model: Any, config: dict[str, Any]) -> Geometry:
    visual, text = model.visual, getattr(model, "text", model)
    return Geometry(
        image_size=visual.image_size[0],
        patch_size=visual.patch_size[0],
        vision_layers=len(visual.transformer.resblocks),
        vision_heads=visual.transformer.resblocks[0].attn.num_heads,
        vision_width=visual.transformer.width,
        vision_tokens=len(visual.positional_embedding),
        text_layers=len(text.transformer.resblocks),
        text_heads=text.transformer.resblocks[0].attn.num_heads,
        text_width=text.transformer.width,
        context_length=model.context_length,
        vocab_size=model.vocab_size,
        embed_dim=visual.output_dim,
        quick_gelu=bool(config.get("quick_gelu", False)),
    )


def _tokenizer(name: str) -> Callable[..., Tensor]:
    """The tokenizer that belongs to the weights; a folder may bring its own merges (`bpe_merges.txt.gz`)."""
    merges = Path(name.removeprefix("local-dir:")) / MERGES_FILE
    own = {"bpe_path": str(merges)} if name.startswith("local-dir:") and merges.is_file() else {}
    tokenizer: Callable[..., Tensor] = open_clip.get_tokenizer(name, **own)
    return tokenizer


def _to_rgb(image: Any) -> Any:
    return image.convert("RGB")


def _train_transform(cfg: Any) -> Callable[[Any], Tensor]:
    """The paper's augmentation at this backbone's size, interpolation, mean and standard deviation."""
    transform: Callable[[Any], Tensor] = transforms.Compose(
        [
            _to_rgb,
            transforms.RandomResizedCrop(
                cfg.size, scale=(0.5, 1.0), interpolation=transforms.InterpolationMode(cfg.interpolation)
            ),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(cfg.mean, cfg.std),
        ]
    )
    return transform


@contextmanager
def _quiet_open_clip() -> Iterator[None]:
    """Keep open_clip's chatter, and the handlers it adds to the root logger, away from the user's own logging."""
    root = logging.getLogger()
    handlers, disabled = list(root.handlers), root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers


@contextmanager
def _hub_errors(name: str, pretrained: str | None = None) -> Iterator[None]:
    """Turn whatever open_clip and the hub raise into one sentence."""
    what = f"{name} ({pretrained})" if pretrained else name
    try:
        yield
    except (RuntimeError, OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        causes = list(_causes(error))
        if name.startswith("local-dir:") or Path(pretrained or "").is_file():
            raise BackboneError(f"The weights of {what} cannot be loaded: {_first_line(causes[-1])}.") from error
        if any(_says_not_found(cause) for cause in causes):
            raise BackboneError(f"The hub has no OpenCLIP model at {what}: check the spelling.") from error
        raise HubError(
            f"{what} has to be downloaded and the hub cannot be reached: check the network, or fetch "
            f"open_clip_config.json and open_clip_model.safetensors elsewhere and use 'local-dir:FOLDER'."
        ) from error


def _says_not_found(error: BaseException) -> bool:
    """Whether the hub itself answered that there is no such thing (a missing local copy is no answer)."""
    missing = isinstance(error, RepositoryNotFoundError | EntryNotFoundError)
    return missing and not isinstance(error, LocalEntryNotFoundError)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
