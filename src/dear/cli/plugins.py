"""The options `--import` and `--catalog`, for every command that loads methods or data sets."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

PANEL = "Extending"


def _import(context: typer.Context, files: list[Path] | None) -> list[Path] | None:
    if files and not context.resilient_parsing:
        from dear.methods.plugins import import_methods

        for file in files:
            import_methods(file)
    return files


def _catalog(context: typer.Context, files: list[Path] | None) -> list[Path] | None:
    if files and not context.resilient_parsing:
        from dear.data.catalog import add_catalog

        for file in files:
            add_catalog(file)
    return files


Import = Annotated[
    list[Path] | None,
    typer.Option(
        "--import",
        metavar="FILE",
        is_eager=True,
        callback=_import,
        help="Python file with a method of your own; it is executed, so name only what you trust. May be repeated.",
        rich_help_panel=PANEL,
    ),
]
Catalog = Annotated[
    list[Path] | None,
    typer.Option(
        "--catalog",
        metavar="FILE",
        is_eager=True,
        callback=_catalog,
        help="JSON file with data sets of your own, see 'Add a data set'. May be repeated.",
        rich_help_panel=PANEL,
    ),
]


def extensible(command: Callable[..., None]) -> Callable[..., None]:
    """A command with --import and --catalog, which act before anything else is read; no config file can hold them."""
    own = inspect.signature(command, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter(name, keyword, default=None, annotation=kind)
        for name, kind in (("import_", Import), ("catalog", Catalog))
    ]

    def extended(**given: Any) -> None:
        del given["import_"], given["catalog"]  # their callbacks have used them
        command(**given)

    kept = [one.replace(kind=keyword) for one in own.parameters.values()]
    extended.__signature__ = inspect.Signature([*kept, *more])  # type: ignore[attr-defined]
    extended.__doc__, extended.__name__ = command.__doc__, getattr(command, "__name__", "command")
    return extended


def command(app: typer.Typer, name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `app.command(name)`, with --import and --catalog; the function itself stays as it is."""

    def take(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name)(extensible(function))
        return function

    return take
