"""`dear paper`: every table and figure of the paper in one resumable command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dear.cli import options as ask
from dear.cli.console import say
from dear.errors import ConfigError

if TYPE_CHECKING:
    from dear.paper.run import Order

Methods = Annotated[
    str,
    typer.Option(
        metavar="NAME,NAME", help="Methods of Tables 2 to 4, comma-separated; all: those that the paper's tables name."
    ),
]

Only = Annotated[
    str | None,
    typer.Option(
        metavar="PART,PART", help="Tables and figures to make, such as table-2,figure-4; by default all, see --plan."
    ),
]


def paper(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for cells, runs, tables, figures and report.html.")
    ],
    *,
    mini: Annotated[bool, typer.Option("--mini", help="On the embedded world: no download, no GPU.")] = False,
    full: Annotated[bool, typer.Option("--full", help="ViT-B/16 on the paper's data sets below --data-root.")] = False,
    data_root: ask.DataRoot = None,
    clip: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Backbone; by default world with --mini, ViT-B-16-quickgelu with --full."),
    ] = None,
    pretrained: ask.Pretrained = None,
    methods: Methods = "zero_shot,dear",
    roles: ask.Roles = None,
    seeds: ask.Seeds = "1,2,3",
    shots: Annotated[
        str, typer.Option(metavar="N,N", help="Training images per class of the few-shot curves, comma-separated.")
    ] = "1,2,4,8,16",
    images: Annotated[
        int, typer.Option(metavar="N", min=2, help="Number of images for the searches and the ablations.")
    ] = 1000,
    training: ask.Training,
    jobs: ask.Jobs = 2,
    only: Only = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what is available, missing and finished, then exit.")
    ] = False,
    resume: ask.Resume = False,
    overwrite: ask.Overwrite = False,
) -> None:
    """Make every table and figure of the paper, its own numbers beside ours; give --mini or --full."""
    from dear.paper.run import Order, describe_plan, survey

    usual = _usual(mini, full, clip, pretrained)
    order = Order(
        out=out,
        kind="mini" if mini else "full",
        clip=clip or usual[0],
        pretrained=pretrained if clip else usual[1],
        data_root=data_root,
        roles=roles,
        methods=_methods(methods),
        seeds=ask.whole_numbers(seeds, "--seeds", least=0),
        few_shots=tuple(sorted(ask.whole_numbers(shots, "--shots", least=1))),
        only=tuple(ask.split(only)) if only is not None else None,
        recipe=training.recipe,
        train=training.settings,
        cached_views=usual[2] if training.cached_views is None else training.cached_views,
        images=images,
        cache=training.cache_in(out) or False,
        jobs=jobs,
        workers=training.workers,
        threads=training.threads,
        device=training.device,
    )
    how = {"resume": resume, "overwrite": overwrite}
    typer.echo(describe_plan(order, survey(order)) if plan else _carry_out(order, training, **how))


def _usual(mini: bool, full: bool, clip: str | None, pretrained: str | None) -> tuple[str, str | None, int]:
    """Backbone, weights and cached views of the kind of paper that was asked for."""
    if mini == full:
        raise ConfigError("Give either --mini (the embedded world) or --full (the paper's own data sets).")
    if pretrained is not None and clip is None:
        raise ConfigError("--pretrained names the weights of a backbone: name the backbone with --clip.")
    return ("world", None, 4) if mini else ("ViT-B-16-quickgelu", "openai", 0)


def _methods(text: str) -> tuple[str, ...] | None:
    """The methods by name, plain CLIP and DeAR always among them; None: all of the paper's."""
    from dear.methods.registry import get_method
    from dear.paper.plan import ALWAYS

    named = ask.split(text)
    if named == ["all"]:
        return None
    for name in named:
        get_method(name)
    return tuple(dict.fromkeys((*ALWAYS, *named)))


def _carry_out(order: Order, training: ask.Training, *, resume: bool, overwrite: bool) -> Path:
    """Run the paper; its folder gets the options as soon as it is there."""
    from dear.paper.run import run_paper

    write_config = training.config_writer(order.out, clip=order.clip, pretrained=order.pretrained)

    def tell(remark: str) -> None:
        write_config()
        say(remark)

    return run_paper(order, tell, resume=resume, overwrite=overwrite)
