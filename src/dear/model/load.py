"""Create models: untrained ones from a method's name and settings, and saved ones from their folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.backbone.catalogue import known_can
from dear.backbone.clip import FrozenClip, short_name
from dear.backbone.load import load_clip
from dear.backbone.support import Can, missing
from dear.config import named_now
from dear.data.prompts import DEFAULT_TEMPLATE, class_list
from dear.errors import (
    ArtefactError,
    BackboneError,
    BackboneMismatchError,
    ConfigError,
    CorruptArtefactError,
    DearError,
    PickledWeightsError,
    is_typed,
    option,
)
from dear.methods.base import Method
from dear.methods.dear.config import DearConfig
from dear.methods.registry import get_method, list_methods
from dear.methods.resource import resource_fields
from dear.methods.zero_shot import ZeroShot
from dear.model.artefact import TENSORS, BackboneEntry, Manifest, identity, read_adapter, read_manifest
from dear.model.hub_adapter import HubAdapter, fetch_adapter, on_hub, refuse_local_paths
from dear.model.memory import is_out_of_memory
from dear.model.model import Model
from dear.roles.rolemap import RoleMap
from dear.storage.files import as_folder

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Types of numbers besides integers and truth values that an adapter may have."""
ANYTHING = "thing"
"""Placeholder class list of companion models that only compute image features."""


def make_method(
    name: str,
    clip: FrozenClip,
    settings: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    files: Mapping[str, str] | None = None,
    companions: Mapping[str, Model] | None = None,
) -> Method:
    """Create an untrained method from its name and settings; invalid settings raise `ConfigError`."""
    if not isinstance(clip, FrozenClip):
        raise BackboneError(f"A method adapts a backbone from dear.load_clip(…), but got a {type(clip).__name__}.")
    cls = get_method(name)
    check_can(cls, clip)
    config = cls.Config(**(settings or {}))
    made = {one: (companions or {}).get(one) for one in cls.needs.companions}
    for one in (one for one, model in made.items() if model is None):
        reference = getattr(config, one)
        if reference is not None and _is_folder(reference):  # an absolute path works from any working directory
            config = config.model_copy(update={one: str(Path(reference).resolve())})
        made[one] = companion(one, getattr(config, one), clip)
    try:
        return cls(clip, config, seed=seed, files=files, companions=made)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, DearError) or not is_out_of_memory(error):
            raise
        raise ConfigError(f"{name} does not fit into memory with these settings: choose smaller ones.") from error


def check_can(method: type[Method], clip: FrozenClip) -> None:
    """Raise `BackboneError` if a method needs something that cannot be done with a CLIP, and list those that work."""
    if lacking := missing(method.needs_of_clip, clip.can):
        raise BackboneError(
            f"{method.name} needs {lacking}, {clip.why_not(lacking)}. {_working(short_name(clip.name), clip.can)}"
        )


def check_named(methods: Iterable[type[Method]], name: str) -> None:
    """As `check_can`, by the backbone's name alone: raise before weights are fetched if none of the methods works."""
    methods, can = list(methods), known_can(name)
    if can is None or not all(missing(one.needs_of_clip, can) for one in methods):
        return
    first = methods[0]
    raise BackboneError(
        f"{first.name} needs {missing(first.needs_of_clip, can)}, which {name} does not have. {_working(name, can)}"
    )


def _working(name: str, can: frozenset[Can]) -> str:
    """A sentence with the methods that a CLIP allows."""
    working = [one for one in list_methods() if not missing(get_method(one).needs_of_clip, can)]
    return f"With {name} you can use: {', '.join(working)}."


def companion(role: str, reference: str | None, clip: FrozenClip) -> Model:
    """Load a companion model of a method: a run from its folder, a CLIP by NAME@TAG, or by default the same CLIP.

    Args:
        role: its role in the method, such as "teacher".
        reference: the folder or name; None for the method's own CLIP.
        clip: the method's own CLIP, which is shared with a companion on the same weights.
    """
    if reference is None:
        return _plain(clip)
    try:
        if _is_folder(reference):
            saved = read_manifest(Path(reference)).backbone
            same = (saved.weights_sha256, saved.precision) == (clip.weights_sha256, clip.precision)
            model = load(reference, clip) if same else load(reference, device=clip.device)
            return model if model.classes else model.for_classes([ANYTHING])
        name, _, tag = reference.partition("@")
        return _plain(_other_clip(name, tag or None, clip.device))
    except DearError as error:
        raise ConfigError(
            f"The {role} {reference!r} cannot be loaded: give the folder of a run, or a CLIP as NAME or NAME@TAG. "
            f"{error}"
        ) from error


