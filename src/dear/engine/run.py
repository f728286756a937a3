"""A run: everything that decides its result, the folder it lives in, and training it to its end."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dear import __version__
from dear.artefact import CARD, MANIFEST, TENSORS
from dear.backbone.clip import FrozenClip
from dear.data.dataset import Dataset, Item
from dear.data.splits import shots_to_json
from dear.engine.checkpoint import Progress
from dear.engine.feed import Feed, live_views
from dear.engine.loop import Metrics, TrainSettings, train
from dear.engine.ranks import join
from dear.engine.states import cached_views
from dear.errors import ArtefactError, ConfigError, DataError, DearError, TrainingError
from dear.files import prepare_folder, sha256, write_atomic
from dear.methods.base import Method
from dear.methods.registry import get_method

RUN, SHOTS, METRICS, CHECKPOINT = "run.json", "shots.json", "metrics.jsonl", "checkpoint.safetensors"
OURS = (MANIFEST, TENSORS, CHECKPOINT, METRICS, SHOTS, RUN)
"""What starting again removes, in this order: what is left by a kill in between still says what it belongs to."""
FORMAT, FORMAT_VERSION = "dear-run", 1


@dataclass(frozen=True)
class Job:
    """What to train: a method, its choices, on which items of a data set, in which way, from which seed."""

    dataset: Dataset
    items: tuple[Item, ...]
    """Training images; labels are places in `class_names`."""
    class_names: tuple[str, ...]
    shots: int
    seed: int = 1
    method: str = "dear"
    choices: Mapping[str, Any] = field(default_factory=dict)
    train: TrainSettings = field(default_factory=TrainSettings)
    cached_views: int = 0
    """0: every epoch draws new views; else so many stored views an image."""

    def build(self, clip: FrozenClip) -> Method:
        """The untrained model with its classes set."""
        model = get_method(self.method).build(clip, seed=self.seed, choices=self.choices)
        model.set_classes(self.class_names, self.dataset.template)
        return model


def describe(job: Job, model: Method) -> dict[str, Any]:
    """Everything that decides a job's result, as plain values."""
    clip = model.clip
    return {
        "data": job.dataset.name,
        "template": job.dataset.template,
        "classes": list(job.class_names),
        "shots": job.shots,
        "items_sha256": sha256(json.dumps([list(item) for item in job.items]).encode()),
        "seed": job.seed,
        "method": job.method,
        "settings": model.settings(),
        "files_sha256": {name: sha256(text.encode()) for name, text in model.artefact_files().items()},
        "train": job.train.model_dump(),
        "cached_views": job.cached_views,
        "backbone": {
            "name": clip.name,
            "pretrained": clip.pretrained,
            "precision": clip.precision,
            "weights_sha256": clip.weights_sha256,
        },
    }


def fingerprint(description: Mapping[str, Any]) -> str:
    """Hash of a description; a backbone counts by its weights, not by the name it was asked for."""
    backbone = {key: description["backbone"][key] for key in ("precision", "weights_sha256")}
    return sha256(json.dumps({**description, "backbone": backbone}, sort_keys=True).encode())


def versions() -> dict[str, str]:
    """Versions of what computes."""
    packages = {name: version(name) for name in ("torch", "open_clip_torch")}
    return {"dear": __version__, "python": platform.python_version(), **packages}


def run_job(
    job: Job,
    clip: FrozenClip,
    folder: Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    cache: Path | None = None,
    workers: int = 2,
    on_step: Callable[[Metrics], None] | None = None,
    on_cache: Callable[[int], None] | None = None,
) -> tuple[Method, Progress]:
    """Train a job to its end. With a folder, nothing is lost: stop it at any moment and resume.

    Under `torchrun` every process trains the same model; the first one writes.
    """
    if job.cached_views and cache is None:
        raise ConfigError("Cached views need a folder to be kept in: give cache=FOLDER or --cache FOLDER.")
    model, ranks = job.build(clip), join(clip.device)
    if folder is not None and ranks.is_first:
        _begin(folder, job, model, resume=resume, overwrite=overwrite)
    ranks.wait()
    checkpoint = folder / CHECKPOINT if folder else None
    resuming = resume and checkpoint is not None and checkpoint.is_file()
    if job.cached_views and cache is not None and model.trainable():
        read = cached_views(
            model,
            job.dataset,
            job.items,
            views=job.cached_views,
            seed=job.seed,
            cache=cache,
            workers=workers,
            ranks=ranks,
            progress=on_cache,
        )
    else:
        read = live_views(job.dataset, job.items, clip.preprocess_train, job.seed)
    labels = [item.label for item in job.items]
    feed = Feed(read, labels, batch=job.train.batch, seed=job.seed, workers=workers, ranks=ranks)
    log = StepLog(folder / METRICS, resuming) if folder and ranks.is_first else None

    def tell(metrics: Metrics) -> None:
        for listener in (log, on_step):
            if listener:
                listener(metrics)

    progress = train(model, feed, job.train, checkpoint=checkpoint, resume=resuming, on_step=tell)
    if folder is not None and ranks.is_first:
        with _one_sentence(folder):
            model.save_pretrained(folder, overwrite=True)
    ranks.wait()
    return model, progress


