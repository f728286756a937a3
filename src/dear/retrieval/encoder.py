"""What makes the features of a search: an adapted model, or a plain CLIP whose heads have roles.

Shapes: B images, G kinds of features, E joint embedding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from dear.backbone.clip import FrozenClip
from dear.backbone.frozen import check_heads
from dear.backbone.load import Precision, load_clip
from dear.backbone.names import lasting_name
from dear.backbone.support import Can
from dear.errors import ConfigError, DearError, did_you_mean, option
from dear.methods.base import Output, unit
from dear.model.load import load
from dear.model.model import Model
from dear.retrieval.features import fitting_roles, head_features
from dear.retrieval.index import WHOLE, Index
from dear.retrieval.segments import damaged
from dear.roles.groups import HEAD, REST, Groups, groups_of, head_name, place_of
from dear.roles.rolemap import ROLES, Role, RoleMap
from dear.storage.documents import OpenRecord
from dear.storage.files import as_folder, sha256


@dataclass(frozen=True)
class Encoder:
    """Kinds of features, and how images and texts get them."""

    clip: FrozenClip
    kinds: tuple[str, ...]
    mark: str
    """Changes where the features would."""
    encode: Callable[[Tensor], Tensor]
    """(B, G, E) features of preprocessed images."""
    encode_text: Callable[[Sequence[str]], Tensor]
    """(T, E) features of texts, of unit length."""
    parts: bool = False
    """Whether the features are parts of a sum whose whole is the first."""
    lacking: tuple[str, ...] = ()
    """Attributes that no head is about."""
    made_by: Mapping[str, Any] = field(default_factory=dict)
    """What to load to have this again."""


class _Heads(OpenRecord):
    """What an index records of the CLIP whose heads made it."""

    clip: str
    pretrained: str | None
    precision: Precision
    heads: dict[str, list[Annotated[str, Field(pattern=r"^[0-9]{1,9}\.[0-9]{1,9}$")]]]
    seed: int = 0


def model_encoder(model: Model, run: Path | None = None, out: Path | None = None) -> Encoder:
    """The features that an adapted model gives; `run` is where it was loaded from, `out` the folder of the index."""
    where = {} if run is None else {"run": _beside(run, out)}
    return Encoder(
        clip=model.clip,
        kinds=feature_kinds(model),
        mark=model_hash(model),
        encode=lambda images: encode(model, images),
        encode_text=lambda texts: model.method.encode_text(model.clip, list(texts)),
        lacking=lacking_attributes(model.method.files.get(ROLES)),
        made_by=where,
    )


def head_encoder(
    clip: FrozenClip, roles: RoleMap | str | Path | None = None, kinds: Sequence[str] | None = None
) -> Encoder:
    """Features of a plain CLIP without training: the whole embedding, and what the heads of each attribute add to it.

    Args:
        clip: the backbone.
        roles: its role map; by default the one shipped for its weights.
        kinds: concepts and roles of the map, and single heads such as "head:11.4"; by default the core attributes.
            ["cls"] is the whole embedding alone, which needs neither a map nor the layers of the image tower.
    """
    if kinds is not None and set(kinds) == {WHOLE}:
        return _from_groups(clip, {}, ())
    clip.require({Can.IMAGE_LAYERS}, "Search by attribute")
    found = fitting_roles(clip, roles)
    groups = groups_of(found)
    core = [head.concept for head in found.heads if head.role is Role.CORE]
    named = [name for name in groups if name in core] if kinds is None else list(kinds)
    if not named:
        known = ", ".join(groups)
        raise ConfigError(
            f"The role map has no head for any of {', '.join(found.attributes)}, so there is no attribute to search "
            f"by: choose kinds that it has ({known}) or single heads such as head:{found.heads[-1].layer}.0."
        )
    chosen = {name: _heads_of(name, groups, found.attributes) for name in named if name != WHOLE}
    return _from_groups(clip, chosen, tuple(name for name in found.attributes if name not in core))


def _from_groups(clip: FrozenClip, groups: Groups, lacking: tuple[str, ...]) -> Encoder:
    if groups:
        check_heads(clip.vision, list(groups.values()))
    named = {name: [head_name(place).removeprefix(HEAD) for place in places] for name, places in groups.items()}
    identity = ["heads", clip.weights_sha256, clip.precision, named]

    @torch.inference_mode()
    def encode(images: Tensor) -> Tensor:
        if not groups:
            return unit(clip.frozen(images.to(clip.device), ["feature"])["feature"])[:, None].float().cpu()
        found = head_features(clip, groups, images.to(clip.device))
        whole_BE = torch.stack(list(found.values())).sum(0)
        parts = [part for name, part in found.items() if name != REST]
        return torch.stack([whole_BE, *parts], dim=1).float().cpu()

    made_by = {
        "clip": lasting_name(clip.name),
        "pretrained": clip.pretrained,
        "precision": clip.precision,
        "heads": named,
    }
    return Encoder(
        clip=clip,
        kinds=(WHOLE, *groups),
        mark=sha256(json.dumps(identity, sort_keys=True).encode()),
        encode=encode,
        encode_text=clip.encode_text,
        parts=bool(groups),
        lacking=lacking,
        made_by=made_by if clip.seed is None else {**made_by, "seed": clip.seed},
    )


def encoder_of(
    index: Index,
    model: Model | FrozenClip | str | Path | None = None,
    *,
    device: str | torch.device | None = None,
    allow_pickled: bool = False,
) -> Encoder:
    """The encoder that an index was made by: `model`, or the one that the index names."""
    made_by = index.manifest.made_by
    if isinstance(model, str | Path):
        model = load(as_folder(model), device=device, allow_pickled=allow_pickled)
    if isinstance(model, Model):
        return model_encoder(model)
    if "run" in made_by and model is None:
        return model_encoder(load(_run_of(index), device=device, allow_pickled=allow_pickled))
    if "heads" not in made_by:
        raise ConfigError(f"The index in {index.out} does not record its run: name it with {option(run='RUN')}.")
    heads = _heads_recorded(index)
    groups = {name: [place_of(head) for head in named] for name, named in heads.heads.items()}
    try:
        clip = model or load_clip(
            heads.clip,
            heads.pretrained,
            device or "cpu",
            precision=heads.precision,
            seed=heads.seed,
            allow_pickled=allow_pickled,
        )
    except DearError as error:
        raise type(error)(
            f"The index in {index.out} needs its CLIP; name it with {option(clip='CLIP')} if it is elsewhere. {error}"
        ) from error
    return _from_groups(clip, groups, tuple(index.manifest.lacking))


def _run_of(index: Index) -> Path:
    """The run that an index names, which can be a stranger's."""
    try:
        run: Path = index.out / index.manifest.made_by["run"]
        return run.resolve()
    except (TypeError, ValueError):  # it is not a text, or not one that can name a folder
        raise damaged(index.out) from None


