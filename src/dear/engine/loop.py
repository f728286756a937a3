"""The training loop. One step: a batch of views, the method's loss, gradients over all processes, one update."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dear.engine.checkpoint import Pace, Progress, read_checkpoint, write_checkpoint
from dear.engine.feed import Feed, StepImages
from dear.engine.gradients import Grads, Share, share_of_step
from dear.engine.optim import Average, Best, epoch_weights, make_optimiser, rate, total_steps
from dear.engine.ranks import Ranks
from dear.errors import ConfigError, DataError, TrainingError, option
from dear.methods.base import Method
from dear.methods.recipe import Recipe
from dear.model.load import restore
from dear.model.model import Model
from dear.options.parts import Training

Metrics = dict[str, Any]


def train(
    model: Model,
    feed: Feed,
    recipe: Recipe,
    settings: Training | None = None,
    *,
    shots: int = 0,
    seed: int = 0,
    checkpoint: Path | None = None,
    owner: str = "",
    resume: bool = False,
    checkpoint_every: int = 50,
    judge: Callable[[], float] | None = None,
    on_step: Callable[[Metrics], None] | None = None,
) -> Progress:
    """Train a model in place by a recipe; `resume` continues from the checkpoint, `judge` rates epochs for patience.

    The same recipe ends in the same bytes, however often the training was stopped and resumed. The first process alone
    writes checkpoints and calls `on_step`, the latter first: a step that is in a checkpoint has been reported.
    """
    settings, ranks, method = settings or Training(), feed.ranks, model.method
    last = total_steps(recipe, feed.steps_per_epoch, shots)
    if not method.trained or not last:
        return Progress()
    check_whole_batch(method, settings.micro_batch, ranks.world)
    doing = _Stepper(model, feed, recipe, settings, last, seed)
    progress, sums = Progress(), dict[str, Tensor]()
    if checkpoint is not None and resume:
        progress, sums = read_checkpoint(checkpoint, method, doing.optimiser, owner=owner)
        doing.continue_scale(progress.scaler)
    weights = epoch_weights(recipe, -(-last // feed.steps_per_epoch))
    average, clock, lost = Average(weights, sums) if weights else None, time.perf_counter(), 0
    pace = Pace(method, checkpoint_every)
    best = Best(recipe.patience, judge, progress.best, sums) if recipe.patience and judge else None
    keeps, over = average or best, best is not None and best.waited(progress.step // feed.steps_per_epoch)
    for images in feed.batches(progress.step, progress.step if over else last):
        step, epoch = progress.step + 1, progress.step // feed.steps_per_epoch
        ends_epoch = step % feed.steps_per_epoch == 0 or step == last
        met = doing(images, step)
        progress = replace(progress, step=step, skipped=progress.skipped + len(met.problems), scaler=doing.scale)
        lost += len(met.problems)
        if step % feed.steps_per_epoch == 0:
            _stop_if_data_is_gone(lost, feed.count, epoch, met.problems)
            lost = 0
        if average is not None and ends_epoch:
            average.add(epoch, method.state_dict())
        if best is not None and ends_epoch:
            best.add(epoch + 1, method.state_dict(), ranks)
            progress = replace(progress, best=best.found)
        if ranks.is_first and on_step:
            speed, clock = met.rows / (time.perf_counter() - clock), time.perf_counter()
            facts = {"step": step, "steps": last, "epoch": epoch + 1, "lr": doing.lr, "skipped": progress.skipped}
            on_step({**facts, **met.terms, "images_per_second": speed, "problems": met.problems})
        if ranks.is_first and checkpoint and pace.due(step, ends_epoch=ends_epoch, ends=step == last):
            write_checkpoint(checkpoint, method, doing.optimiser, progress, keeps.sums if keeps else None, owner=owner)
        if best is not None and ends_epoch and best.waited(epoch + 1):
            break
    if keeps is not None:
        restore(method, keeps.sums)
    return progress


class _Stepper:
    """What every step needs: optimiser, precision, scaler; called with a step's images, it makes the update."""

    def __init__(self, model: Model, feed: Feed, recipe: Recipe, settings: Training, last: int, seed: int) -> None:
        self._model, self._feed, self._recipe, self._last, self._seed = model, feed, recipe, last, seed
        self._micro_batch = settings.micro_batch
        self._precision = resolve_precision(settings.precision, model.clip.device)
        self.optimiser = make_optimiser(recipe, model.method.trained)
        enabled = self._precision == "fp16"
        self.scaler = torch.amp.GradScaler(model.clip.device.type, 2.0**12, enabled=enabled)  # of a sum of losses

    @property
    def lr(self) -> float:
        """The learning rate of the first group."""
        rate_now: float = self.optimiser.param_groups[0]["lr"]
        return rate_now

    @property
    def scale(self) -> dict[str, Any] | None:
        """State of the gradient scaler, if there is one."""
        state: dict[str, Any] = self.scaler.state_dict()
        return state or None

    def continue_scale(self, state: Mapping[str, Any] | None) -> None:
        """Take over a scaler's state; a device whose precision needs no scaler has stored none."""
        if state:
            self.scaler.load_state_dict(dict(state))

    def __call__(self, images: StepImages, step: int) -> _Met:
        """One update from the images of all processes; nothing is changed if anything is not finite."""
        for group in self.optimiser.param_groups:
            base, floor, per_epoch = group["base_lr"], group["floor"], self._feed.steps_per_epoch
            group["lr"] = rate(self._recipe, base, step - 1, per_epoch, self._last, floor)
        share = share_of_step(
            self._model,
            images,
            seed=self._seed,
            step=step,
            micro_batch=self._micro_batch,
            precision=self._precision,
            scaler=self.scaler,
        )
        method, ranks = self._model.method, self._feed.ranks
        met = _together(share, images.problems, ranks)
        _stop_if_not_finite(met.terms, step)
        if met.rows:
            overflow = self.scaler.is_enabled()
            grads = _mean_gradients(share.grads, met, method, ranks, step, overflow_is_fine=overflow)
            update(method, self.optimiser, self.scaler, grads, self._recipe.clip_norm, share, step)
        return met


