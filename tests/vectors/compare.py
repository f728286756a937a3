"""Compares a method with the numbers of its published code.

A file pair NAME.json + NAME.safetensors becomes a `Case`, by the reader of its method (`vectors.readers`); then the
engine's own step runs on it: forward, loss, gradients, update. What a file holds is compared, or said to be unread.
"""

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

import dear
from dear.data.prompts import ClassList, class_list
from dear.engine.feed import StepImages
from dear.engine.gradients import Grads, Share, share_of_step
from dear.engine.loop import update
from dear.engine.optim import make_optimiser, rate
from dear.methods.base import Output
from dear.methods.recipe import Recipe
from dear.model.load import make_method, restore
from vectors.tiny_clip import tiny_clip

Tensors = dict[str, Tensor]
STATE = ("param/", "buffer/")
CONSTANT = Recipe(schedule="constant", warmup_epochs=0)
NO_SCALER = torch.amp.GradScaler("cpu", enabled=False)
GIVEN = ("param/", "input/", "buffer/", "teacher/", "lm/", "draw/")
"""What a file gives; everything else is compared."""
TOLERANCE, UPDATE_TOLERANCE = 1e-4, 1e-6
"""The usual ones: of everything, and of parameters after an update."""


@dataclass(frozen=True)
class Case:
    """A file in our words."""

    method: str
    config: Mapping[str, Any]
    classes: ClassList
    recipe: Recipe = CONSTANT
    """Whose optimiser makes the two steps."""
    companions: Mapping[str, Any] = field(default_factory=dict)
    draws: Mapping[str, Tensor] = field(default_factory=dict)
    """Random numbers by the names that the method asks for them."""
    files: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[["Run"], None] = lambda run: None
    """What the method does with the draw of the file, before anything is asked."""
    found: Callable[["Run"], Mapping[str, Tensor]] = lambda run: {}
    """Further quantities of ours by the names of the file, such as "out/meta_bias"."""
    later: Callable[["Run", Tensors], Mapping[str, Tensor]] = lambda run, steps: {}
    """The same after the steps, given what they left as "step1/NAME" and "step2/NAME"."""
    further: Callable[["Run", Tensors], "list[Difference]"] = lambda run, steps: []
    """Comparisons that are not of one tensor."""
    names: Mapping[str, str] = field(default_factory=dict)
    """From beginnings of the file's parameter names to ours, where a name of theirs is a function of ours."""
    expected: Mapping[str, Tensor] = field(default_factory=dict)
    """Numbers of the JSON, compared with those that `found` gives by the same names."""
    by_itself: bool = False
    """Whether the method makes its steps itself, so that `found` gives them."""
    steps: int = 0
    """Steps of the whole training, where the recipe's rate changes with every step; 0: the rate is constant."""
    tolerance: Mapping[str, float | Tensor] = field(default_factory=dict)
    """By name of a tensor or of its kind ("step2"), where it is not the usual one; a tensor says it entry by entry."""
    unread: tuple[str, ...] = ()
    """Beginnings of names that this comparison has no use for."""


Reader = Callable[[dict[str, Any], Tensors], Case]


@dataclass
class Run:
    """A case at work."""

    case: Case
    facts: dict[str, Any]
    tensors: Tensors
    model: dear.Model
    images: dict[str, Tensor] = field(default_factory=dict)
    """Frozen quantities of the step's images."""
    out: Output | None = None
    """Of the first training step."""
    terms: dict[str, Tensor] = field(default_factory=dict)
    share: Share | None = None
    """Gradients of the first step."""
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Difference:
    """How far one tensor of ours is from the file's."""

    name: str
    kind: str
    error: float
    tolerance: float
    in_double: bool = False
    """Whether ours was computed in double precision."""

    @property
    def fits(self) -> bool:
        return self.error <= self.tolerance


def read_pair(path: Path) -> tuple[dict[str, Any], Tensors]:
    """The JSON of a pair and its tensors."""
    facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return facts, load_file(path.with_suffix(".safetensors"))


def words(names) -> list[str]:
    """Class names as our readers of data sets give them: words, no underscores."""
    return [name.replace("_", " ") for name in names]


def classes_of(facts, *, template="a photo of a {}.", dataset=None, names=None, descriptions=None) -> ClassList:
    """The file's classes, or others of it."""
    listed = class_list(words(facts["classes"] if names is None else names), template, dataset=dataset)
    return replace(listed, descriptions=descriptions)