def _heads_recorded(index: Index) -> _Heads:
    """The CLIP and its heads that an index names, which can be a stranger's."""
    try:
        return _Heads.model_validate(index.manifest.made_by)
    except ValidationError:
        raise damaged(index.out) from None


def _heads_of(name: str, groups: Groups, attributes: Sequence[str]) -> list[tuple[int, int]]:
    if name.startswith(HEAD):
        return [place_of(name)]
    if name not in groups:
        known = (*groups, f"{HEAD}LAYER.HEAD")
        why = "The role map has no head for" if name in attributes else "There is no kind of feature"
        raise ConfigError(f"{why} {name!r}: choose {', '.join(known)}.{did_you_mean(name, groups)}")
    return groups[name]


def lacking_attributes(text: str | None) -> tuple[str, ...]:
    """Attributes of an adapter's role map that no head is about; none if it has no map."""
    if text is None:
        return ()
    roles = RoleMap.from_json(text, where=ROLES)
    core = {head.concept for head in roles.heads if head.role is Role.CORE}
    return tuple(name for name in roles.attributes if name not in core)


def _beside(run: Path, out: Path | None) -> str:
    """A run's path for the index: relative if the index is in it, so that both can be moved."""
    if out is not None and out.resolve().parent == run.resolve():
        return ".."
    return str(run.resolve())


def feature_kinds(model: Model) -> tuple[str, ...]:
    """Names of the features a model gives for an image."""
    size = model.clip.geometry.image_size
    with torch.inference_mode():
        out: Output = _with_classes(model)(torch.zeros(1, 3, size, size, device=model.clip.device))
    return tuple(out.features)


def model_hash(model: Model) -> str:
    """What decides a model's image features: the backbone, the method and everything trained."""
    method = model.method
    parts = {name: sha256(_bytes(tensor)) for name, tensor in method.state_dict().items()}
    identity = [model.name, model.clip.weights_sha256, method.config.first_named(), method.files, parts]
    return sha256(json.dumps(identity, sort_keys=True).encode())


@torch.inference_mode()
def encode(model: Model, images: Tensor) -> Tensor:
    """(B, G, E) features of preprocessed images, of unit length."""
    out: Output = _with_classes(model)(images.to(model.clip.device))
    return torch.stack(list(out.features.values()), dim=1).float().cpu()


def _with_classes(model: Model) -> Model:
    """A model that can be run: features of images do not depend on the classes."""
    return model if model.classes is not None else model.for_classes(["thing"])


def _bytes(tensor: Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    return (plain.float() if plain.is_floating_point() else plain).numpy().tobytes()
