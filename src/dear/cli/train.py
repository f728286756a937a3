"""`dear train`, `dear eval` and `dear predict`: from a folder of photos to an adapter and its predictions."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dear.cli.talk import progress_bar, say, step_bar
from dear.errors import ConfigError, DataError, ImageError

if TYPE_CHECKING:
    from dear.backbone.clip import FrozenClip
    from dear.data.dataset import Dataset, Item
    from dear.engine.run import Job

MOST_NAMED = 5

Root = Annotated[Path | None, typer.Option(help="Folder that holds the paper's data sets, in CoOp's layout.")]
Clip = Annotated[str, typer.Option(help="Backbone: world, an OpenCLIP name, hf-hub:ORG/REPO or local-dir:FOLDER.")]
Pretrained = Annotated[str | None, typer.Option(help="Tag of the weights, such as openai.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, …; by default a GPU where there is one.")]
Workers = Annotated[int, typer.Option(min=0, help="Threads that read images.")]
Views = Annotated[
    int, typer.Option(min=0, help="Reuse so many stored views of each image (faster); 0 draws new ones every epoch.")
]
Cache = Annotated[Path | None, typer.Option(help="Folder for what the frozen layers make of images.")]
Chosen = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A choice of the method, such as beta=0.8; may be repeated."),
]


def train(
    data: Annotated[str, typer.Argument(help="Folder of class folders, .csv or .json list, or a data set's name.")],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    clip: Clip = "world",
    pretrained: Pretrained = None,
    method: Annotated[str, typer.Option(help="How to adapt, see 'dear ls methods'.")] = "dear",
    roles: Annotated[str | None, typer.Option(help="Role map: a name, a roles.json, or discover's folder.")] = None,
    shots: Annotated[int, typer.Option(min=1, help="Images a class to learn from.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Decides everything that is random.")] = 1,
    classes: Annotated[str, typer.Option(help="all, base or novel: which half of the classes to learn.")] = "all",
    epochs: Annotated[int, typer.Option(min=1, help="Rounds through the images.")] = 10,
    batch: Annotated[int, typer.Option(min=1, help="Images an update.")] = 16,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 1e-3,
    micro_batch: Annotated[
        int | None, typer.Option(min=1, help="At most so many images at once, to save memory; same result.")
    ] = None,
    precision: Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")] = "auto",
    template: Annotated[str | None, typer.Option(help="Prompt around a class name, such as 'a photo of a {}.'")] = None,
    root: Root = None,
    choice: Chosen = None,
    cached_views: Views = 0,
    cache: Cache = None,
    workers: Workers = 2,
    device: Device = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run was stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start again in the same folder.")] = False,
) -> None:
    """Adapt a CLIP to DATA; the folder OUT then holds the adapter, its log and what it was made from."""
    from dear.backbone.load import load_clip
    from dear.datasets import open_dataset
    from dear.engine.fit import make_job
    from dear.engine.loop import TrainSettings
    from dear.engine.ranks import local_device

    half: Any = classes
    others: dict[str, Any] = {"micro_batch": micro_batch, "precision": precision}
    job = make_job(
        open_dataset(data, root, template=template),
        shots=shots,
        seed=seed,
        half=half,
        method=method,
        choices={**({"roles": roles} if roles else {}), **parse_choices(choice or [])},
        train=TrainSettings(epochs=epochs, batch=batch, lr=lr, **others),
        cached_views=cached_views,
    )
    backbone = load_clip(clip, pretrained, local_device(device))
    how = {"resume": resume, "overwrite": overwrite, "workers": workers, "cache": cache or out / "cache"}
    typer.echo(_train(job, backbone, out, how))


def _train(job: Job, clip: FrozenClip, out: Path, how: dict[str, Any]) -> str:
    """Train with a bar, tell what was wrong with the images, and say what came out."""
    from dear.engine.run import run_job

    counts = Counter(item.label for item in job.items)
    few = [name for label, name in enumerate(job.class_names) if counts[label] < job.shots]
    if few:
        say(f"note: {len(few)} class(es) have fewer than {job.shots} images, such as {few[0]!r}; all theirs are used.")
    problems: dict[str, None] = {}
    with step_bar() as show:

        def on_step(metrics: dict[str, Any]) -> None:
            problems.update(dict.fromkeys(metrics["problems"]))
            show(metrics)

        model, progress = run_job(job, clip, out, on_step=on_step, **how)
    _tell_problems(list(problems), progress.skipped, out)
    facts = "; ".join(f"{name}: {value}" for name, value in model.facts().items())
    return f"{out}: {job.method} after {progress.step} steps" + (f"; {facts}" if facts else "")


def _tell_problems(problems: list[str], skipped: int, out: Path) -> None:
    for problem in problems[:MOST_NAMED]:
        say(f"skipped: {problem}")
    if len(problems) > MOST_NAMED:
        say(f"… and {len(problems) - MOST_NAMED} more, all named in {out / 'metrics.jsonl'}.")
    if skipped:
        say(f"note: unreadable images were skipped {skipped} times.")


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of a saved adapter.")],
    data: Annotated[
        str | None, typer.Argument(help="Data set to test on; by default what the run was made from.")
    ] = None,
    classes: Annotated[str, typer.Option(help="all, base or novel: which half of the classes to test.")] = "all",
    template: Annotated[
        str | None, typer.Option(help="Prompt around a class name; by default the run's or the data set's.")
    ] = None,
    root: Root = None,
    cache: Cache = None,
    workers: Workers = 2,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with per-class scores.")] = False,
) -> None:
    """Score a run on test images, among the classes of the data set, beside plain CLIP."""
    from dear.artefact import load
    from dear.engine.fit import items_to_test, labels_of
    from dear.engine.ranks import local_device
    from dear.evaluation.evaluate import evaluate as measure

    half: Any = classes
    dataset, drawn = data_of_run(run, data, root, template)
    labels = labels_of(dataset, half)
    items = items_to_test(dataset, half, drawn=drawn)
    model = load(run, device=local_device(device))
    model.set_classes(dataset.class_names[labels.start : labels.stop], dataset.template)
    with progress_bar("images", len(items)) as advance:
        found = measure(
            model, dataset, items, part=half, cache=cache, workers=workers, beside_plain=True, progress=advance
        )
    assert found.plain is not None
    for problem in found.problems.values():
        say(f"counted as wrong: {problem}")
    if as_json:
        scores = {"adapted": found.scores.model_dump(mode="json"), "plain": found.plain.model_dump(mode="json")}
        typer.echo(json.dumps(scores, indent=1, ensure_ascii=False))
        return
    typer.echo(f"{dataset.name} ({classes}): {found.scores.images:,} images, {len(labels)} classes")
    rows = (("plain CLIP", found.plain.fusion), (f"{model.name}, fusion", found.scores.fusion))
    for name, value in (*rows, (f"{model.name}, decoupled", found.scores.decoupled)):
        typer.echo(f"  {name:<20} {value:6.2f} %")


def data_of_run(run: Path, data: str | None, root: Path | None, template: str | None) -> tuple[Dataset, list[Item]]:
    """The data set to test on, and what of it the run has learned from, which is never tested."""
    from dear.data.splits import few_shot, shots_from_json
    from dear.datasets import open_dataset
    from dear.engine.run import RUN, SHOTS, read_run

    if not (run / RUN).is_file():
        if data is None:
            raise ConfigError(f"{run} does not say what it was made from: name the data set to test on.")
        return open_dataset(data, root, template=template), []
    content = read_run(run)
    about, source = content["description"], content.get("source") or {}
    try:
        dataset = open_dataset(data or source.get("data") or about["data"], root or source.get("root"))
    except DataError as error:
        if data is not None:
            raise
        raise DataError(
            f"{error} {run} was made from it: name where it is now, as in 'dear eval {run} DATA'."
        ) from None
    same = dataset.name == about["data"]
    dataset = replace(dataset, template=template or (about["template"] if same else dataset.template))
    drawn = list(few_shot(dataset.train, about["shots"], about["seed"])) if same else []
    if (run / SHOTS).is_file():
        drawn += shots_from_json((run / SHOTS).read_text(encoding="utf-8"), where=str(run / SHOTS))
    return dataset, drawn


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of a saved adapter.")],
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    classes: Annotated[
        str | None, typer.Option(help="Other classes: 'cat,dog', or a text file with one a line.")
    ] = None,
    template: Annotated[str | None, typer.Option(help="Prompt around a class name; by default the run's.")] = None,
    strategy: Annotated[str, typer.Option(help="fusion, or decoupled for the [CLS] feature alone.")] = "fusion",
    top: Annotated[int, typer.Option(min=1, help="So many classes an image.")] = 3,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON an image.")] = False,
) -> None:
    """Say what images show, among the run's classes or any others."""
    from dear.artefact import load
    from dear.engine.ranks import local_device
    from dear.predict import try_predict

    paths, bad = _expand(images)
    names = _class_names(classes) if classes is not None else None
    model = load(run, device=local_device(device))
    found = try_predict(model, paths, names, template=template, strategy=strategy, top=top)  # type: ignore[arg-type]
    for path, one in zip(paths, found, strict=True):
        if isinstance(one, ImageError):
            bad += 1
            say(f"not predicted: {one}")
        elif as_json:
            typer.echo(json.dumps(one.as_dict(), ensure_ascii=False))
        else:
            typer.echo(f"{path}: " + ", ".join(f"{name} {100 * p:.1f} %" for name, p in one.top))
    if bad:
        raise typer.Exit(1)


