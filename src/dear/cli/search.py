"""`dear search`: index a folder once, then search it by image or text, by one kind of feature."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dear.cli.commands import add_command
from dear.cli.console import Group, columns, json_line, printable, say
from dear.options.commands import BuildSearch, ExportIndex, IndexImages, Search

if TYPE_CHECKING:
    from dear.retrieval.search import Found

app = typer.Typer(help="Search images by an image or a text, by one kind of feature.", cls=Group, add_completion=False)


def index(options: IndexImages) -> None:
    """Index the images of PHOTOS by a CLIP or an adapter; repeated, only new and changed files are encoded."""
    from dear.workflows.index import index_images

    found = index_images(
        options.photos,
        options.out,
        clip=options.clip,
        pretrained=options.pretrained,
        roles=options.roles,
        kinds=options.kinds,
        run=options.run,
        batch_size=options.batch_size,
        workers=options.workers,
        device=options.device,
        threads=options.threads,
        allow_pickled=options.allow_pickled,
        on=options.on,
        gpus=options.gpus,
        overwrite=options.overwrite,
    )
    for problem in found.problems:
        say(f"left out: {problem}")
    if lacking := found.manifest.lacking:
        say(f"The role map has no head for {', '.join(lacking)}: there is no search by that.")
    kinds = ", ".join(found.kinds)
    typer.echo(printable(f"{len(found):,} images in the index, {found.encoded:,} of them new; searchable by {kinds}"))
    typer.echo(printable(f"next: dear search find {found.out} PHOTO --by {found.kinds[-1]}"))
    _advise(found.out, found.kinds[0])


def find(options: Search) -> None:
    """Print the images nearest to QUERY, nearest first: as a whole, by one attribute, or by each of them."""
    from dear.workflows.search import search_by_kind

    found = search_by_kind(
        options.index,
        options.query,
        text=options.text,
        by=options.by,
        without=options.without,
        swap=options.swap,
        top_k=options.top_k,
        min_score=options.min_score,
        run=options.run,
        clip=options.clip,
        pretrained=options.pretrained,
        sheet=options.sheet,
        exact=options.exact,
        device=options.device,
        threads=options.threads,
        allow_pickled=options.allow_pickled,
    )
    for one in found:
        _print(one, options.as_json, headed=len(found) > 1, left_out=options.min_score is not None)
    if options.sheet is not None:
        say(f"sheet: {options.sheet}")
    if not options.exact:
        _advise(options.index, found[0].by)


def build(options: BuildSearch) -> None:
    """Make search in a large INDEX faster: build lists with faiss, in the user's cache; photos are not read again."""
    from dear.storage.user_cache import readable
    from dear.workflows.search_lists import build_search

    found = build_search(options.index, kinds=options.kinds, threads=options.threads)
    rows = [("kind", "rows", "lists searched", "recall@10", "size", "")]
    for one, is_new in found:
        lists = f"{one.probes:,} of {one.lists:,}"
        rows.append(
            (one.kind, f"{one.rows:,}", lists, f"{one.recall:.3f}", readable(one.bytes), "" if is_new else "as before")
        )
    typer.echo(columns(rows))
    if all(one.lists == 1 for one, _ in found):
        typer.echo("One list contains all rows, so search stays exact.")
    else:
        typer.echo(
            "recall@10: share of the ten nearest images found, for photos; 'dear search find --exact' finds all."
        )


def export(options: ExportIndex) -> None:
    """Write the paths and features of INDEX to a file for a vector database."""
    from dear.workflows.search_export import export_index

    rows = export_index(options.index, options.out, to=options.to)
    typer.echo(printable(f"{options.out}: {rows:,} images"))


def _advise(folder: Path, kind: str) -> None:
    """Say what makes search in a large index faster."""
    from dear.workflows.search_lists import search_advice

    if words := search_advice(folder, kind):
        say(f"note: {words}")


def _print(found: Found, as_json: bool, *, headed: bool, left_out: bool) -> None:
    if found.remark:
        say(f"note: {found.remark}")
    if headed and not as_json:
        typer.echo(printable(f"{found.title}:"))
    for hit in found.hits:
        row = {"image": str(hit.path), "score": round(hit.score, 6), "by": hit.by, "matches": hit.matches}
        mark = "" if hit.matches else "  (below)"
        typer.echo(json_line(row) if as_json else printable(f"{hit.score:.3f}  {hit.path}{mark}"))
    below = sum(not hit.matches for hit in found.hits)
    if left_out and not found.hits:
        say(f"Nothing by {found.by} reaches a score of {found.least:.3f}.")
    elif below:
        say(
            f"{below} of {len(found.hits)} by {found.by} are below {found.least:.3f}, the proposed least score: "
            f"--min-score auto leaves them out."
        )


add_command(app, index, IndexImages, plugins=True)
add_command(app, find, Search, plugins=True)
add_command(app, build, BuildSearch)
add_command(app, export, ExportIndex)