def _plain(clip: FrozenClip) -> Model:
    return Model(clip, ZeroShot(clip, ZeroShot.Config()), class_list([ANYTHING], DEFAULT_TEMPLATE))


@lru_cache(maxsize=1)
def _other_clip(name: str, tag: str | None, device: torch.device) -> FrozenClip:
    return load_clip(name, tag, device)


def _is_folder(reference: str) -> bool:
    try:
        return Path(reference).is_dir()
    except (OSError, ValueError):
        return False


def DeAR(clip: FrozenClip, roles: RoleMap | str | Path | None = None, **settings: Any) -> Model:
    """A CLIP with untrained DeAR tokens.

    Args:
        clip: from `dear.load_clip`.
        roles: a `RoleMap`, the path of a roles.json, or the name of a shipped map ("vit-b-16"); by default the one
            shipped for the weights.
        **settings: any field of `DearConfig`, such as beta=0.9, text_tokens=5, alpha_cls=0.7, lambda_reg=1.0.
    """
    config = settings.pop("config", None)
    if config is not None and not isinstance(config, DearConfig):
        raise ConfigError(f"config is of type {type(config).__name__}: give dear.DearConfig(…), or single settings.")
    values = config.model_dump() if config is not None else {}
    return Model(clip, make_method("dear", clip, {**values, "roles": roles, **settings}))


def load(
    folder: str | Path,
    clip: FrozenClip | None = None,
    *,
    device: str | torch.device | None = None,
    companions: Mapping[str, Model] | None = None,
    moved: Mapping[str, str | Path] | None = None,
    allow_pickled: bool = False,
) -> Model:
    """Load a saved adapter with its backbone: `clip`, or else the backbone named in the adapter, loaded to `device`.

    `folder` is the folder of a run or adapter, or "hf-hub:ORG/REPO" or "hf-hub:ORG/REPO@REVISION" for an adapter on the
    hub, which is asked for its latest commit each time. Paths in such an adapter are refused.

    `companions` replaces models that the adapter was trained with, such as a teacher, if they have moved. `moved` gives
    the new paths of folders that its config names, such as {"lm": FOLDER} for LLaMP's language model.

    `allow_pickled` also reads the backbone's weights from a pickled file: tensors only, never code.

    The model is in evaluation mode, without gradients, with the classes it was saved with; `requires_grad_()` makes it
    trainable again.
    """
    if clip is not None and device is not None:
        raise ConfigError("Give either clip or device, not both: clip stays on its own device.")
    published = on_hub(folder)
    folder = fetch_adapter(published) if published else as_folder(folder)
    manifest, tensors, files = read_adapter(folder)
    if published:
        refuse_local_paths(published, manifest, clip is not None, {*(companions or {}), *(moved or {})})
    backbone = _backbone(manifest.backbone, clip, device or "cpu", published or folder, allow_pickled)
    try:
        settings = named_now(get_method(manifest.method).Config, manifest.settings)
        settings = {**settings, **_moved(manifest.method, moved or {})}
        method = make_method(manifest.method, backbone, settings, files=files, companions=companions)
    except KeyError as error:
        raise CorruptArtefactError(f"{folder} lacks {error}, which the method {manifest.method!r} needs.") from None
    _check_companions(folder, manifest, method)
    try:
        check_types(tensors)
        restore(method, tensors)
        method.check_shapes()
        check_finite(tensors)
    except ValueError as error:
        raise CorruptArtefactError(f"{folder / TENSORS} does not fit its settings: {error}.") from None
    saved = manifest.classes
    classes = (
        None
        if saved is None
        else class_list(saved.names, saved.template, dataset=saved.dataset, descriptions=saved.descriptions)
    )
    model = Model(backbone, method, classes, trained_on=manifest.trained_on, calibration=manifest.calibration)
    return model.eval().requires_grad_(False)


