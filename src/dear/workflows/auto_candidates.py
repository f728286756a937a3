"""Candidates of `--method auto`: which methods, in which order, with which settings, and what they cache."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from dear.backbone.clip import FrozenClip
from dear.backbone.frozen import PLAIN as UNAUGMENTED
from dear.backbone.frozen import shape_of
from dear.engine.job import Job
from dear.engine.workspace import Workspace
from dear.errors import ConfigError, DearError, option
from dear.evaluation.choice import PLAIN
from dear.methods.registry import get_method
from dear.methods.tuned import is_tuned
from dear.model.class_chunk import free_memory
from dear.model.model import Model
from dear.options.fields import RecipeName
from dear.options.parts import Fit
from dear.roles.known import AUTO, is_chosen, shipped_map

ON_FEATURES = (
    "zero_shot",
    "tip_adapter",
    "ape",
    "gda",
    "linear_probe",
    "role_gains",
    "lppp",
    "taskres",
    "clap",
    "ape_t",
    "tip_adapter_f",
    "clip_adapter",
    "mm_adapter",
)
IN_TOWERS = (
    "textrefiner",
    "tcp",
    "kgcoop",
    "coop",
    "prograd",
    "atprompt",
    "mma",
    "mmrlpp",
    "dear",
    "cocoop",
    "skiptuning",
    "mmrl",
    "provp",
    "vpt",
    "clip_lora",
    "ivlp",
    "maple",
    "promptsrc",
)
"""Methods by cost, the cheapest first: those that run no layer of CLIP while they train, and those that do.

The order is a constant, and not measured on the spot, so that a choice does not depend on how busy a machine is. A
method that is not listed comes last.
"""
DEFAULT = (
    "zero_shot",
    "tip_adapter",
    "tip_adapter_f",
    "ape_t",
    "clip_adapter",
    "gda",
    "linear_probe",
    "textrefiner",
    "coop",
    "dear",
    "mmrl",
    "mmrlpp",
    "clip_lora",
)
"""What is tried if nothing is named. Not role gains: its few numbers can fit all classes at hand, also those that are
left out in a trial, and fail on others."""
WITHOUT_TRIALS = "ape_t"
"""What is taken if nothing can be held out: fitted in seconds, and other classes stay as in plain CLIP."""
VIEWS = 10
"""Cached views per photo, as many as the caches of Tip-Adapter and APE average over."""
FP16, FP32 = 2, 4


@dataclass(frozen=True)
class Candidate:
    """A method that can be tried: its options, its job on all photos, and its untrained model."""

    method: str
    options: Fit
    job: Job
    model: Model

    @property
    def views(self) -> tuple[str, ...]:
        """Names of the frozen tensors that its training reads of views."""
        return tuple(name for name in self.model.names(training=True) if not name.startswith(UNAUGMENTED))

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of those that it reads of photos without augmentation."""
        plain = [name.removeprefix(UNAUGMENTED) for name in self.model.names(training=True) if name not in self.views]
        return tuple(dict.fromkeys((*self.model.names(), *plain)))

    @property
    def needs_views(self) -> bool:
        """Whether it trains on augmented views at all."""
        return self.method != PLAIN and self.model.method.needs.passes != 0


def names_of(options: Fit) -> list[str]:
    """The methods to try, the cheapest first; plain CLIP is always among them."""
    asked = options.candidates or DEFAULT
    for name in asked:
        get_method(name)
    costs = {name: place for place, name in enumerate((*ON_FEATURES, *IN_TOWERS))}
    return sorted({PLAIN, *asked}, key=lambda name: (costs.get(name, len(costs)), name))


def check_options(options: Fit) -> None:
    """Refuse options that make no sense for several methods."""
    auto = option(method="auto")
    if set(options.set) - {"roles"}:
        name = next(iter(options.set))
        raise ConfigError(f"{name!r} is a setting of one method, and {auto} tries several: name the method instead.")
    if AUTO in (options.roles, options.set.get("roles")):
        raise ConfigError(
            f"{auto} never searches for a role map: find one with 'dear roles discover', or name a method."
        )
    if options.no_cache:
        raise ConfigError(f"{auto} needs a cache, which all methods share: leave out {option(no_cache=True)}.")
    if options.cached_views == 0:
        raise ConfigError(f"{auto} trains on cached views: give {option(cached_views=VIEWS)}, or leave it out.")
    names_of(options)


