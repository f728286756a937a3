"""Pre-train the embedded world's CLIP, render the world, and score a CLIP on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dear.options.reading import check_values
from dear.options.tools import PretrainWorld, PreviewWorld, ScoreWorld
from dear.progress.display import watched
from dear.progress.stages import stage
from dear.storage.files import as_folder
from dear.workflows.machine import using_threads
from dear.world.clip import Kind, assets_folder, read_folder
from dear.world.datasets import dataset_names, load_world_dataset
from dear.world.pretrain import PretrainSettings, pretrain
from dear.world.preview import check_png, contact_sheet, write_png
from dear.world.score import score, score_table

PRETRAINING = "pre-training"
Progress = bool | Callable[[str, int, int], None]


def pretrain_world(
    out: str | Path,
    *,
    kind: Kind = "clip",
    seed: int = 0,
    steps: int = 2000,
    stop_after: int | None = None,
    resume: bool = False,
    checkpoint_every: int = 100,
    threads: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Train the world's CLIP from scratch on the CPU, and return the number of steps done.

    Args:
        out: folder for log, checkpoint and the finished CLIP.
        kind: "clip" is the shipped one; "plain" has heads that are not assigned to attributes; "siglip" has no [CLS]
            token, attention pooling, bidirectional text and a sigmoid loss.
        seed: random seed.
        steps: number of steps of the whole schedule.
        stop_after: stop after this step of the schedule.
        resume: resume an interrupted run.
        checkpoint_every: number of steps between checkpoints.
        threads: threads to compute with; by default all.
        progress: True for a bar on stderr, or a function of the name of a stage, the number done, the number of all.
    """
    check_values(
        PretrainWorld,
        kind=kind,
        seed=seed,
        steps=steps,
        stop_after=stop_after,
        resume=resume,
        checkpoint_every=checkpoint_every,
        threads=threads,
    )
    settings = PretrainSettings(seed=seed, steps=steps, kind=kind)
    total = min(steps, stop_after or steps)
    with using_threads(threads), watched(progress), stage(PRETRAINING, total, done=None) as advance:

        def show(step: int, metrics: dict[str, float]) -> None:
            advance(step, {**metrics, "total": metrics["loss"]})

        return pretrain(
            as_folder(out),
            settings,
            resume=resume,
            stop_after=stop_after,
            checkpoint_every=checkpoint_every,
            on_step=show,
        )


def preview_world(out: str | Path, what: str = "scenes", *, zoom: int = 2) -> Path:
    """Render a contact sheet of the world, and return its path.

    Args:
        out: PNG file to write.
        what: "color", "shape", "texture", "object", "location", "styles", "scenes", or a data set's name.
        zoom: enlargement factor.
    """
    check_values(PreviewWorld, what=what, zoom=zoom)
    path = as_folder(out)
    check_png(path)
    write_png(contact_sheet(what), path, zoom)
    return path


def score_world(
    clip: str | Path | None = None,
    *,
    images: int = 4000,
    per_class: int | None = None,
    data: Sequence[str] | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Measure zero-shot accuracy by kind of feature and by data set (all classes, base half, novel half).

    Args:
        clip: folder in OpenCLIP's format; by default the shipped weights.
        images: number of renderings that pre-training never used.
        per_class: test images per class; by default all.
        data: data sets of the world; by default all.
        threads: threads to compute with; by default all.
    """
    check_values(ScoreWorld, images=images, per_class=per_class, data=data, threads=threads)
    names = list(data) if data is not None else list(dataset_names())
    for name in names:
        load_world_dataset(name)
    model, tokenizer = read_folder(as_folder(clip) if clip is not None else assets_folder())
    with using_threads(threads):
        return score(model, tokenizer, names, images=images, per_class=per_class)


def score_markdown(scores: dict[str, Any]) -> str:
    """The scores of `score_world` as two Markdown tables."""
    return score_table(scores)
