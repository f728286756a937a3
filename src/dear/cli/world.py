"""`dear world`: pre-train the embedded CLIP, look at the world, score a CLIP on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dear.cli import options as ask
from dear.cli.console import Group
from dear.errors import ConfigError
from dear.progress.stages import stage

app = typer.Typer(help="The embedded world: a small visual world and a small CLIP trained on it.", cls=Group)


@app.command()
def pretrain(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for log, checkpoint and the finished CLIP.")],
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed.")] = 0,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Number of steps of the whole schedule.")] = None,
    stop_after: Annotated[int | None, typer.Option(metavar="N", help="Stop after this step of the schedule.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    checkpoint_every: Annotated[int, typer.Option(metavar="N", help="Number of steps between checkpoints.")] = 100,
    threads: ask.Threads = None,
) -> None:
    """Train the world's CLIP from scratch on the CPU (less than two hours on two cores)."""
    from dear.world.pretrain import Settings
    from dear.world.pretrain import pretrain as run

    ask.use_threads(threads)
    if steps is not None and steps < 1:
        raise ConfigError(f"--steps is {steps}, but a schedule has at least one step.")
    settings = Settings(seed=seed) if steps is None else Settings(seed=seed, steps=steps)
    with stage("pre-training", min(settings.steps, stop_after or settings.steps), done=None) as advance:

        def show(step: int, metrics: dict[str, float]) -> None:
            advance(step, {**metrics, "total": metrics["loss"]})

        done = run(out, settings, resume=resume, stop_after=stop_after, checkpoint_every=checkpoint_every, on_step=show)
    finished = done == settings.steps
    typer.echo(
        f"{done} of {settings.steps} steps; {'CLIP in ' + str(out / 'clip') if finished else 'resume with --resume'}"
    )


@app.command()
def preview(
    out: Annotated[Path, typer.Option(metavar="FILE", help="PNG file to write.")],
    what: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="What to draw: color, shape, texture, object, location, styles, scenes, or a data set."
        ),
    ] = "scenes",
    zoom: Annotated[int, typer.Option(metavar="N", min=1, max=8, help="Enlargement factor.")] = 2,
) -> None:
    """Draw a contact sheet of the world."""
    from dear.world.preview import contact_sheet, write_png

    write_png(contact_sheet(what), out, zoom)
    typer.echo(str(out))


@app.command()
def score(
    clip: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder in OpenCLIP's format; by default the shipped weights.")
    ] = None,
    images: Annotated[int, typer.Option(metavar="N", min=1, help="Number of held-out renderings.")] = 4000,
    per_class: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Test images per class; by default all.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Data sets, comma-separated; by default all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    threads: ask.Threads = None,
) -> None:
    """Print zero-shot accuracy by kind of feature and by data set (all classes, base half, novel half)."""
    from dear.world.clip import assets_folder, read_folder
    from dear.world.datasets import dataset_names, load_world_dataset
    from dear.world.score import score as measure
    from dear.world.score import score_table

    ask.use_threads(threads)
    names = data.split(",") if data else list(dataset_names())
    for name in names:
        load_world_dataset(name)
    model, tokenizer = read_folder(clip or assets_folder())
    result = measure(model, tokenizer, names, images=images, per_class=per_class)
    typer.echo(json.dumps(result, indent=2) if as_json else score_table(result))