def optimiser_numbers(facts) -> dict[str, Any]:
    """Momentum, eps, decay and betas, where `optimiser` of the settings tells them in words, such as
    "adamw betas 0.9/0.999 eps 1e-4 weight_decay 0.01".
    """
    text, number = str(facts["settings"].get("optimiser", "")), r"(\d[\d.]*(?:e[+-]?\d+)?)"
    names = {"momentum": "momentum", "eps": "eps", "weight_decay": "decay"}
    matches = {ours: re.search(rf"\b{theirs} {number}", text) for theirs, ours in names.items()}
    found: dict[str, Any] = {name: float(match[1]) for name, match in matches.items() if match}
    if betas := re.search(rf"\bbetas {number}/{number}", text):
        found["betas"] = (float(betas[1]), float(betas[2]))
    return found


def own_name(case: Case, name: str) -> str:
    """What a parameter of the file is called here."""
    for theirs, ours in case.names.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def start(case: Case, facts, tensors: Tensors, dtype: torch.dtype = torch.float32) -> Run:
    """The model of a case, with the parameters and buffers of its file."""
    clip = tiny_clip(facts["clip_seed"], dtype=dtype)
    companions = {name: copy.deepcopy(one).to(dtype) for name, one in case.companions.items()}
    method = make_method(case.method, clip, case.config, files=case.files, companions=companions).to(dtype)
    given = {own_name(case, name.split("/", 1)[1]): t for name, t in tensors.items() if name.startswith(STATE)}
    own = method.state_dict()
    restore(method, {**own, **{name: tensor.clone() for name, tensor in given.items()}})
    if strange := sorted(set(given) - set(own)):
        raise KeyError(f"{case.method} has no parameter called {', '.join(strange)}")
    model = dear.Model(clip, method, case.classes, trained_on=case.classes.names, companions=companions)
    return Run(case, facts, tensors, model, dtype=dtype)


def step_images(run: Run) -> StepImages:
    """The step's images as the engine is given them."""
    pictures = {"images": run.tensors["input/images"].float()}
    if "input/images_plain" in run.tensors:
        pictures["plain:images"] = run.tensors["input/images_plain"].float()
    count = pictures["images"].shape[0]
    labels = run.tensors.get("input/labels", torch.zeros(count, dtype=torch.int64))
    return StepImages(pictures, labels, torch.arange(count), count, ())


def take_steps(run: Run, count: int) -> Tensors:
    """`count` updates on the same batch; what they leave, and the loss of each, as the file would name them."""
    recipe, method = run.case.recipe, run.model.method
    optimiser = make_optimiser(recipe, method.trained)
    found: Tensors = {}
    for step in range(1, count + 1):
        for group in optimiser.param_groups if run.case.steps else ():
            group["lr"] = rate(recipe, group["base_lr"], step - 1, 1, run.case.steps)
        share = _share(run, step)
        if step == 1:
            run.share = share
            run.out = share.out
        found |= {f"loss{step}/{name}": torch.tensor(value / share.rows) for name, value in share.sums.items()}
        mean = {t: {n: g / share.rows for n, g in by_name.items()} for t, by_name in share.grads.items()}
        if step == 1:
            combined = method.combine(mean) if mean else {}
            found |= {f"grad/{name}": gradient.clone() for name, gradient in combined.items()}
            found |= {f"grad_{t}/{n}": g.clone() for t, by_name in mean.items() for n, g in by_name.items()}
            mean = followed(run, mean)
        update(method, optimiser, NO_SCALER, mean, recipe.clip_norm, share, step)
        found |= {f"step{step}/{name}": tensor.detach().clone() for name, tensor in method.state_dict().items()}
    return found


def followed(run: Run, mean: Grads) -> Grads:
    """In double precision Adam's first step takes the file's gradients, which are compared themselves: it would make
    steps of their rounding errors.
    """
    if run.dtype != torch.float64 or run.case.recipe.optimiser == "sgd" or set(mean) != {"total"}:
        return mean
    theirs = {own_name(run.case, n[5:]): t for n, t in run.tensors.items() if n.startswith("grad/")}
    return {"total": {name: theirs.get(name, gradient) for name, gradient in mean["total"].items()}}


def _share(run: Run, step: int) -> Share:
    how = {"seed": 0, "step": step, "micro_batch": None, "precision": "fp32", "scaler": NO_SCALER}
    return share_of_step(run.model, step_images(run), **how, given=run.case.draws)


