"""`dear explain`: why an image gets its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from dear.cli.commands import single_command
from dear.cli.console import columns, json_line, printable, say
from dear.options.commands import Explain

if TYPE_CHECKING:
    from dear.model.explanation import Explanation


def explain(options: Explain) -> None:
    """Say why IMAGE gets its answer: logits as exact sums over heads, attributes, MLPs and patches."""
    from dear.workflows.explain import explain

    found = explain(
        options.run,
        options.paths[-1],
        options.classes,
        clip=options.clip,
        pretrained=options.pretrained,
        template=options.template,
        roles=options.roles,
        readout=options.readout,
        top_k=options.top_k,
        out=options.out,
        device=options.device,
        threads=options.threads,
        allow_pickled=options.allow_pickled,
    )
    typer.echo(json_line(found.as_dict()) if options.as_json else printable(_text(found)))
    if options.out is not None:
        say(f"page: {options.out}")


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


app = single_command(explain, Explain, plugins=True)
