"""Pre-train the world's CLIP: a deterministic loop that can be resumed from its checkpoint."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dear.errors import ConfigError, OverwriteError, option
from dear.world.clip import Kind, build, config, load_tokenizer, to_input, write_folder, write_tokenizer
from dear.world.grammar import random_prompt
from dear.world.losses import PROMPT_COUNTS, UNKNOWN, StepData, total_loss
from dear.world.samples import pretraining_pair, truth
from dear.world.vocabulary import ATTRIBUTES, NAMES

CHECKPOINT = "checkpoint.safetensors"
LOG = "log.jsonl"
_PROMPT_STREAM, _PATCH_STREAM, _LIGHT_STREAM, _RESTART_STREAM = 3, 4, 5, 6


@dataclass(frozen=True)
class PretrainSettings:
    """Settings of pre-training; they determine the result."""

    seed: int = 0
    steps: int = 2000
    shards: int = 2  # number of shards per batch, each with its own loss; computed in parallel threads
    shard: int = 96  # images per shard
    captions: int = 24  # images of a shard that come with a caption
    asked: int = 2  # attributes per step whose values all have prompts, in turn
    lr: float = 1.5e-3
    weight_decay: float = 0.05
    warmup: int = 40  # steps
    cooldown: float = 0.35  # fraction of the steps in which the learning rate falls to zero
    dense_from: int = 250  # from this step on all patches are visible (outlines need them)
    kept: int = 24  # visible patches before that step, which is twice as fast
    patch_weight: float = 1.0  # weight of the per-patch loss, which falls with the learning rate
    gray: int = 24  # images of a shard (without captions) that are shown in gray
    faded: float = 0.3  # fraction of the images that lose contrast
    restarts: float = 0.75  # fraction of the images whose [CLS] is reset before the late layers
    kind: Kind = "clip"

    def __post_init__(self) -> None:
        """Check that gray images have no captions, which may mention colours."""
        if self.captions + self.gray > self.shard:
            raise ConfigError(f"{self.captions} captions and {self.gray} gray images do not fit {self.shard} images.")

    @property
    def plateau(self) -> int:
        """The step at which the cool-down starts. Up to it, a run does not depend on its total length."""
        return round((1 - self.cooldown) * self.steps)


def learning_rate(step: int, settings: PretrainSettings) -> float:
    """Return the learning rate of a step (counted from 0): linear warm-up, plateau, linear cool-down."""
    return settings.lr * min(1.0, (step + 1) / settings.warmup) * remaining(step, settings)


def remaining(step: int, settings: PretrainSettings) -> float:
    """Return 1 before the cool-down and the remaining fraction of it afterwards, never exactly 0."""
    return min(1.0, (settings.steps - step) / (settings.steps - settings.plateau))


def _uniform(stream: int, settings: PretrainSettings, number: int, count: int) -> Tensor:
    """Return `count` random numbers from 0 to 1 that depend on the seed and the number of the shard."""
    raw = np.random.PCG64(np.random.SeedSequence((stream, settings.seed, number))).random_raw(count)
    return torch.from_numpy((raw >> 11).astype(np.float64) / 2**53).float()


def change_light(images: Tensor, settings: PretrainSettings, number: int) -> Tensor:
    """Make the last images of a shard gray, and reduce the contrast of some: shapes must be recognised without both."""
    chance, contrast, level = _uniform(_LIGHT_STREAM, settings, number, 3 * len(images)).view(3, -1, 1, 1, 1)
    first_gray = len(images) - settings.gray
    gray = images[first_gray:].mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    images = torch.cat([images[:first_gray], gray])
    contrast, level = 0.3 + 0.7 * contrast, 2 * level - 1
    return torch.where(chance < settings.faded, level + contrast * (images - level), images)


def make_batch(settings: PretrainSettings, step: int, shard: int, tokenizer: Any) -> StepData:
    """Return the data of one shard of a step, which depends only on (seed, step, shard)."""
    size, number = settings.shard, step * settings.shards + shard
    pairs = [pretraining_pair(settings.seed, number * size + i) for i in range(size)]
    asked = tuple((settings.asked * number + i) % len(ATTRIBUTES) for i in range(settings.asked))
    prompts = [
        random_prompt(ATTRIBUTES[a], value, (_PROMPT_STREAM, settings.seed, number, a, value))
        for a in asked
        for value in range(len(NAMES[ATTRIBUTES[a]]))
    ]
    visible = None
    if step < settings.dense_from:
        raw = np.random.PCG64(np.random.SeedSequence((_PATCH_STREAM, settings.seed, number))).random_raw(size * 64)
        order = np.argsort(raw.reshape(size, 64), axis=1, kind="stable")[:, : settings.kept]
        visible = torch.from_numpy(np.sort(order, axis=1))
    values = torch.tensor([truth(pair.scene) for pair in pairs])
    values[size - settings.gray :, ATTRIBUTES.index("color")] = UNKNOWN
    return StepData(
        images=change_light(to_input([pair.image for pair in pairs]), settings, number),
        tokens=tokenizer([pair.text for pair in pairs[: settings.captions]]),
        asked=asked,
        prompt_tokens=tokenizer(prompts),
        truth=values,
        mentioned=torch.tensor([[a in pair.mentioned for a in ATTRIBUTES] for pair in pairs[: settings.captions]]),
        shape_patches=torch.from_numpy(np.stack([pair.shape_patches for pair in pairs])).float() / 256,
        object_patches=torch.from_numpy(np.stack([pair.object_patches for pair in pairs])).float() / 256,
        visible=visible,
        restarted=_uniform(_RESTART_STREAM, settings, number, size) < settings.restarts,
    )


class Learner(nn.Module):
    """The trained modules: the model, and the anchors that are discarded at the end."""

    def __init__(self, seed: int, kind: Kind) -> None:
        """Build both from a seed."""
        super().__init__()
        self.kind: Kind = kind
        self.clip = build(seed, kind)
        noise = torch.randn(sum(PROMPT_COUNTS), config()["model_cfg"]["embed_dim"], generator=_generator(seed))
        self.anchors = nn.Parameter(F.normalize(noise, dim=-1))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_optimizer(model: nn.Module, settings: PretrainSettings) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices only."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim >= 2 and "embedding" not in name]
    others = [p for name, p in named if not (p.ndim >= 2 and "embedding" not in name)]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.98), eps=1e-8)


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, settings: PretrainSettings
) -> None:
    """Write model, optimizer and step to one file, atomically."""
    tensors = {f"model.{name}": value.detach().contiguous() for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        tensors[f"mean.{name}"], tensors[f"square.{name}"] = state["exp_avg"], state["exp_avg_sq"]
    metadata = {"format": "1", "step": str(step), "settings": json.dumps(asdict(settings), sort_keys=True)}
    draft = path.with_suffix(".tmp")
    save_file(tensors, draft, metadata=metadata)
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(path)


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, settings: PretrainSettings) -> int:
    """Load a checkpoint into model and optimizer, and return its step.

    Before the cool-down the total number of steps may be changed, because the run up to there does not depend on it.
    """
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    step, made_with = int(metadata["step"]), json.loads(metadata["settings"])
    before = PretrainSettings(**made_with)
    same_so_far = step <= min(settings.plateau, before.plateau)
    if replace(before, steps=settings.steps if same_so_far else before.steps) != settings:
        raise ConfigError(f"{path} was made with other settings ({metadata['settings']}): resume with the same ones.")
    model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(float(step)),
            "exp_avg": tensors[f"mean.{name}"],
            "exp_avg_sq": tensors[f"square.{name}"],
        }
    return step


def _prepare(out: Path, resume: bool) -> None:
    if out.exists() and any(out.iterdir()) and not resume:
        raise OverwriteError(f"{out} is not empty: resume with {option(resume=True)}, or choose another folder.")
    if resume and not (out / CHECKPOINT).is_file():
        raise ConfigError(f"{out} contains no {CHECKPOINT} to resume from: start without {option(resume=True)}.")
    out.mkdir(parents=True, exist_ok=True)


def _trim_log(path: Path, step: int) -> None:
    """Remove the log lines of steps after the checkpoint."""
    if path.is_file():
        lines = [line for line in path.read_text().splitlines() if json.loads(line).get("step", 0) <= step]
        path.write_text("".join(line + "\n" for line in lines))


class Threads:
    """Two pools of single-threaded workers: one computes shards, one renders the data of the next step meanwhile.

    On a busy machine, independent shards on two cores are faster than one batch that synchronises at every operation.
    """

    def __init__(self, settings: PretrainSettings, tokenizer: Any, last: int) -> None:
        """Start the workers."""
        self.compute = ThreadPoolExecutor(settings.shards, initializer=torch.set_num_threads, initargs=(1,))
        self._draw = ThreadPoolExecutor(1)
        self._make = lambda step, shard: make_batch(settings, step, shard, tokenizer)
        self._shards, self._last = settings.shards, last
        self._ready: dict[int, list[Future[StepData]]] = {}

    def batches(self, step: int) -> list[StepData]:
        """Return the shards of a step, and start rendering those of the next."""
        for wanted in (step, step + 1):
            if wanted < self._last and wanted not in self._ready:
                self._ready[wanted] = [self._draw.submit(self._make, wanted, shard) for shard in range(self._shards)]
        return [future.result() for future in self._ready.pop(step)]

    def close(self) -> None:
        """Stop the workers."""
        self.compute.shutdown(cancel_futures=True)
        self._draw.shutdown(cancel_futures=True)


def shard_gradients(
    model: Learner, batch: StepData, patch_weight: float
) -> tuple[dict[str, float], tuple[Tensor, ...]]:
    """Return one shard's loss with its terms, and its gradients."""
    loss, terms = total_loss(model.clip, model.anchors, batch, patch_weight, model.kind)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return {"loss": float(loss.detach())} | {name: float(value) for name, value in terms.items()}, gradients