def _stop_if_data_is_gone(lost: int, count: int, epoch: int, problems: Sequence[str]) -> None:
    """Bad images are skipped, but a training whose images have vanished must not end as a finished one."""
    if lost >= count:
        raise DataError(
            f"None of the {count} training images could be read in epoch {epoch + 1}; the last: {problems[-1]} "
            f"Put the images back and resume with {option(resume=True)}."
        )


def check_whole_batch(method: Method, micro_batch: int | None, processes: int) -> None:
    """Refuse to cut a batch whose images the loss, or a rewritten buffer, couples."""
    cut = option(micro_batch=micro_batch) if micro_batch else "several processes" if processes > 1 else ""
    couples = method.needs_whole_batch or (micro_batch and method.needs.views > 1)
    if cut and couples:
        raise ConfigError(f"{method.name} needs the whole batch at once: train it without {cut}.")


def resolve_precision(wanted: str, device: torch.device) -> str:
    """The precision that "auto" stands for on a device."""
    if wanted != "auto":
        return wanted
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"


class _Met(NamedTuple):
    """A step over all processes: rows, means of the loss terms, problems, and which gradients exist anywhere."""

    rows: int
    terms: dict[str, float]
    problems: list[str]
    places: list[tuple[str, str]]


def _together(share: Share, problems: Sequence[str], ranks: Ranks) -> _Met:
    has = [[term, name] for term, of_term in share.grads.items() for name in of_term]
    own = {"rows": share.rows, "sums": share.sums, "problems": list(problems), "has": has}
    shares = [json.loads(one) for one in ranks.gather(json.dumps(own))]
    rows = sum(one["rows"] for one in shares)
    names = dict.fromkeys(name for one in shares for name in one["sums"])
    terms = {name: sum(one["sums"].get(name, 0.0) for one in shares) / rows for name in names}
    places = dict.fromkeys((term, name) for one in shares for term, name in one["has"])
    return _Met(rows, terms, [problem for one in shares for problem in one["problems"]], list(places))


def _mean_gradients(
    grads: Grads, met: _Met, method: Method, ranks: Ranks, step: int, *, overflow_is_fine: bool
) -> Grads:
    """Turn the sums of every process into means over all rows; every process has the same list of gradients."""
    parameters = method.trained
    if not met.places:
        return {}
    own = [grads.get(term, {}).get(name) for term, name in met.places]
    filled = [
        torch.zeros_like(parameters[name]) if one is None else one
        for one, (_, name) in zip(own, met.places, strict=True)
    ]
    flat = torch.cat([one.flatten() for one in filled])
    ranks.sum_(flat)
    flat /= met.rows
    if not overflow_is_fine and not bool(flat.isfinite().all()):
        raise TrainingError(_not_finite("gradient", step))
    found: Grads = {}
    for (term, name), part in zip(met.places, torch.split(flat, [one.numel() for one in filled]), strict=True):
        found.setdefault(term, {})[name] = part.view_as(parameters[name])
    return found


def update(
    method: Method,
    optimiser: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    grads: Grads,
    clip_norm: float | None,
    share: Share,
    step: int,
) -> None:
    """One update by mean gradients; a parameter without gradient is left alone."""
    if not grads:
        return
    combined = method.combine(grads)
    for name, parameter in method.trained.items():
        parameter.grad = combined.get(name)
    if clip_norm is not None:
        scaler.unscale_(optimiser)
        nn.utils.clip_grad_norm_(list(method.trained.values()), clip_norm)
    method.before_update()
    scale = scaler.get_scale()
    scaler.step(optimiser)
    scaler.update()
    skipped = scaler.get_scale() < scale  # the gradient overflowed
    if broken := [name for name, tensor in method.named_parameters() if not bool(tensor.isfinite().all())]:
        raise TrainingError(
            f"The update of step {step} made {broken[0]} infinite, so the training stops: lower the learning rate; the "
            f"last checkpoint is whole."
        )
    if share.out is not None and not skipped and method.overrides("after_step"):
        method.after_step(share.out)


def _stop_if_not_finite(terms: Mapping[str, float], step: int) -> None:
    for name, value in terms.items():
        if not math.isfinite(value):
            raise TrainingError(_not_finite(f"loss ({name})", step))


def _not_finite(what: str, step: int) -> str:
    return (
        f"The {what} of step {step} is not finite, and nothing was changed by it: lower the learning rate, "
        f"or check the images; the last checkpoint is whole."
    )