def _begin(folder: Path, job: Job, model: Method, *, resume: bool, overwrite: bool) -> None:
    """Make the folder and write down what is being done, or see that it is the same as before."""
    description = describe(job, model)
    with _one_sentence(folder):
        prepare_folder(folder, OURS, resume=resume, overwrite=overwrite)
        for name in (*OURS, CARD, *model.artefact_files()):
            for left_by_a_kill in folder.glob(f".{name}.*"):
                left_by_a_kill.unlink(missing_ok=True)
        if resume and (folder / RUN).is_file():
            _check_same(folder, description)
            return
        if resume and (others := [path.name for path in folder.iterdir() if path.name != SHOTS]):
            raise ConfigError(
                f"{folder} holds {others[0]} but no {RUN}, so it is no run to resume: give another folder, or start "
                f"a run in this one with --overwrite."
            )
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "description": description,
        "fingerprint": fingerprint(description),
        "source": {"data": job.dataset.source, "root": job.dataset.root},
        "versions": versions(),
    }
    with _one_sentence(folder / SHOTS):
        write_atomic(folder / SHOTS, shots_to_json(job.dataset, job.items, shots=job.shots, seed=job.seed).encode())
    with _one_sentence(folder / RUN):
        write_atomic(folder / RUN, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def _check_same(folder: Path, description: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that was begun in another way."""
    before = read_run(folder)["description"]
    if fingerprint(before) == fingerprint(description):
        return
    old, new = _flat(before), _flat(json.loads(json.dumps(description)))
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    raise ConfigError(
        f"{folder} was begun with other settings ({', '.join(differing)}): resume with the same ones, "
        f"or start again with --overwrite."
    )


def _flat(description: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by names such as train.lr."""
    flat: dict[str, Any] = {}
    for key, value in description.items():
        flat |= {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {key: value}
    return flat


@contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    """Turn a disk's refusal into one sentence."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DearError):
            raise
        raise TrainingError(
            f"{path} cannot be written ({error.strerror or error}); what was written before is whole: "
            f"put that right and go on with --resume."
        ) from error
    except ArtefactError as error:
        raise TrainingError(f"{error} The checkpoint is whole: put that right and go on with --resume.") from error


def read_run(folder: Path) -> dict[str, Any]:
    """What a run's folder says about it."""
    path = folder / RUN
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT or content["format_version"] > FORMAT_VERSION:
            raise ValueError
        fingerprint(content["description"])
    except OSError:
        raise DataError(f"{folder} is not a run of 'dear train': it has no {RUN}.") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is damaged, or was written by a newer version.") from None
    run: dict[str, Any] = content
    return run


class StepLog:
    """Writes a line of JSON a step; on resuming, forgets the steps after the checkpoint."""

    def __init__(self, path: Path, resuming: bool) -> None:
        self._path, self._fresh, self._trimmed = path, not resuming, False

    def __call__(self, metrics: Metrics) -> None:
        """Log one step."""
        line = json.dumps(metrics) + "\n"
        with _one_sentence(self._path):
            if not self._trimmed:
                self._trim(before=metrics["step"])
            with self._path.open("ab", buffering=0) as file:
                rest = memoryview(line.encode())
                while rest:
                    rest = rest[file.write(rest) :]

    def _trim(self, before: int) -> None:
        known = b"" if self._fresh or not self._path.exists() else self._path.read_bytes()
        kept = [line for line in known.split(b"\n") if _step_of(line) < before]
        write_atomic(self._path, b"".join(line + b"\n" for line in kept))
        self._trimmed = True


def _step_of(line: bytes) -> float:
    """The step a line tells of; a torn line tells of none."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