def _moved(name: str, moved: Mapping[str, str | Path]) -> dict[str, str]:
    """The new paths of folders, by field of the config."""
    known = resource_fields(get_method(name).Config, external=True)
    if other := sorted(set(moved) - set(known)):
        can = f"only {', '.join(known)} of {name} can" if known else f"nothing of {name} can"
        raise ConfigError(f"moved has {_few(other)}, but {can} have moved: leave it out.")
    return {field: str(folder) for field, folder in moved.items()}


def _check_companions(folder: Path, manifest: Manifest, method: Method) -> None:
    """Raise an error if a companion is not the model that the adapter was trained with."""
    for name, known in manifest.companions.items():
        present = method.companions.get(name)
        if present is None or identity(present) != known:
            where = manifest.settings.get(name) or "the same CLIP, without an adapter"
            raise ArtefactError(
                f"{folder} was trained with another {name} than the present one ({where}): restore the "
                f"{known.get('method')} on weights {known.get('weights_sha256', '')[:12]}…, or give it as companions=…."
            )


def restore(method: Method, state: Mapping[str, Tensor]) -> None:
    """Copy saved tensors into a method. Shapes of `sized_by_data` come from the file, all others must fit."""
    own = method.state_dict(keep_vars=True)
    if differing := sorted(set(own) ^ set(state)):
        raise ValueError(f"the tensors {_few(differing)} are only in one of the two")
    with torch.no_grad():
        for name, tensor in own.items():
            saved = state[name]
            if tensor.shape != saved.shape and name not in method.sized_by_data:
                raise ValueError(f"{name} has shape {tuple(saved.shape)} in the file and {tuple(tensor.shape)} here")
            if tensor.shape != saved.shape:
                tensor.data = torch.empty(saved.shape, dtype=tensor.dtype, device=tensor.device)
            tensor.copy_(saved)


def check_types(state: Mapping[str, Tensor]) -> None:
    """Raise `ValueError` for tensors of a type that no method saves, such as float8 or complex numbers."""
    for name, tensor in state.items():
        if tensor.is_complex() or (tensor.is_floating_point() and tensor.dtype not in FLOATS):
            raise ValueError(f"{name} contains values of type {str(tensor.dtype).removeprefix('torch.')}")


def check_finite(state: Mapping[str, Tensor]) -> None:
    """Raise `ValueError` for tensors with values that are not finite."""
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} contains values that are not finite")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


def _backbone(
    saved: BackboneEntry,
    clip: FrozenClip | None,
    device: str | torch.device,
    folder: Path | HubAdapter,
    allow_pickled: bool,
) -> FrozenClip:
    """The adapter's backbone, checked by the hash of its weights."""
    seed = "" if saved.seed is None else f", seed={saved.seed}"
    call = f"load_clip({saved.name!r}, pretrained={saved.pretrained!r}{seed})"
    by_name = f"the backbone {saved.name}" + (f" ({saved.pretrained})" if saved.pretrained else "")
    needed = f"{folder} needs {by_name if is_typed() else call} with weights {saved.weights_sha256[:12]}…"
    allow = f"a pickled file, a format that can contain code: add {option(allow_pickled=True)} to read its tensors only"
    if clip is None and saved.pickled and not allow_pickled:
        raise PickledWeightsError(f"{needed}, which were read from {allow}.")
    if clip is None:
        try:
            clip = load_clip(
                saved.name,
                saved.pretrained,
                device,
                precision=saved.precision,  # type: ignore[arg-type]
                seed=saved.seed or 0,
                allow_pickled=allow_pickled,
            )
        except PickledWeightsError as error:
            raise PickledWeightsError(f"{needed}, which are in {allow}.") from error
        except DearError as error:
            elsewhere = "" if is_typed() else "; pass it as clip=… if it is somewhere else"
            raise type(error)(f"{needed}{elsewhere}. {error}") from error
    if not isinstance(clip, FrozenClip):
        raise ConfigError(f"clip must come from dear.load_clip(…), but is a {type(clip).__name__}.")
    if clip.weights_sha256 != saved.weights_sha256:
        raise BackboneMismatchError(f"{needed}, but this backbone ({clip.name}) has {clip.weights_sha256[:12]}….")
    sizes = clip.geometry.as_dict()
    differing = [key for key in {**sizes, **saved.geometry} if saved.geometry.get(key) != sizes.get(key)]
    if differing:
        raise BackboneMismatchError(f"{needed}, but this backbone ({clip.name}) has another {', '.join(differing)}.")
    return clip
