"""`dear data` and `dear ls`: list data sets, methods, backbones and settings, and verify data sets."""

from __future__ import annotations

import json

import typer

from dear.cli.commands import add_command
from dear.cli.console import Group, columns, printable
from dear.errors import ConfigError
from dear.options.tools import CheckData, ListBackbones, ListData, ListMethods, ListSettings

PRESENT = {True: "yes", False: "no", None: "?"}
app = typer.Typer(help="List and verify data sets.", cls=Group, add_completion=False)
list_app = typer.Typer(help="List methods, their settings, and backbones.", cls=Group, add_completion=False)


def list_data(options: ListData) -> None:
    """List every data set that has a name, and which of the paper's are present; everything about one, if named."""
    from dear.workflows.datasets import describe_dataset, list_datasets

    if options.name is not None:
        typer.echo(columns(describe_dataset(options.name, options.data_root)))
        return
    rows = [
        (one.name, PRESENT[one.present], f"{one.classes or '?'} classes", one.title)
        for one in list_datasets(options.data_root)
    ]
    typer.echo(columns([("data set", "present", "size", "what"), *rows]))


def check(options: CheckData) -> None:
    """Verify a data set: compare it with what it should contain, and open every image once."""
    from dear.workflows.datasets import check_data

    health = check_data(options.name, options.data_root, quick=options.quick)
    for note in health.notes:
        typer.echo(printable(f"note: {note}"))
    if health.problems:
        problems = "\n- ".join(health.problems)
        raise ConfigError(f"{options.name} has {len(health.problems)} problem(s):\n- {problems}")
    counts = ", ".join(f"{count:,} {split}" for split, count in health.counts.items())
    typer.echo(printable(f"{options.name} is in order: {health.classes} classes, {counts} images."))


def list_methods(options: ListMethods) -> None:
    """List every adaptation method: what it trains, touches and needs; everything about one if it is named."""
    from dear.workflows.listings import describe_method, method_table

    if options.method is not None:
        typer.echo(columns(describe_method(options.method)))
        return
    typer.echo(columns([("method", "year", "trains", "touches", "needs"), *method_table()]))
    typer.echo("\ntrains: numbers that are trained on ViT-B/16. 'dear ls methods NAME' says more, with the citation.")


def list_backbones(options: ListBackbones) -> None:
    """List every backbone: what can be done with it, its size, and the tags of its weights for --pretrained."""
    from dear.workflows.backbones import backbone_table, describe_backbone, find_backbone, known_backbones

    if options.backbone is not None:
        found = find_backbone(options.backbone)
        typer.echo(json.dumps(found.as_dict(), indent=1) if options.as_json else columns(describe_backbone(found)))
        return
    if options.as_json:
        typer.echo(json.dumps([one.as_dict() for one in known_backbones()], indent=1))
        return
    typer.echo(columns(backbone_table()))
    typer.echo(
        "\nAll give features and learned words. layers: the towers whose layers methods can reach. extra: what to "
        "install, as in dear-vlm[hf].\n'dear ls backbones NAME' lists the methods that work with one."
    )


def list_settings(options: ListSettings) -> None:
    """List the settings of a method for --set: name, default and meaning."""
    from dear.workflows.listings import list_settings

    found = list_settings(options.method)
    if not found:
        typer.echo(f"{options.method} has no settings.")
        return
    typer.echo(columns([("setting", "default", "meaning"), *((one.name, one.shown, one.meaning) for one in found)]))


add_command(app, list_data, ListData, "list", plugins=True)
add_command(app, check, CheckData, plugins=True)
add_command(list_app, list_methods, ListMethods, "methods", plugins=True)
add_command(list_app, list_backbones, ListBackbones, "backbones")
add_command(list_app, list_settings, ListSettings, "settings", plugins=True)