def compare(path: Path, reader: Reader) -> tuple[list[Difference], list[str]]:
    """Every difference of a file, and the names of what was not compared.

    Adam divides a gradient by its size, so that rounding decides where one is almost zero. What does not fit is
    therefore computed in double precision, too, with the file's gradients in Adam's first step, and has to fit then,
    within the same tolerance.
    """
    differences, unread = compare_in(torch.float32, path, reader)
    if any(not one.fits for one in differences):
        again = {one.name: one for one in compare_in(torch.float64, path, reader)[0]}
        differences = [one if one.fits else replace(again[one.name], in_double=True) for one in differences]
    return differences, unread


def compare_in(dtype: torch.dtype, path: Path, reader: Reader) -> tuple[list[Difference], list[str]]:
    """The same in one precision."""
    facts, tensors = read_pair(path)
    if dtype == torch.float64:
        tensors = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    case, further = reader(facts, tensors), list[Difference]()
    run = start(case, facts, tensors, dtype)
    case.prepare(run)
    ours = dict(before_training(run))
    ours |= case.found(run)  # before the steps change anything
    if "loss/total" in tensors and not case.by_itself:
        steps = take_steps(run, 2)
        ours |= {**_renamed(steps, facts, tensors), **case.later(run, steps)}
        further = case.further(run, steps)
        assert run.out is not None
        ours.setdefault("out/logits", run.out.logits.detach())
    differences, unread = further, []
    for name, theirs in {**tensors, **case.expected}.items():
        group, _, rest = name.partition("/")
        mine = name if name in ours else f"{group}/{own_name(case, rest)}"
        if mine in ours:
            differences.append(difference(name, ours[mine], theirs, case))
        elif not name.startswith((*GIVEN, *case.unread)):
            unread.append(name)
    for name, theirs in second_losses(facts).items():
        differences.append(difference(name, ours[name], torch.tensor(theirs), case))
    return differences, unread


@torch.no_grad()
def before_training(run: Run) -> Tensors:
    """What every model can be asked: answers in evaluation mode."""
    if "input/images" not in run.tensors:
        return {}
    out = run.model(run.tensors["input/images"].float())
    found = {"out/logits_eval": out.logits}
    if "out/logits_eval" not in run.tensors and "out/logits" in run.tensors:
        found["out/logits"] = out.logits  # "evaluation logits equal training logits"
    return found


def _renamed(steps: Tensors, facts, tensors: Tensors) -> Tensors:
    """Losses of the first step as "loss/NAME", of the second as "second/NAME"."""
    found = {name: tensor for name, tensor in steps.items() if not name.startswith("loss")}
    found |= {f"loss/{name[6:]}": tensor for name, tensor in steps.items() if name.startswith("loss1/")}
    found |= {f"second/{name[6:]}": tensor for name, tensor in steps.items() if name.startswith("loss2/")}
    found["loss/second_step"] = found["second/total"]
    for name in (name for name in tensors if name.startswith("grad/") and name not in found):
        if name.removeprefix("grad/") in facts.get("no_gradient", ()):
            found[name] = torch.zeros_like(tensors[name])
    return found


def second_losses(facts) -> dict[str, float]:
    """The losses of a second step on the same batch, where a file tells them."""
    second = facts.get("loss_at_second_step", facts.get("second_step"))
    if isinstance(second, dict):
        second = second.get("losses", second)
        return {f"second/{name}": value for name, value in second.items() if isinstance(value, float)}
    return {} if second is None else {"second/total": second}


def difference(name: str, ours: Tensor, theirs: Tensor, case: Case) -> Difference:
    """The largest difference; of gradients in units of max(1, largest entry)."""
    group = name.split("/", 1)[0]
    kind = {"loss": "losses", "second": "losses"}.get(group, "gradients" if group.startswith("grad") else group)
    kind = "logits" if "logits" in name else kind
    if ours.shape != theirs.shape:
        raise ValueError(f"{name} is {tuple(ours.shape)}, but {tuple(theirs.shape)} in the file")
    usual = UPDATE_TOLERANCE if kind in ("step1", "step2") else TOLERANCE
    allowed = case.tolerance.get(name, case.tolerance.get(group, usual))
    errors = (ours.detach().double() - theirs.double()).abs()
    if isinstance(allowed, Tensor):  # in units of the strictest
        errors, allowed = errors * (allowed.min() / allowed), float(allowed.min())
    error = float(errors.max()) if theirs.numel() else 0.0
    if kind == "gradients":
        error /= max(1.0, float(theirs.double().abs().max()))
    return Difference(name, kind, error, allowed)
