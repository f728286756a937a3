"""`dear world`: pre-train the embedded CLIP, render the world, score a CLIP on it."""

from __future__ import annotations

import json

import typer

from dear.cli.commands import add_command
from dear.cli.console import Group
from dear.options.tools import PretrainWorld, PreviewWorld, ScoreWorld

app = typer.Typer(
    help="The embedded world: a small visual world and a small CLIP trained on it.", cls=Group, add_completion=False
)


def pretrain(options: PretrainWorld) -> None:
    """Train the world's CLIP from scratch on the CPU (less than two hours on two cores)."""
    from dear.workflows.world import pretrain_world

    done = pretrain_world(
        options.out,
        kind=options.kind,
        seed=options.seed,
        steps=options.steps,
        stop_after=options.stop_after,
        resume=options.resume,
        checkpoint_every=options.checkpoint_every,
        threads=options.threads,
    )
    outcome = f"CLIP in {options.out / 'clip'}" if done == options.steps else "resume with --resume"
    typer.echo(f"{done} of {options.steps} steps; {outcome}")


def preview(options: PreviewWorld) -> None:
    """Render a contact sheet of the world."""
    from dear.workflows.world import preview_world

    typer.echo(str(preview_world(options.out, options.what, zoom=options.zoom)))


def score(options: ScoreWorld) -> None:
    """Print zero-shot accuracy by kind of feature and by data set (all classes, base half, novel half)."""
    from dear.workflows.world import score_markdown, score_world

    found = score_world(
        options.clip,
        images=options.images,
        per_class=options.per_class,
        data=options.data,
        threads=options.threads,
    )
    typer.echo(json.dumps(found, indent=2) if options.as_json else score_markdown(found))


add_command(app, pretrain, PretrainWorld)
add_command(app, preview, PreviewWorld)
add_command(app, score, ScoreWorld)
