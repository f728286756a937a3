"""Names of backbones and tags of their weights: which ones exist, and what to type instead of one that does not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import open_clip
from open_clip.pretrained import get_pretrained_cfg

from dear.backbone.hub import CONFIG_FILE
from dear.backbone.support import refused
from dear.errors import BackboneError, backbone, did_you_mean, option
from dear.storage.files import is_file, is_folder, read_regular

RANDOM = "random"
HUB_PAGES = "https://huggingface.co/"


class Tagged(NamedTuple):
    """A backbone's name and the tag of its weights."""

    name: str
    tag: str


SUGGESTION = Tagged("ViT-B-16-quickgelu", "openai")
IN_TRANSFORMERS_FORMAT = {
    "openai/clip-vit-base-patch16": Tagged("ViT-B-16-quickgelu", "openai"),
    "openai/clip-vit-base-patch32": Tagged("ViT-B-32-quickgelu", "openai"),
    "openai/clip-vit-large-patch14": Tagged("ViT-L-14-quickgelu", "openai"),
    "openai/clip-vit-large-patch14-336": Tagged("ViT-L-14-336-quickgelu", "openai"),
}
"""Hub repositories in transformers' format, and what loads the same weights here."""


def list_backbones() -> dict[str, tuple[str, ...]]:
    """Backbones that can be loaded, with the tags of their weights: those of this package, then OpenCLIP's."""
    names: dict[str, tuple[str, ...]] = dict.fromkeys(shipped(), ())
    for name in open_clip.list_models():
        config = open_clip.get_model_config(name)
        if refused(config) is None and (tags := _fitting_tags(name, config)):
            names[name] = tuple(tags)
    return names


def shipped() -> dict[str, Path]:
    """Backbones that are part of this package: folders in open_clip's format, by name."""
    assets = Path(str(resources.files("dear"))) / "assets"
    return {config.parent.name: config.parent for config in sorted(assets.glob(f"*/{CONFIG_FILE}"))}


def tag_of_repository(repository: str) -> Tagged | None:
    """The name and tag that load the weights of a hub repository, if they are listed."""
    for name, tags in list_backbones().items():
        for tag in tags:
            if repository_of(name, tag)[0].lower() == repository.lower():
                return Tagged(name, tag)
    return None


def repository_of(name: str, tag: str) -> tuple[str, str]:
    """The hub repository of a tag and the file in it; "" for a tag that is not listed, or the usual file."""
    repository, _, file = str(get_pretrained_cfg(name, tag).get("hf_hub", "")).rpartition("/")
    return repository, file


def resolve_name(name: str) -> str:
    """Normalise a name as open_clip does ("ViT-B/16" is "ViT-B-16"); for an unknown name, suggest similar ones."""
    prefix, _, rest = name.partition(":")
    if prefix in ("local-dir", "hf-hub"):
        if not rest:
            raise BackboneError(f"{name!r} is incomplete: write local-dir:FOLDER or hf-hub:ORGANISATION/REPOSITORY.")
        return name
    known: list[str] = [*shipped(), *open_clip.list_models()]
    by_lower = {model.lower(): model for model in known}
    cleaned = name.replace("/", "-")
    if cleaned.lower() in by_lower:
        return by_lower[cleaned.lower()]
    if is_folder(name):
        raise BackboneError(f"{name!r} is a folder: write 'local-dir:{name}'.")
    raise BackboneError(f"No backbone is called {name!r}{_instead_of(name)}")


def _instead_of(name: str) -> str:
    """The end of the error message for an unknown name: what to type instead."""
    repository = name.removeprefix(HUB_PAGES).rstrip("/")
    if same := tag_of_repository(repository) or IN_TRANSFORMERS_FORMAT.get(repository.lower()):
        return f": {backbone(*same)} loads the weights of this repository."
    near = did_you_mean(name.replace("/", "-"), list_backbones())
    if re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        return f".{near} For a repository of the hub: {backbone(f'hf-hub:{repository}')}."
    return f".{near} For example: {backbone(*SUGGESTION)}."


