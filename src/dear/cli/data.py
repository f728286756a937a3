"""`dear data` and `dear ls`: what there is, and whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dear.cli.console import Group, columns, progress_bar, say
from dear.cli.plugins import command
from dear.errors import ConfigError, DataError, did_you_mean

LIST = " See 'dear data list'."

app = typer.Typer(help="List and verify data sets.", cls=Group)
list_app = typer.Typer(help="List methods, their settings, and backbones.", cls=Group)
old_check_app = typer.Typer(help="The former name of 'dear data check'.", cls=Group)

Root = Annotated[
    Path,
    typer.Option("--data-root", metavar="FOLDER", help="Folder that holds the paper's data sets, in CoOp's layout."),
]
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A data set's name, a folder of class folders, or a .csv or .json list."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Only read the lists; do not open the images.")]


@command(app, "list")
def list_datasets(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of a data set, for its page, license and layout.")
    ] = None,
    root: Root = Path("data"),
) -> None:
    """List every data set that has a name, and which of the paper's are present; everything about one, if named."""
    from dear.data.catalog import declarations
    from dear.data.check import is_present
    from dear.world.catalog import DATASETS

    if name is not None:
        typer.echo(columns(_about_data(name, root)))
        return
    rows = [
        (one.name, "yes" if is_present(one, root) else "no", f"{one.classes or '?'} classes", one.title)
        for one in declarations().values()
    ]
    rows += [(w.name, "yes", f"{len(w.classes)} classes", f"stands for {w.stands_for}") for w in DATASETS.values()]
    typer.echo(columns([("data set", "present", "size", "what"), *rows]))


def _about_data(name: str, root: Path) -> list[tuple[str, ...]]:
    """A data set's page, license and layout, one line each."""
    from dear.data.catalog import declarations
    from dear.data.check import is_present
    from dear.data.open import dataset_names
    from dear.world.catalog import DATASETS

    if (drawn := DATASETS.get(name)) is not None:
        what = f"{len(drawn.classes)} classes, drawn when they are read; stands for {drawn.stands_for}"
        return [("data set", name), ("what", what), ("license", "as this package"), ("get", "nothing to get")]
    if (one := declarations().get(name)) is None:
        raise DataError(f"No data set is called {name!r}.{did_you_mean(name, dataset_names()) or LIST}")
    counts = f"{one.train:,} train, {one.val:,} val, {one.test:,} test"
    return [
        ("data set", one.name),
        ("what", f"{one.title}: {one.classes} classes, {counts} images"),
        ("page", one.url or "-"),
        ("license", one.licence),
        ("cite", one.citation),
        ("get", one.get),
        *[("layout" if place == 0 else "", f"{root / part}") for place, part in enumerate(one.files())],
        ("present", "yes" if is_present(one, root) else f"no, not below {root}"),
    ]


@command(app, "check")
def check_data(name: Name, root: Root = Path("data"), quick: Quick = False) -> None:
    """Verify a data set: compare it with what it should hold, and open every image once."""
    from dear.data.catalog import declarations
    from dear.data.check import check_dataset
    from dear.data.open import open_dataset

    declared = declarations().get(name)
    total = sum(count or 0 for count in (declared.train, declared.val, declared.test)) if declared else 0
    with progress_bar("opening images", total) as advance:
        health = check_dataset(name, lambda: open_dataset(name, root), declared, decode=not quick, progress=advance)
    for note in health.notes:
        typer.echo(f"note: {note}")
    if health.problems:
        raise ConfigError(f"{name} has {len(health.problems)} problem(s):\n- " + "\n- ".join(health.problems))
    counts = ", ".join(f"{count:,} {split}" for split, count in health.counts.items())
    typer.echo(f"{name} is in order: {health.classes} classes, {counts} images.")


@command(list_app, "methods")
def list_all_methods(
    method: Annotated[
        str | None, typer.Argument(metavar="[METHOD]", help="Name of a method, for everything about it.")
    ] = None,
) -> None:
    """List every adaptation method: what it trains, touches and needs; everything about one if it is named."""
    from dear.methods.registry import get_method, list_methods

    if method is not None:
        typer.echo(columns(_facts(get_method(method))))
        return
    rows = [("method", "year", "trains", "touches", "needs")]
    for name in list_methods():
        about = get_method(name).about
        if about is None:
            rows.append((name, "-", "-", "-", "-"))
        else:
            rows.append((name, str(about.year), _trained(about), about.touches, about.needs))
    typer.echo(columns(rows))
    typer.echo("\ntrains: numbers that are trained on ViT-B/16. 'dear ls methods NAME' says more, with the citation.")


def _trained(about: Any) -> str:
    return about.trained if about.parameters is None else f"{about.parameters:,}"


def _facts(method: Any) -> list[tuple[str, ...]]:
    """Everything about a method, one line each."""
    about, doc = method.about, (method.__doc__ or "").strip().splitlines()
    rows = [("method", method.name), ("what", doc[0] if doc else "")]
    if about is not None:
        rows += [
            ("trains on ViT-B/16", _trained(about)),
            ("touches", about.touches),
            ("needs", about.needs),
            ("year", str(about.year)),
            ("cite", about.citation),
            *([("published code", f"{about.code}, licence: {about.licence}")] if about.code else []),
        ]
    readouts = ", ".join(f"{name} ({purpose})" for purpose, name in method.readouts.items())
    return [*rows, ("own recipe", _recipe(method.recipe)), ("readouts", readouts)]


@list_app.command("backbones")
def list_all_backbones() -> None:
    """List every backbone that can be adapted, with the tags of its weights for --pretrained."""
    from dear.backbone.load import list_backbones

    rows = [(name, ", ".join(tags) or "comes with this package") for name, tags in list_backbones().items()]
    typer.echo(columns([("backbone", "weights"), *rows]))


@command(list_app, "settings")
def list_settings(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="Name of a method, see 'dear ls methods'.")],
) -> None:
    """List the settings of a method for --set: name, default and meaning."""
    from dear.methods.registry import get_method

    fields = get_method(method).Config.model_fields
    if not fields:
        typer.echo(f"{method} has no settings.")
        return
    rows = [(name, _default(one), " ".join((one.description or "").split())) for name, one in fields.items()]
    typer.echo(columns([("setting", "default", "meaning"), *rows]))


@list_app.command("datasets", hidden=True)
def old_list(
    root: Annotated[Path, typer.Option("--data-root", "--root", help="As --data-root.")] = Path("data"),
) -> None:
    """List data sets: the former name of 'dear data list'."""
    say("note: 'dear ls datasets' is now called 'dear data list'.")
    list_datasets(None, root)


@old_check_app.command("data", hidden=True)
def old_check(
    name: Name,
    root: Annotated[Path, typer.Option("--data-root", "--root", help="As --data-root.")] = Path("data"),
    quick: Quick = False,
) -> None:
    """Verify a data set: the former name of 'dear data check'."""
    say("note: 'dear check data' is now called 'dear data check'.")
    check_data(name, root, quick)


def _recipe(recipe: Any) -> str:
    """How long a method trains by its own recipe."""
    if recipe.steps_per_shot:
        return f"{recipe.optimiser}, {recipe.steps_per_shot} steps per shot"
    many = "" if recipe.epochs == 1 else "s"
    return f"{recipe.optimiser}, {recipe.epochs} epoch{many}" if recipe.epochs else "no training"


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
