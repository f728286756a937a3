"""Typer commands made from classes of options: one parameter per field, and every value checked by the class itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin

import typer

from dear.options.fields import Former, Options, Repeated, Short
from dear.options.reading import Option, flag, options_of, read

AnyOptions = TypeVar("AnyOptions", bound=Options)
CONFIG = "YAML file with options of this command, such as OUT/config.yaml; what is typed here overrides it."
IMPORT = "Python file with a method of your own; it is executed, so name only what you trust. May be repeated."
CATALOG = "JSON file with data sets of your own, see 'Add a data set'. May be repeated."
EXTENDING, THIS_TIME = "Extending", "This time"
KEYWORD = inspect.Parameter.KEYWORD_ONLY


def add_command(
    app: typer.Typer,
    run: Callable[[AnyOptions], None],
    model: type[AnyOptions],
    name: str | None = None,
    *,
    config: bool = False,
    plugins: bool = False,
    about: str | None = None,
) -> None:
    """Add a command that calls `run` with the options of `model`.

    `config` adds --config, `plugins` adds --import and --catalog, `about` replaces the help text of `run`.
    """
    known = options_of(model)
    parameters = [inspect.Parameter("ctx", KEYWORD, annotation=typer.Context)]
    for one in sorted(known.values(), key=lambda one: not one.is_argument):
        parameters.append(_parameter(one, one.name))
        if former := one.fact(Former):
            parameters.append(_parameter(one, former.name, hidden=True))
    if config:
        parameters.append(_path("config", Path | None, CONFIG, THIS_TIME))
    if plugins:
        parameters.append(_path("import", list[Path] | None, IMPORT, EXTENDING))
        parameters.append(_path("catalog", list[Path] | None, CATALOG, EXTENDING))

    def command(ctx: typer.Context, **values: Any) -> None:
        typed = {
            name.rstrip("_"): value
            for name, value in values.items()
            if str(ctx.get_parameter_source(name)).endswith("COMMANDLINE")
        }
        _extend(typed.pop("import", ()), typed.pop("catalog", ()))
        run(read(model, typed, typed.pop("config", None)))

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__, command.__name__ = about or run.__doc__, run.__name__
    app.command(name or run.__name__.replace("_", "-"), help=about)(command)


def single_command(
    run: Callable[[AnyOptions], None], model: type[AnyOptions], *, config: bool = False, plugins: bool = False
) -> typer.Typer:
    """An app of one command; see `add_command`."""
    app = typer.Typer(add_completion=False)
    add_command(app, run, model, config=config, plugins=plugins)
    return app


def _extend(files: list[Path] | tuple[()], catalogs: list[Path] | tuple[()]) -> None:
    """Execute the files of --import and read those of --catalog, before any other option is looked at."""
    if files or catalogs:
        from dear.methods.plugins import add_plugins

        add_plugins(files, catalogs)


def _parameter(option: Option, name: str, hidden: bool = False) -> inspect.Parameter:
    """A field as typer wants it; values stay text, so that the class checks all of them at once."""
    if option.is_argument:
        metavar = option.metavar if option.field.is_required() else f"[{option.metavar}]"
        kind: Any = list[str] | None if option.is_list else str | None
        return _made(name, kind, typer.Argument(metavar=metavar, help=option.help, show_default=False))
    default = None if option.field.is_required() else option.field.default
    info: Any = typer.Option(
        *_names(option, name, default),
        metavar=option.metavar,
        help=option.help,
        hidden=hidden,
        rich_help_panel=option.panel or None,
        show_default=default not in (None, False, {}, ()),
        autocompletion=_completion(option) if option.choices else None,
    )
    if option.kind is bool:
        return _made(name, bool, info, default)
    if get_origin(option.kind) is dict or Repeated in option.facts:
        return _made(name, list[str] | None, info)
    if isinstance(default, tuple):
        default = ",".join(map(str, default)) or None
    text: Any = Path if option.kind is Path else str
    return _made(name, text | None, info, None if default is None else str(default))


def _names(option: Option, name: str, default: Any) -> list[str]:
    if option.kind is bool and default:
        return [f"{flag(name)}/--no-{flag(name)[2:]}"]
    short = option.fact(Short) if name == option.name else None
    return [*([short.flag] if short else []), flag(name)]


def _completion(option: Option) -> Callable[[str], list[str]]:
    return lambda incomplete: [one for one in option.choices if one.startswith(incomplete)]


def _path(name: str, kind: Any, about: str, panel: str) -> inspect.Parameter:
    option = typer.Option(flag(name), metavar="FILE", help=about, rich_help_panel=panel, show_default=False)
    return _made(name, kind, option)


def _made(name: str, kind: Any, info: Any, default: Any = None) -> inspect.Parameter:
    python_name = f"{name}_" if name in ("import", "not", "all", "json", "set", "validate") else name
    return inspect.Parameter(python_name, KEYWORD, annotation=Annotated[kind, info], default=default)