def check_pretrained(name: str, pretrained: str | None, config: Mapping[str, Any]) -> None:
    """Raise `BackboneError` for missing or unknown weights, or for weights with another activation function."""
    if name.startswith(("local-dir:", "hf-hub:")):
        if pretrained not in (None, RANDOM):
            raise BackboneError(f"{name} contains its own weights: leave {option(pretrained=pretrained)} out.")
        return
    if pretrained is None:
        raise BackboneError(f"{name} needs weights: give {_weights_to_give(name, config)}.")
    if pretrained == RANDOM:
        return
    if is_file(pretrained):
        beside = _quick_gelu_beside(Path(pretrained))
        if beside is not None:
            _check_activation(name, pretrained, config, beside, f", says {CONFIG_FILE} beside them")
        return
    tag = get_pretrained_cfg(name, pretrained)
    if not tag:
        near = _near_tags(name, pretrained)
        raise BackboneError(f"{name} has no weights called {pretrained[:80]!r}, and no such file exists.{near}")
    if _twin(name):
        _check_activation(name, pretrained, config, bool(tag.get("quick_gelu")), "")


def _fitting_tags(name: str, config: Mapping[str, Any]) -> list[str]:
    """Tags of the weights that were trained with the same activation function as the model's, or have no other name."""
    tags: list[str] = open_clip.list_pretrained_tags_by_model(name)
    quick_gelu = bool(config.get("quick_gelu"))
    if _twin(name) is None:
        return tags
    return [tag for tag in tags if bool(get_pretrained_cfg(name, tag).get("quick_gelu")) == quick_gelu]


def _weights_to_give(name: str, config: Mapping[str, Any]) -> str:
    first = sorted(_fitting_tags(name, config), key=lambda tag: tag != SUGGESTION.tag)[:1]
    example = option(pretrained=first[0] if first else "CHECKPOINT")
    quick = f"{name}-quickgelu"  # OpenAI's weights, the most common choice, need this name
    has_quick = SUGGESTION.tag in open_clip.list_pretrained_tags_by_model(quick)
    other = f", or {backbone(quick, SUGGESTION.tag)} for OpenAI's" if has_quick else ""
    return f"{example}{other}, or {option(pretrained=RANDOM)} for random weights"


def _near_tags(name: str, typed: str) -> str:
    """A hint for an unknown tag: longer tags of the same model, other models with this tag, or similar tags."""
    adaptable = list_backbones()
    own = adaptable.get(name, ())
    if longer := [tag for tag in reversed(own) if tag.startswith(typed.lower())][:3]:
        return f" Did you mean {' or '.join(map(repr, longer))}?"
    if others := [model for model, tags in adaptable.items() if typed in tags]:
        nearest = get_close_matches(name, others, n=3, cutoff=0)
        return f" They exist for {' and '.join(map(repr, nearest))}."
    twin = _twin(name)
    if twin and (longer := [tag for tag in reversed(adaptable.get(twin, ())) if tag.startswith(typed.lower())]):
        return f" Did you mean {backbone(twin, longer[0])}?"
    return did_you_mean(typed, own)


def _twin(name: str) -> str | None:
    """The same model with the other activation function, if there is one."""
    other = name.removesuffix("-quickgelu") if name.endswith("-quickgelu") else f"{name}-quickgelu"
    return other if other in open_clip.list_models() else None


def _quick_gelu_beside(weights: Path) -> bool | None:
    """Whether the configuration in the folder of a weights file names QuickGELU; None if there is no such file."""
    try:
        content = json.loads(read_regular(weights.parent / CONFIG_FILE))
        return bool(content["model_cfg"].get("quick_gelu"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _check_activation(name: str, pretrained: str, config: Mapping[str, Any], trained_with: bool, source: str) -> None:
    """Raise `BackboneError` for weights with another activation function than the model's; `source` says so."""
    if trained_with == bool(config.get("quick_gelu")):
        return
    twin = _twin(name)
    use = backbone(twin, pretrained) if twin else backbone(f"local-dir:{Path(pretrained).parent}")
    raise BackboneError(
        f"{name} with {pretrained!r} weights would silently lose accuracy, because they were trained "
        f"{'with' if trained_with else 'without'} QuickGELU{source}: use {use}."
    )


def lasting_name(name: str) -> str:
    """A backbone's name that means the same from any folder."""
    kind, colon, path = name.partition(":")
    return f"{kind}:{Path(path).resolve()}" if colon and kind == "local-dir" else name