def _expand(images: list[Path]) -> tuple[list[Path], int]:
    """Folders replaced by the images in them, and how many had none."""
    from dear.data.images import folder_images

    paths: list[Path] = []
    bad = 0
    for one in images:
        try:
            paths += [one / name for name in folder_images(one).names] if one.is_dir() else [one]
        except ImageError as error:
            bad += 1
            say(f"not predicted: {error}")
    return paths, bad


def _class_names(text: str) -> list[str]:
    path = Path(text)
    try:
        is_file = path.is_file()
        lines = path.read_text(encoding="utf-8").splitlines() if is_file else text.split(",")
    except (UnicodeDecodeError, OSError, ValueError):
        raise ConfigError(f"{path} is not a list of class names in UTF-8.") from None
    if not is_file and len(lines) == 1 and path.suffix:
        raise ConfigError(f"There is no file {path}: give a text file with one class a line, or names as 'cat,dog'.")
    return [line.strip() for line in lines if line.strip()]


def parse_choices(choices: list[str]) -> dict[str, Any]:
    """`name=value` pairs, values read as JSON where they are JSON (0.5, true, null) and as words otherwise."""
    parsed = {}
    for choice in choices:
        name, equals, value = choice.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {choice!r} is not NAME=VALUE, as in --set beta=0.8.")
        parsed[name.strip()] = literal(value.strip())
    return parsed


def literal(text: str) -> Any:
    """A typed value: JSON where it is JSON, the text itself otherwise."""
    try:
        return json.loads(text)
    except ValueError:
        return text
