"""`dear explain`: why an image gets its answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dear.cli import options as ask
from dear.cli.console import columns, printable, say
from dear.errors import ConfigError

if TYPE_CHECKING:
    from dear.model.explanation import Explanation


def explain(
    words: Annotated[
        list[Path],
        typer.Argument(
            metavar="[RUN] IMAGE", help="Folder of a run or adapter, and an image; with --clip, only an image."
        ),
    ],
    out: Annotated[Path | None, typer.Option(metavar="PAGE.html", help="Page to write, with heat maps.")] = None,
    classes: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help="Classes, comma-separated; by default the run's."),
    ] = None,
    template: ask.Template = None,
    clip: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Explain a backbone as it is, not a run; names as for 'dear train'."),
    ] = None,
    pretrained: ask.Pretrained = None,
    roles: ask.Roles = None,
    readout: Annotated[
        str | None, typer.Option(metavar="NAME", help="Readout of the method; by default its first one.")
    ] = None,
    top_k: Annotated[int, typer.Option("-k", "--top-k", metavar="N", min=1, help="Likeliest classes to explain.")] = 3,
    device: ask.Device = None,
    threads: ask.Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with every part and the heat maps.")] = False,
) -> None:
    """Say why IMAGE gets its answer: logits as exact sums over heads, attributes, MLPs and patches."""
    from dear.backbone.load import load_clip
    from dear.engine.ranks import local_device
    from dear.workflows.explain import explain as explained

    run, image = _run_and_image(words, clip)
    if clip is None and pretrained is not None:
        raise ConfigError("--pretrained names weights of a backbone: give the backbone too, with --clip.")
    if clip is not None and classes is None:
        raise ConfigError("A backbone has no classes of its own: name some with --classes.")
    ask.use_threads(threads)
    found = explained(
        load_clip(clip, pretrained, local_device(device)) if clip is not None else str(run),
        image,
        ask.split(classes) if classes is not None else None,
        template=template,
        roles=roles,
        readout=readout,
        top_k=top_k,
        out=out,
        device=device,
    )
    typer.echo(json.dumps(found.as_dict(), ensure_ascii=False) if as_json else printable(_text(found)))
    if out is not None:
        say(f"page: {out}")


def _run_and_image(words: list[Path], clip: str | None) -> tuple[Path | None, Path]:
    wanted = 1 if clip is not None else 2
    if len(words) != wanted:
        raise ConfigError(
            f"{len(words)} path(s) instead of {wanted}: give 'dear explain RUN IMAGE', or 'dear explain IMAGE --clip "
            f"NAME --classes NAME,NAME'."
        )
    return (words[0] if wanted == 2 else None), words[-1]


def _text(found: Explanation) -> str:
    """Logits by what heads do, one column for each class and one for their average."""
    width = len(found.classes) + bool(found.average)

    def row(name: str, values: Sequence[float]) -> tuple[str, ...]:
        return (name, *(f"{round(one, 3) + 0.0:+.3f}" for one in values[:width]))

    rows = [row(name, values.tolist()) for name, values in found.by_group().items()]
    rows += [row("sum", [*found.sums(), found.average]), row("the logit", [*found.logits, found.average])]
    chance = ("probability", *(f"{100 * one:.1f} %" for one in found.probabilities), "")
    head = ("logits", *found.classes, "average class")
    lines = [columns([head[: width + 1], *rows, chance[: width + 1]]), found.how]
    if found.without_heads:
        lines.append(f"The role map has no head for {', '.join(found.without_heads)}.")
    return "\n".join(lines)
