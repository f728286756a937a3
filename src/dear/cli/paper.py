"""`dear paper`: every table and figure of the paper in one resumable command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dear.cli.talk import say
from dear.errors import ConfigError


def paper(
    out: Annotated[Path, typer.Option(help="Folder for cells, runs, tables, figures and report.html.")],
    mini: Annotated[bool, typer.Option("--mini", help="On the embedded world: no download, no GPU.")] = False,
    full: Annotated[bool, typer.Option("--full", help="ViT-B/16 on the paper's data sets below --root.")] = False,
    root: Annotated[
        Path | None, typer.Option(help="Folder that holds the paper's data sets, in CoOp's layout.")
    ] = None,
    clip: Annotated[str | None, typer.Option(help="Another backbone than world, or than ViT-B-16-quickgelu.")] = None,
    pretrained: Annotated[str | None, typer.Option(help="Tag of that backbone's weights, such as openai.")] = None,
    roles: Annotated[str | None, typer.Option(help="Role map: a name, a roles.json, or discover's folder.")] = None,
    seeds: Annotated[str, typer.Option(help="Comma-separated.")] = "1,2,3",
    shots: Annotated[str, typer.Option(help="Of the few-shot curves, comma-separated.")] = "1,2,4,8,16",
    epochs: Annotated[int, typer.Option(min=1, help="Rounds through the images.")] = 10,
    cached_views: Annotated[
        int | None, typer.Option(min=0, help="Stored views an image; by default 4 with --mini, none with --full.")
    ] = None,
    images: Annotated[int, typer.Option(min=2, help="Images for the searches and the ablations.")] = 1000,
    jobs: Annotated[int, typer.Option(min=1, help="So many cells at once, each with its share of the cores.")] = 2,
    workers: Annotated[int, typer.Option(min=0, help="Threads that read images.")] = 2,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …; by default a GPU where there is one.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what is there, missing and done, and stop.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the paper in OUT.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start the paper in OUT again.")] = False,
) -> None:
    """Every table and figure of the paper, with its own numbers beside ours; give --mini or --full."""
    if mini == full:
        raise ConfigError("Give either --mini (the embedded world) or --full (the paper's own data sets).")
    if pretrained is not None and clip is None:
        raise ConfigError("--pretrained names the weights of a backbone: give that with --clip.")
    from dear.engine.ranks import local_device
    from dear.paper.run import Order, describe_plan, run_paper, survey

    usual = ("world", None) if mini else ("ViT-B-16-quickgelu", "openai")
    order = Order(
        out=out,
        kind="mini" if mini else "full",
        clip=clip or usual[0],
        pretrained=pretrained if clip else usual[1],
        root=root,
        roles=roles,
        seeds=numbers(seeds, "seeds", least=0),
        few_shots=tuple(sorted(numbers(shots, "shots", least=1))),
        epochs=epochs,
        cached_views=(4 if mini else 0) if cached_views is None else cached_views,
        images=images,
        jobs=jobs,
        workers=workers,
        device=local_device(device),
    )
    if plan:
        typer.echo(describe_plan(order, survey(order)))
        return
    page = run_paper(order, say, resume=resume, overwrite=overwrite)
    typer.echo(page)


def numbers(text: str, what: str, *, least: int) -> tuple[int, ...]:
    """Whole numbers from a comma-separated list, each once."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) >= least for part in parts):
        raise ConfigError(f"--{what} {text!r} is not a comma-separated list of whole numbers from {least} on.")
    return tuple(dict.fromkeys(int(part) for part in parts))
