"""`dear predict`: classify images, write the labels to a table, put copies or links into folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dear.cli import options as ask
from dear.cli.console import json_line, printable, say
from dear.errors import ConfigError, ImageError

if TYPE_CHECKING:
    from dear.model.predict import Prediction
    from dear.reports.labels import LabelTable, Sorter

Table = Annotated[
    Path | None, typer.Option(metavar="FILE", help="CSV file to write, one row per image; nothing is overwritten.")
]
Sorted = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Put a copy of each image into FOLDER/CLASS; images stay where they are."),
]
Link = Annotated[bool, typer.Option("--link", help="With --sort-into: links instead of copies.")]


def predict(
    run: ask.Run,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Images, or folders of images.")],
    classes: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help="Other classes than the run's, comma-separated, such as 'cat,dog'."),
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Other classes than the run's, from a text file with one name per line."),
    ] = None,
    template: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Prompt around a class name; by default the run's.")
    ] = None,
    descriptions: ask.Descriptions = None,
    readout: Annotated[
        str | None, typer.Option(metavar="NAME", help="Readout of the method; by default its first one.")
    ] = None,
    top_k: ask.TopK = 3,
    out: Table = None,
    sort_into: Sorted = None,
    link: Link = False,
    batch_size: ask.BatchSize = 32,
    workers: ask.Workers = 2,
    device: ask.Device = None,
    threads: ask.Threads = None,
    as_json: ask.Json = False,
) -> None:
    """Classify images, among the run's classes or any others."""
    from dear.engine.ranks import local_device
    from dear.model.load import load
    from dear.model.predict import stream
    from dear.reports.labels import LabelTable, Sorter

    if link and sort_into is None:
        raise ConfigError("--link says how images are put into folders: say which with --sort-into FOLDER.")
    ask.use_threads(threads)
    chosen = _class_names(classes, names)
    paths, bad = _expand(images)
    table = LabelTable(out, top_k) if out is not None else None  # refused now, not after an hour
    sorter = Sorter(sort_into, link=link) if sort_into is not None else None
    model = load(run, device=local_device(device))
    how: dict[str, Any] = {"readout": readout, "top_k": top_k, "batch_size": batch_size, "workers": workers}
    found = stream(model, paths, chosen, template=template, descriptions=descriptions, **how)
    bad += _carry_out(found, table, sorter, as_json=as_json)
    if bad:
        raise typer.Exit(1)


def _carry_out(
    found: Iterator[Prediction | ImageError], table: LabelTable | None, sorter: Sorter | None, *, as_json: bool
) -> int:
    """Print, write and sort predictions as they come; how many images could not be read, which are told."""
    bad = 0
    for one in found:
        if isinstance(one, ImageError):
            say(f"not predicted: {one}")
            bad += 1
            continue
        if table is not None:
            table.add(one)
        if sorter is not None:
            sorter.put(one)
        if as_json:
            typer.echo(json_line(one.as_dict()))
        elif table is None and sorter is None:
            typer.echo(printable(f"{one.image}: " + ", ".join(f"{name} {100 * p:.1f} %" for name, p in one.top)))
    if table is not None:
        table.write()
    for told in (table, sorter):
        if told is not None:
            typer.echo(printable(told.summary()))
    return bad


def _expand(images: list[Path]) -> tuple[list[Path], int]:
    """Folders replaced by the images in them, and how many had none; photos that are passed over are told."""
    from dear.data.images import folder_images, passed_over_sentence

    paths: list[Path] = []
    bad = 0
    for one in images:
        try:
            paths += [one / name for name in folder_images(one).names] if one.is_dir() else [one]
        except ImageError as error:
            bad += 1
            say(f"not predicted: {error}")
            continue
        if one.is_dir() and (others := passed_over_sentence(one)):
            say(f"note: {others}")
    return paths, bad


def _class_names(classes: str | None, names: Path | None) -> list[str] | None:
    """Class names as typed, or from a file with one per line; None for the run's own."""
    from dear.storage.files import read_regular

    if classes is not None and names is not None:
        raise ConfigError("--classes and --names both say which classes there are: choose one of them.")
    if names is None:
        return ask.split(classes) if classes is not None else None
    try:
        lines = read_regular(names).decode("utf-8-sig").splitlines()
    except FileNotFoundError:
        raise ConfigError(f"There is no file {names}: give a text file with one class name per line.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{names} is not a list of class names in UTF-8.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{names} cannot be read ({getattr(error, 'strerror', None) or error}).") from None
    return [line.strip() for line in lines if line.strip()]
