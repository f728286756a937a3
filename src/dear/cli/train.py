"""`dear train`, `dear eval` and `dear predict`: from a folder of photos to an adapter and its predictions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dear.cli.talk import progress_bar, say, step_bar
from dear.errors import ConfigError, ImageError

Root = Annotated[Path | None, typer.Option(help="Folder that holds the paper's data sets, in CoOp's layout.")]
Clip = Annotated[str, typer.Option(help="Backbone: world, an OpenCLIP name, hf-hub:ORG/REPO or local-dir:FOLDER.")]
Pretrained = Annotated[str | None, typer.Option(help="Tag of the weights, such as openai.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, …; by default a GPU where there is one.")]
Workers = Annotated[int, typer.Option(min=0, help="Threads that read images.")]
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
    method: Annotated[str, typer.Option(help="See 'dear ls methods'.")] = "dear",
    roles: Annotated[str | None, typer.Option(help="Role map: a name, a roles.json, or discover's folder.")] = None,
    shots: Annotated[int, typer.Option(min=1, help="Images a class to learn from.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Decides everything that is random.")] = 1,
    classes: Annotated[str, typer.Option(help="all, base or novel: which half of the classes to learn.")] = "all",
    epochs: Annotated[int, typer.Option(min=1, help="Rounds through the images.")] = 10,
    batch: Annotated[int, typer.Option(min=1, help="Images an update.")] = 16,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 1e-3,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="At most so many images at once.")] = None,
    precision: Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")] = "auto",
    template: Annotated[str | None, typer.Option(help="Prompt around a class name: 'a photo of a {}.'")] = None,
    root: Root = None,
    choice: Chosen = None,
    cached_views: Annotated[int, typer.Option(min=0, help="Stored views an image, instead of new ones.")] = 0,
    cache: Cache = None,
    workers: Workers = 2,
    device: Device = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run was stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start again in the same folder.")] = False,
) -> None:
    """Adapt a CLIP to DATA; the folder OUT then holds the adapter, its log and what it was made from."""
    from dear.backbone.load import load_clip
    from dear.data.catalog import open_dataset
    from dear.engine.distributed import local_device
    from dear.engine.fit import make_job
    from dear.engine.run import run_job
    from dear.engine.train import TrainSettings

    chosen: dict[str, Any] = {"micro_batch": micro_batch, "precision": precision}
    settings = TrainSettings(epochs=epochs, batch=batch, lr=lr, **chosen)
    choices = {**({"roles": roles} if roles else {}), **parse_choices(choice or [])}
    dataset = open_dataset(data, root, template=template)
    job = make_job(
        dataset,
        shots=shots,
        seed=seed,
        half=classes,  # type: ignore[arg-type]  # checked there
        method=method,
        choices=choices,
        train=settings,
        cached_views=cached_views,
    )
    backbone = load_clip(clip, pretrained, local_device(device))
    few = [name for i, name in enumerate(job.class_names) if sum(item.label == i for item in job.items) < shots]
    if few:
        say(f"note: {len(few)} class(es) have fewer than {shots} images, such as {few[0]!r}; all of theirs are used.")
    with step_bar() as show:
        model, progress = run_job(
            job,
            backbone,
            out,
            resume=resume,
            overwrite=overwrite,
            cache=cache or out / "cache",
            workers=workers,
            on_step=show,
        )
    if progress.skipped:
        say(
            f"note: unreadable images were skipped {progress.skipped} times; see 'problems' in {out / 'metrics.jsonl'}."
        )
    facts = "; ".join(f"{name}: {value}" for name, value in model.facts().items())
    typer.echo(f"{out}: {method} after {progress.step} steps" + (f"; {facts}" if facts else ""))


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of a saved adapter.")],
    data: Annotated[
        str | None, typer.Argument(help="Data set to test on; by default what the run was made from.")
    ] = None,
    classes: Annotated[str, typer.Option(help="all, base or novel: which half of the classes to test.")] = "all",
    template: Annotated[str | None, typer.Option(help="Prompt around a class name; by default the data set's.")] = None,
    root: Root = None,
    cache: Cache = None,
    workers: Workers = 2,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with per-class scores.")] = False,
) -> None:
    """Score a run on test images, among the classes of the data set, beside plain CLIP."""
    from dear.artefact import load
    from dear.data.catalog import open_dataset
    from dear.engine.distributed import local_device
    from dear.engine.evaluate import evaluate as measure
    from dear.engine.fit import items_to_test, labels_of
    from dear.engine.run import RUN, read_run

    made_from = read_run(run)["description"] if (run / RUN).is_file() else None
    if data is None and made_from is None:
        raise ConfigError(f"{run} does not say what it was made from: name the data set to test on.")
    dataset = open_dataset(data or made_from["data"], root, template=template)  # type: ignore[index]
    drawn = {"shots": made_from["shots"], "seed": made_from["seed"]} if made_from else {"shots": 16, "seed": 1}
    items = items_to_test(dataset, classes, **drawn)  # type: ignore[arg-type]  # checked there
    model = load(run, device=local_device(device))
    labels = labels_of(dataset, classes)  # type: ignore[arg-type]
    model.set_classes(dataset.class_names[labels.start : labels.stop], dataset.template)
    with progress_bar("images", len(items)) as advance:
        part: Any = classes
        found = measure(model, dataset, items, part=part, cache=cache, workers=workers, progress=advance)
        with model.disabled():
            plain = measure(model, dataset, items, part=part, cache=cache, workers=workers)
    for problem in found.problems.values():
        say(f"counted as wrong: {problem}")
    if as_json:
        scores = {"adapted": found.scores.model_dump(mode="json"), "plain": plain.scores.model_dump(mode="json")}
        typer.echo(json.dumps(scores, indent=1, ensure_ascii=False))
        return
    typer.echo(f"{dataset.name} ({classes}): {found.scores.images:,} images, {len(labels)} classes")
    rows = (("plain CLIP", plain.scores.fusion), (f"{model.name}", found.scores.fusion))
    for name, value in (*rows, (f"{model.name}, decoupled", found.scores.decoupled)):
        typer.echo(f"  {name:<20} {value:6.2f} %")


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of a saved adapter.")],
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    classes: Annotated[
        str | None, typer.Option(help="Other classes: 'cat,dog', or a text file with one a line.")
    ] = None,
    template: Annotated[str | None, typer.Option(help="Prompt around a class name.")] = None,
    strategy: Annotated[str, typer.Option(help="fusion, or decoupled for the [CLS] feature alone.")] = "fusion",
    top: Annotated[int, typer.Option(min=1, help="So many classes an image.")] = 3,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON an image.")] = False,
) -> None:
    """Say what images show, among the run's classes or any others."""
    from dear.artefact import load
    from dear.engine.distributed import local_device
    from dear.predict import try_predict

    paths = _expand(images)
    names = _class_names(classes) if classes else None
    model = load(run, device=local_device(device))
    bad = 0
    found = try_predict(model, paths, names, template=template, strategy=strategy, top=top)  # type: ignore[arg-type]
    for path, one in zip(paths, found, strict=True):
        if isinstance(one, ImageError):
            bad += 1
            say(f"dear: {one}")
        elif as_json:
            typer.echo(json.dumps(one.as_dict(), ensure_ascii=False))
        else:
            typer.echo(f"{path}: " + ", ".join(f"{name} {100 * p:.1f} %" for name, p in one.top))
    if bad:
        sys.exit(1)


def _expand(images: list[Path]) -> list[Path]:
    from dear.data.images import folder_images

    paths: list[Path] = []
    for one in images:
        paths += [one / name for name in folder_images(one).names] if one.is_dir() else [one]
    return paths


def _class_names(text: str) -> list[str]:
    path = Path(text)
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else text.split(",")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a list of class names in UTF-8.") from None
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
