"""`dear search`: index a folder once, then search it by image or text, by one kind of feature."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dear.cli import options as ask
from dear.cli.extending import command
from dear.cli.talk import Group, json_line, printable, progress_bar, say

app = typer.Typer(help="Search images by an image or a text, by one kind of feature.", cls=Group)
old_app = typer.Typer(help="The former name of 'dear search'.", cls=Group)

IndexFolder = Annotated[
    Path | None, typer.Option("--index", metavar="FOLDER", help="Folder of the index; by default RUN/index.")
]
Photos = Annotated[Path, typer.Argument(metavar="PHOTOS", help="Folder of images, and of folders of images.")]
Query = Annotated[str, typer.Argument(metavar="QUERY", help="An image, or a text such as 'a striped star'.")]
BY = "Kind of feature to compare: cls for the whole image, or another one that the method gives, such as color."
By = Annotated[str, typer.Option(metavar="NAME", help=BY)]
Results = Annotated[int, typer.Option("-k", "--top-k", metavar="N", min=1, help="Number of results.")]
SheetFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Contact sheet to write: a .html or .png file.")]


@command(app)
def index(
    run: ask.Run,
    photos: Photos,
    to: IndexFolder = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the index of another folder.")] = False,
    workers: ask.Workers = 2,
    device: ask.Device = None,
    threads: ask.Threads = None,
) -> None:
    """Index the images of PHOTOS; repeated, only new and changed files are encoded."""
    from dear.data.images import folder_images
    from dear.engine.ranks import local_device
    from dear.loading import load
    from dear.retrieval.index import update_index

    ask.use_threads(threads)
    total = len(folder_images(photos))
    model = load(run, device=local_device(device))
    with progress_bar("images", total) as advance:
        how: dict[str, Any] = {"workers": workers, "overwrite": overwrite}
        found, encoded = update_index(model, photos, to or run / "index", **how, progress=advance)
    for problem in found.problems:
        say(f"left out: {problem}")
    typer.echo(
        f"{len(found.images):,} images in the index, {encoded:,} of them new; searchable by {', '.join(found.kinds)}"
    )


@command(app)
def find(
    run: ask.Run,
    query: Query,
    by: By = "cls",
    top_k: Results = 12,
    to: IndexFolder = None,
    sheet: SheetFile = None,
    as_json: ask.Json = False,
    device: ask.Device = None,
) -> None:
    """Print the images nearest to QUERY by one kind of feature, nearest first."""
    from dear.engine.ranks import local_device
    from dear.files import is_file
    from dear.reports.sheet import write_sheet
    from dear.retrieval.index import search

    hits = search(run, query, index=to, by=by, top_k=top_k, device=local_device(device))
    for hit in hits:
        row = {"image": str(hit.path), "score": round(hit.score, 6)}
        typer.echo(json_line(row) if as_json else printable(f"{hit.score:.3f}  {hit.path}"))
    if sheet is not None:
        write_sheet(sheet, f"Nearest by {by}", Path(query) if is_file(query) else query, hits)
        say(f"sheet: {sheet}")


@old_app.command("index", hidden=True)
def old_index(
    run: ask.Run,
    photos: Photos,
    to: IndexFolder = None,
    workers: ask.Workers = 2,
    device: ask.Device = None,
) -> None:
    """Index the images of PHOTOS: the former name of 'dear search index'."""
    say("note: 'dear retrieve index' is now called 'dear search index'.")
    index(run, photos, to, False, workers, device)


@old_app.command("search", hidden=True)
def old_search(
    run: ask.Run,
    query: Query,
    by: Annotated[str, typer.Option("--by", "--attribute", metavar="NAME", help=BY)] = "cls",
    top_k: Annotated[int, typer.Option("-k", "--top-k", "--count", metavar="N", min=1, help="Number of results.")] = 10,
    to: IndexFolder = None,
    sheet: SheetFile = None,
    as_json: ask.Json = False,
    device: ask.Device = None,
) -> None:
    """Print the images nearest to QUERY: the former name of 'dear search find'."""
    say("note: 'dear retrieve search' is now called 'dear search find', with --by and --top-k.")
    find(run, query, by, top_k, to, sheet, as_json, device)