def train_step(
    model: Learner, optimizer: torch.optim.Optimizer, threads: Threads, settings: PretrainSettings, step: int
) -> dict[str, float]:
    """Make one update from the mean of the shards' gradients; return the means of their losses."""
    rate = learning_rate(step, settings)
    for group in optimizer.param_groups:
        group["lr"] = rate
    weight = settings.patch_weight * remaining(step, settings)
    work = [threads.compute.submit(shard_gradients, model, batch, weight) for batch in threads.batches(step)]
    results = [future.result() for future in work]  # in the order of the shards, not of completion
    metrics = {name: sum(terms[name] for terms, _ in results) / len(results) for name in results[0][0]}
    if not math.isfinite(metrics["loss"]):
        raise FloatingPointError(f"The loss of step {step + 1} is not finite: lower the learning rate.")
    for i, parameter in enumerate(model.parameters()):
        parameter.grad = torch.stack([gradients[i] for _, gradients in results]).mean(dim=0)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        model.clip.logit_scale.clamp_(max=math.log(100.0))  # type: ignore[operator]
    return metrics | {"lr": rate, "grad": float(norm)}


def pretrain(
    out: Path,
    settings: PretrainSettings,
    *,
    resume: bool = False,
    stop_after: int | None = None,
    checkpoint_every: int = 100,
    log_every: int = 1,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> int:
    """Train up to the last step (or up to `stop_after`) and return the number of steps done.

    The folder contains the log, the checkpoint and, after the last step, the open_clip folder `out/clip`.
    """
    _prepare(out, resume)
    write_tokenizer(out)
    tokenizer = load_tokenizer(out)
    model = Learner(settings.seed, settings.kind).train()
    optimizer = make_optimizer(model, settings)
    step = load_checkpoint(out / CHECKPOINT, model, optimizer, settings) if resume else 0
    _trim_log(out / LOG, step)
    last = min(settings.steps, stop_after or settings.steps)
    threads = Threads(settings, tokenizer, last)
    start = time.monotonic()
    with (out / LOG).open("a") as log:
        event: dict[str, Any] = {"event": "start", "step": step, "settings": asdict(settings)}
        log.write(json.dumps(event | {"threads": torch.get_num_threads(), "torch": torch.__version__}) + "\n")
        while step < last:
            metrics = train_step(model, optimizer, threads, settings, step)
            step += 1
            if step % log_every == 0 or step == last:
                line = {"step": step} | metrics | {"seconds": round(time.monotonic() - start, 1)}
                log.write(json.dumps(line) + "\n")
                log.flush()
            if step % checkpoint_every == 0 or step == last:
                save_checkpoint(out / CHECKPOINT, model, optimizer, step, settings)
            if on_step:
                on_step(step, metrics)
    threads.close()
    if step == settings.steps:
        write_folder(model.clip, out / "clip", settings.kind)
    return step
