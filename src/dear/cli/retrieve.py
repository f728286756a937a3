"""`dear retrieve`: index a folder once, then search it by image or text, by one attribute or by all of the image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dear.cli.talk import progress_bar, say
from dear.cli.train import Device, Workers

app = typer.Typer(help="Search images by color, shape, texture, object or location.", no_args_is_help=True)

Run = Annotated[Path, typer.Argument(help="Folder of a run, or of a saved adapter.")]
IndexFolder = Annotated[Path | None, typer.Option("--index", help="Folder of the index; by default RUN/index.")]


@app.command()
def index(
    run: Run,
    folder: Annotated[Path, typer.Argument(help="Folder of images, with folders in it or not.")],
    to: IndexFolder = None,
    workers: Workers = 2,
    device: Device = None,
) -> None:
    """Encode the images of FOLDER; done again, only new and changed files are encoded."""
    from dear.artefact import load
    from dear.data.images import folder_images
    from dear.engine.ranks import local_device
    from dear.retrieval.index import update_index

    total = len(folder_images(folder))
    model = load(run, device=local_device(device))
    with progress_bar("images", total) as advance:
        found, encoded = update_index(model, folder, to or run / "index", workers=workers, progress=advance)
    for problem in found.problems:
        say(f"left out: {problem}")
    typer.echo(
        f"{len(found.images):,} images in the index, {encoded:,} of them new; searchable by {', '.join(found.kinds)}"
    )


@app.command()
def search(
    run: Run,
    query: Annotated[str, typer.Argument(help="An image, or a text such as 'a striped star'.")],
    attribute: Annotated[str, typer.Option(help="color, shape, texture, object, location, or cls for all.")] = "cls",
    count: Annotated[int, typer.Option("-k", "--count", min=1, help="So many images.")] = 10,
    to: IndexFolder = None,
    sheet: Annotated[Path | None, typer.Option(help="Contact sheet to write: a .html or .png file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON an image.")] = False,
    device: Device = None,
) -> None:
    """Print the images nearest to QUERY by one attribute's feature, nearest first."""
    from dear.artefact import load
    from dear.engine.ranks import local_device
    from dear.reports.sheet import write_sheet
    from dear.retrieval.index import read_index
    from dear.retrieval.index import search as find

    stored = read_index(to or run / "index")
    stored.features(attribute)
    model = load(run, device=local_device(device))
    hits = find(model, stored, query, attribute=attribute, count=count)
    for hit in hits:
        row = {"image": str(hit.path), "score": round(hit.score, 6)}
        typer.echo(json.dumps(row, ensure_ascii=False) if as_json else f"{hit.score:.3f}  {hit.path}")
    if sheet is not None:
        image = Path(query) if Path(query).is_file() else None
        write_sheet(sheet, f"Nearest by {attribute}", image, hits)
        say(f"sheet: {sheet}")