def options_for(method: str, options: Fit, clip: FrozenClip | None) -> Fit:
    """The options of one candidate: a role map that is known for the CLIP, or a mask that needs none."""
    known = get_method(method).Config.model_fields
    settings: dict[str, Any] = dict(options.set) if "roles" in known else {}
    if "mask" in known and not (is_chosen(options.roles) or settings or (clip and shipped_map(clip))):
        settings = {"mask": "all_mixed"}
    return options.model_copy(
        update={
            "method": method,
            "set": settings,
            "roles": options.roles if "roles" in known else None,
            "recipe": options.recipe if "recipe" in options.model_fields_set else default_recipe(method),
            "cached_views": options.cached_views or VIEWS,
            "on": None,
            "gpus": None,
            "budget": None,
            "candidates": None,
            "keep_novel": None,
        }
    )


def default_recipe(method: str) -> RecipeName:
    """The recipe unless one is named: methods share its crops, so that each view is encoded once for all of them."""
    return "tuned" if is_tuned(get_method(method)) else "shared"


def make_candidate(method: str, options: Fit, workspace: Workspace, job: Job, clip: FrozenClip) -> Candidate:
    """Build a candidate, on the data set of a job that is open already; a method may refuse the CLIP or the photos."""
    wanted = options_for(method, options, clip)
    needs = get_method(method).needs
    if needs.unlabelled:
        raise ConfigError("it trains without labels")
    if needs.companions:
        raise ConfigError(f"it needs another model: {', '.join(needs.companions)}")
    own = workspace.job(wanted, data=job.dataset)
    return Candidate(method, wanted, own, own.build(clip))


def check_room(candidates: Sequence[Candidate], cache: Path) -> None:
    """Refuse caches that fit neither on the disk nor into memory, in one sentence."""
    clip, photos = candidates[0].model.clip, len(candidates[0].job.items)
    views = candidates[0].job.cached_views
    by_view = sum(_numbers(clip, names) for names in view_names(candidates).values())
    everything = tuple(dict.fromkeys(name for one in candidates for name in one.reads))
    disk = photos * (views * by_view + _numbers(clip, everything)) * FP16 - _used(cache)
    memory = max(photos * views * _numbers(clip, one.views) * FP32 for one in candidates if _reads_all(one))
    free = shutil.disk_usage(_existing(cache)).free
    fewer = f"use fewer {option(cached_views=max(1, views // 4))} or {option(candidates='tip_adapter,ape_t')}"
    if disk > free:
        raise ConfigError(
            f"The caches need {disk / 1e9:.1f} GB and {cache} has {free / 1e9:.1f} GB: name another folder with "
            f"{option(cache='FOLDER')}, or {fewer}."
        )
    available = free_memory(clip.device)
    if available is not None and memory > available:
        raise ConfigError(f"{memory / 1e9:.1f} GB of memory are needed and {available / 1e9:.1f} GB are free: {fewer}.")


def view_names(candidates: Sequence[Candidate]) -> dict[tuple[float, float], tuple[str, ...]]:
    """The tensors that candidates read of views, by the size of their crops: each group is one pass of the towers."""
    found: dict[tuple[float, float], dict[str, None]] = {}
    for one in candidates:
        if one.needs_views:
            found.setdefault(one.job.resolved.crop, {}).update(dict.fromkeys(one.views))
    return {crop: tuple(names) for crop, names in found.items()}


def _reads_all(one: Candidate) -> bool:
    """Whether a method has features of all views in memory at once."""
    return one.method == PLAIN or bool(one.model.method.needs.passes)


def _numbers(clip: FrozenClip, names: Sequence[str]) -> int:
    """Numbers per photo."""
    return sum(prod(shape_of(clip.vision, name)) for name in names)


def _used(folder: Path) -> int:
    """Bytes that are in a cache already, and need no room again."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0


def _existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def reason(error: BaseException) -> str:
    """Why a candidate failed, in words."""
    return str(error) if isinstance(error, DearError) and str(error) else "not enough memory"
