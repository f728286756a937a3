"""The folder of a run: its record, its log, and how a new run replaces an old one without losing either."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import Any

from dear.data.dataset import Dataset
from dear.data.splits import shots_to_json
from dear.engine.job import Job, describe, fingerprint, same_config, versions
from dear.engine.loop import Metrics
from dear.engine.run_record import RunRecord
from dear.errors import ArtefactError, ConfigError, DataError, DearError, TrainingError, option
from dear.model.artefact import MANIFEST, TENSORS, files_of_adapter
from dear.model.model import Model
from dear.options.fields import IfExists
from dear.roles.rolemap import MapRecord
from dear.storage import documents
from dear.storage.files import read_regular, sync_folder, write_atomic
from dear.storage.locks import LOCK, MARKER, check_ours, remove_leftovers, remove_ours

RUN, SHOTS, METRICS, CHECKPOINT = "run.json", "shots.json", "metrics.jsonl", "checkpoint.safetensors"
IMAGES = ("items_sha256", "images_sha256", "held_sha256")
"""Entries of a description that follow from the training images."""
NEXT, MOVING = ".next", ".moving"
"""Where a run is made that will replace the one that is there."""
OURS = (MANIFEST, TENSORS, CHECKPOINT, METRICS, SHOTS, RUN)
"""What starting again removes, in this order: what is left by a kill in between still says what it belongs to."""


def works_beside(folder: Path, if_exists: IfExists) -> bool:
    """Whether a run is made beside the one that is there, which stays whole until its successor is."""
    begun = (folder / NEXT / RUN).is_file()
    return begun if if_exists == "resume" else if_exists == "overwrite" and (folder / RUN).is_file()


def finish_moving(folder: Path) -> None:
    """Finish what a killed process began: a run beside the old one that bears a manifest is whole."""
    work = folder / NEXT
    if (work / MANIFEST).is_file():
        put_in_place(work, folder)
    elif work.is_dir() and not (work / RUN).is_file():
        shutil.rmtree(work)


def put_in_place(work: Path, folder: Path) -> None:
    """Move a whole run to where the old one was; the manifest, which vouches for the rest, comes last."""
    if work == folder:
        return
    new = sorted((path for path in work.iterdir() if path.is_file()), key=lambda path: path.name == MANIFEST)
    if not (work / MOVING).exists():
        stale = {*OURS, *files_of_adapter(folder)}
        remove_ours(folder, sorted(stale - {path.name for path in new}))
        (work / MOVING).touch()  # from here on, a file that is not in `work` has been moved
    for path in new:
        if path.name not in (MARKER, LOCK, MOVING):
            path.replace(folder / path.name)
    shutil.rmtree(work)
    sync_folder(folder)


def begin_run(work: Path, job: Job, model: Model, folder: Path, if_exists: IfExists) -> None:
    """Write down what is being done, or see that it is the same as before."""
    description, resume, overwrite = describe(job, model), if_exists == "resume", if_exists == "overwrite"
    with one_sentence(folder):
        check_ours(folder, "run", resume=resume, overwrite=overwrite)
        if work != folder and not resume and work.exists():
            shutil.rmtree(work)
        work.mkdir(exist_ok=True)
        remove_leftovers(work)
        if resume and (work / RUN).is_file():
            _check_same(work, description, job.test_share)
            return
        if overwrite and work == folder:
            remove_ours(folder, OURS)
    content = {
        "description": description,
        "fingerprint": fingerprint(description),
        "source": {"data": job.dataset.source, "root": job.dataset.root, **_changes(job.dataset)},
        "test_share": job.test_share,
        "versions": versions(),
    }
    if (chunk := model.class_chunk()) is not None:
        content["class_chunk"] = chunk
    if job.listed is not None:
        content["other_shots"] = sorted({item.id for item in job.listed} - {item.id for item in job.items})
    if (record := MapRecord.of(model.method.files)) is not None:
        content["role_map"] = record.model_dump(mode="json")
    with one_sentence(work / SHOTS):
        write_atomic(work / SHOTS, shots_to_json(job.dataset, job.items, shots=job.shots, seed=job.seed).encode())
    with one_sentence(work / RUN):
        write_atomic(work / RUN, documents.as_bytes(RunRecord.encode(content)))


def _changes(dataset: Dataset) -> dict[str, Any]:
    """What was done to a data set since it was opened, if anything was."""
    changes = {"renamed": dict(dataset.renamed or {}), "added": list(dataset.added)}
    return {name: value for name, value in changes.items() if value}


def _check_same(folder: Path, description: Mapping[str, Any], test_share: float) -> None:
    """Refuse to resume a run that was begun in another way."""
    record = read_run(folder)
    before, share = record["description"], record.get("test_share", 0.0)
    known = same_config(before["backbone"].get("config_sha256"), description)
    if known and fingerprint(before) == fingerprint(description):
        return
    if known and fingerprint(_without_images(before)) == fingerprint(_without_images(description)):
        renewed = before.get("items_sha256") == description["items_sha256"]
        names = " under the same names" if renewed else ""
        again = "put those back" if renewed or share == test_share else f"resume with {option(test_share=share or 0)}"
        raise ConfigError(
            f"{folder} was begun with other training images{names}: {again}, or start over with "
            f"{option(overwrite=True)}."
        )
    old, new = _flat(before), _flat(json.loads(json.dumps(description)))
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    raise ConfigError(
        f"{folder} was begun with other settings ({', '.join(differing)}): resume with the same ones, "
        f"or start over with {option(overwrite=True)}."
    )


def _without_images(description: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in description.items() if name not in IMAGES}


def _flat(description: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by names such as train.lr."""
    flat: dict[str, Any] = {}
    for key, value in description.items():
        flat |= {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {key: value}
    return flat


@contextmanager
def one_sentence(path: Path) -> Iterator[None]:
    """Turn a disk's refusal into one sentence."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DearError):
            raise
        raise TrainingError(
            f"{path} cannot be written ({error.strerror or error}); what was written before is whole: "
            f"fix that and resume with {option(resume=True)}."
        ) from error
    except ArtefactError as error:
        message = f"{error} The checkpoint is whole: fix that and resume with {option(resume=True)}."
        raise TrainingError(message) from error


def read_run(folder: Path) -> dict[str, Any]:
    """The entries of a run's record."""
    try:
        content = RunRecord.read(folder / RUN).model_dump(exclude_unset=True)
    except OSError:
        raise DataError(f"{folder} is not a run of 'dear train': it has no {RUN}.") from None
    return {**content, "fingerprint": fingerprint(content["description"])}


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The steps that a run logged, [] if it logged none."""
    path = folder / METRICS
    if not path.is_file():
        return []
    rows: list[dict[str, Any]] = []
    for line in documents.read_text(path, error=DataError).splitlines():
        with suppress(DataError):  # a torn line has no step
            row = documents.parse(line, where=str(path), what="a log", error=DataError)
            if isinstance(row, dict):
                rows.append({name: value for name, value in row.items() if _is_finite(value)})
    return rows


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or isfinite(value)


class StepLog:
    """Writes one JSON line per step; on resuming, forgets the steps after the checkpoint."""

    def __init__(self, path: Path, resuming: bool) -> None:
        self._path, self._fresh, self._trimmed = path, not resuming, False

    def __call__(self, metrics: Metrics) -> None:
        """Log one step."""
        line = json.dumps(metrics) + "\n"
        with one_sentence(self._path):
            if not self._trimmed:
                self._trim(before=metrics["step"])
            with self._path.open("ab", buffering=0) as file:
                rest = memoryview(line.encode())
                while rest:
                    rest = rest[file.write(rest) :]

    def _trim(self, before: int) -> None:
        known = b"" if self._fresh or not self._path.exists() else read_regular(self._path)
        kept = [line for line in known.split(b"\n") if _step_of(line) < before]
        write_atomic(self._path, b"".join(line + b"\n" for line in kept))
        self._trimmed = True


def _step_of(line: bytes) -> float:
    """The step of a line; infinity for a torn line."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return float("inf")
