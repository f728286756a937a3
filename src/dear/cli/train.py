"""`dear train` and `dear eval`: from a folder of photos to an adapter and its score."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dear.cli import options as ask
from dear.cli.console import say
from dear.cli.results import scores_json, tell_scores, tell_trained

if TYPE_CHECKING:
    from dear.backbone.clip import FrozenClip
    from dear.data.dataset import Dataset
    from dear.engine.job import Job

MOST_NAMED = 5


def train(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Folder of class folders, .csv or .json list, or a data set's name.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the run.")],
    *,
    clip: ask.Clip = None,
    pretrained: ask.Pretrained = None,
    method: ask.Method = "dear",
    roles: ask.Roles = None,
    setting: ask.Setting = None,
    shots: Annotated[
        int, typer.Option(metavar="N", min=1, help="Training images per class, or all of them if there are fewer.")
    ] = 16,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Random seed.")] = 1,
    half: ask.Half = "all",
    template: ask.Template = None,
    descriptions: ask.Descriptions = None,
    data_root: ask.DataRoot = None,
    names: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Names of classes whose folders are no words: a folder and a name per line."),
    ] = None,
    add_class: Annotated[
        str | None,
        typer.Option(metavar="FOLDER,FOLDER", help="Folders of images to add to DATA as further classes."),
    ] = None,
    training: ask.Training,
    resume: ask.Resume = False,
    overwrite: ask.Overwrite = False,
) -> None:
    """Adapt a CLIP to DATA; the folder OUT then holds the adapter, its log and its options as config.yaml."""
    from dear.backbone.load import load_clip
    from dear.engine.job import make_job, prepared
    from dear.evaluation.defaults import clip_for
    from dear.storage.locks import check_ours

    config = {**({"roles": roles} if roles else {}), **ask.parse_setting(setting)}
    job = make_job(
        _opened(data, data_root, template=template, descriptions=descriptions, names=names, add_class=add_class),
        shots=shots,
        seed=seed,
        half=half,  # type: ignore[arg-type]
        method=method,
        config=config,
        recipe=training.recipe,
        train=training.settings,
        cached_views=training.cached_views or 0,
    )
    name, weights = clip_for(job.dataset, clip, pretrained)
    check_ours(out, "run", resume=resume, overwrite=overwrite)
    ask.use_threads(training.threads)
    backbone = load_clip(name, weights, training.device)
    job = prepared(job, backbone, say)
    how = {"resume": resume, "overwrite": overwrite, "workers": training.workers, "cache": training.cache_in(out)}
    tell_trained(job, out, _train(job, backbone, out, training, how))


def _opened(data: str, data_root: Path | None, *, add_class: str | None, **how: Any) -> Dataset:
    """The data set with everything that the options say about it; names that say nothing to CLIP are told."""
    from dear.data.names import unspoken_sentence
    from dear.data.open import open_dataset

    dataset = open_dataset(data, data_root, add_class=ask.split(add_class) if add_class is not None else (), **how)
    if sentence := unspoken_sentence(dataset.class_names):
        say(f"note: {sentence}")
    return dataset


def _train(job: Job, clip: FrozenClip, out: Path, training: ask.Training, how: dict[str, Any]) -> int:
    """Train with a bar, tell what was wrong with the images, and return the number of steps."""
    from dear.data.images import passed_over_sentence
    from dear.engine.job import UNLABELLED
    from dear.engine.run import run_job
    from dear.errors import option
    from dear.methods.registry import get_method

    counts = Counter(item.label for item in job.items)
    few = [name for label, name in enumerate(job.class_names) if counts[label] < job.shots]
    if few and UNLABELLED not in counts:
        say(f"note: {len(few)} class(es) have fewer than {job.shots} images, such as {few[0]!r}: all of them are used.")
    own, told = get_method(job.method).recipe, {k: v for k, v in job.train.changes().items() if v is not None}
    if told and not own.epochs and not own.steps_per_shot:
        say(f"note: {job.method} is fitted without training steps: {option(**told)} changes nothing.")
    place = Path(job.dataset.source or "none of a folder")
    if place.is_dir() and (others := passed_over_sentence(place)):
        say(f"note: {others}")
    write_config = training.config_writer(out, clip=clip.name, pretrained=clip.pretrained)
    problems: dict[str, None] = {}

    def on_step(metrics: dict[str, Any]) -> None:
        if not how["overwrite"]:  # the old run stays as it is until the new one is whole
            write_config()
        problems.update(dict.fromkeys(metrics["problems"]))

    _, progress = run_job(job, clip, out, on_step=on_step, **how)
    write_config()
    problems.update(dict.fromkeys(progress.problems))
    _tell_problems(list(problems), progress.skipped, out)
    return progress.step


def _tell_problems(problems: list[str], skipped: int, out: Path) -> None:
    for problem in problems[:MOST_NAMED]:
        say(f"skipped: {problem}")
    if len(problems) > MOST_NAMED:
        say(f"… and {len(problems) - MOST_NAMED} more, all named in {out / 'metrics.jsonl'}.")
    if skipped:
        say(f"note: unreadable images were skipped {skipped} times.")


def evaluate(
    run: ask.Run,
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="Data set to test on; by default the one that the run was made from."),
    ] = None,
    half: ask.Half = "all",
    template: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Prompt around a class name; by default the run's or the data set's."),
    ] = None,
    descriptions: ask.Descriptions = None,
    data_root: ask.DataRoot = None,
    batch_size: ask.BatchSize = 250,
    cache: ask.EvalCache = None,
    workers: ask.Workers = 2,
    device: ask.Device = None,
    threads: ask.Threads = None,
    everything: Annotated[bool, typer.Option("--all", help="Show the method's other readouts, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with the scores of each class.")] = False,
) -> None:
    """Say how good a run is: test it on images it was not trained on, beside plain CLIP."""
    from dear.workflows.evaluate import evaluate as measure

    ask.use_threads(threads)
    how: dict[str, Any] = {"half": half, "template": template, "data_root": data_root, "cache": cache}
    how["descriptions"] = descriptions
    found = measure(run, data, batch_size=batch_size, workers=workers, device=device, **how)
    for problem in found.problems.values():
        say(f"counted as wrong: {problem}")
    for warning in found.warnings:
        say(f"note: {warning}")
    if as_json:
        typer.echo(scores_json(found))
    else:
        tell_scores(found, everything=everything)
