"""`dear roles`: find the roles of attention heads, show and compare them, test them by ablation."""

from __future__ import annotations

import typer

from dear.cli.commands import add_command
from dear.cli.console import Group, printable, say
from dear.options.tools import AblateRoles, CompareRoles, DiscoverRoles, ShowRoles

MOST_NAMED = 5
app = typer.Typer(
    help="What attention heads do: discover, show, compare and test their roles.", cls=Group, add_completion=False
)


def discover(options: DiscoverRoles) -> None:
    """Find the role of every head of a CLIP's last layers, from images and a pool of phrases."""
    from dear.workflows.discover import discover_and_write, discovery_settings, next_step

    found = discover_and_write(
        options.clip,
        options.images,
        discovery_settings(
            options.rule, options.phrases, options.first_layer, options.sentence_model, options.centroids
        ),
        out=options.out,
        pool=options.pool,
        pretrained=options.pretrained,
        max_images=options.max_images,
        examples=options.examples,
        data_root=options.data_root,
        device=options.device,
        threads=options.threads,
        on=options.on,
        gpus=options.gpus,
        resume=options.resume,
        overwrite=options.overwrite,
    )
    for problem in found.problems[:MOST_NAMED]:
        say(f"skipped: {problem}")
    if len(found.problems) > MOST_NAMED:
        say(f"skipped: {len(found.problems) - MOST_NAMED} more, all named in discovery.json")
    typer.echo(printable(f"{found.summary}\n"))
    step = next_step(found, options.clip, options.pretrained, options.images, options.out, options.data_root)
    typer.echo(printable(step))


def show(options: ShowRoles) -> None:
    """Print a role map as a grid, and write it as a page or as a figure."""
    from dear.workflows.roles import show_roles

    typer.echo(printable(show_roles(options.roles, html=options.html, figure=options.figure)))
    for path in (options.html, options.figure):
        if path is not None:
            typer.echo(printable(str(path)))


def compare(options: CompareRoles) -> None:
    """Print how closely two role maps of the same heads agree."""
    from dear.workflows.roles import compare_roles

    typer.echo(printable(compare_roles(options.roles, options.other)))


def ablate(options: AblateRoles) -> None:
    """Mean-ablate heads and layers, and print how much zero-shot accuracy each costs."""
    from dear.workflows.roles import ablate_roles

    text = ablate_roles(
        options.clip,
        options.roles,
        options.images,
        pretrained=options.pretrained,
        template=options.template,
        max_images=options.max_images,
        draws=options.draws,
        out=options.out,
        device=options.device,
        threads=options.threads,
    )
    typer.echo(printable(text))


add_command(app, discover, DiscoverRoles, plugins=True)
add_command(app, show, ShowRoles)
add_command(app, compare, CompareRoles)
add_command(app, ablate, AblateRoles)
