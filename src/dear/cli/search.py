"""`dear search`: index a folder once, then search it by image or text, by one kind of feature."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dear.cli import options as ask
from dear.cli.console import Group, json_line, printable, progress_bar, say
from dear.cli.plugins import command
from dear.errors import ConfigError

if TYPE_CHECKING:
    from dear.retrieval.search import Found

app = typer.Typer(help="Search images by an image or a text, by one kind of feature.", cls=Group)
old_app = typer.Typer(help="The former name of 'dear search'.", cls=Group)

Photos = Annotated[Path, typer.Argument(metavar="PHOTOS", help="Folder of images, and of folders of images.")]
Extra = Annotated[Path | None, typer.Argument(metavar="", hidden=True, help="PHOTOS, if RUN comes first.")]
Query = Annotated[
    str | None,
    typer.Argument(metavar="QUERY", help="An image, or a text such as 'a striped star'.", show_default=False),
]
MadeBy = Annotated[
    Path | None, typer.Option("--run", metavar="RUN", help="Adapter to search with: folder of a run or saved adapter.")
]
PlainClip = Annotated[
    str | None,
    typer.Option(
        "--clip",
        metavar="NAME",
        help="CLIP to search with, without an adapter: an OpenCLIP name, hf-hub:ORG/REPO, local-dir:FOLDER or world.",
    ),
]
BY = "Kind of feature to compare: cls for the whole image, color, …, head:11.4; all for one row of each."
By = Annotated[str, typer.Option(metavar="NAME", help=BY)]
Results = Annotated[int, typer.Option("-k", "--top-k", metavar="N", min=1, help="Number of results.")]
SheetFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Contact sheet to write: a .html or .png file.")]
OldIndex = Annotated[
    Path | None,
    typer.Option("--index", metavar="FOLDER", help="Folder of the index, if INDEX is the run that made it."),
]


@command(app)
def index(
    photos: Photos,
    second: Extra = None,
    clip: PlainClip = None,
    pretrained: ask.Pretrained = None,
    roles: ask.Roles = None,
    kinds: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="Features to keep besides the whole image: concepts of the role map, or heads such as head:11.4; by "
            "default the map's core attributes.",
        ),
    ] = None,
    run: MadeBy = None,
    to: Annotated[
        Path | None,
        typer.Option("--out", "--index", metavar="INDEX", help="Folder for the index; by default RUN/index."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Discard the index that is there and start over.")
    ] = False,
    batch_size: ask.BatchSize = 64,
    workers: ask.Workers = 2,
    device: ask.Device = None,
    threads: ask.Threads = None,
) -> None:
    """Index the images of PHOTOS by a CLIP or an adapter; repeated, only new and changed files are encoded."""
    from dear.data.images import folder_images
    from dear.engine.ranks import local_device
    from dear.workflows.index import index_images

    if second is not None:
        if run is not None:
            raise ConfigError(f"{second} is one folder too many: give PHOTOS, and the adapter as --run RUN.")
        run, photos = photos, second
        say("note: 'dear search index RUN PHOTOS' is now written 'dear search index PHOTOS --run RUN'.")
    ask.use_threads(threads)
    total = len(folder_images(photos))
    made: dict[str, Any] = {"clip": clip, "pretrained": pretrained, "roles": roles, "run": run}
    made["kinds"] = None if kinds is None else ask.split(kinds)
    with progress_bar("images", total) as advance:
        how: dict[str, Any] = {"workers": workers, "batch_size": batch_size, "overwrite": overwrite}
        found = index_images(photos, to, **made, **how, device=local_device(device), progress=advance)
    for problem in found.problems:
        say(f"left out: {problem}")
    if lacking := found.manifest.lacking:
        say(f"The role map has no head for {', '.join(lacking)}: there is no search by that.")
    typer.echo(
        f"{len(found):,} images in the index, {found.encoded:,} of them new; searchable by {', '.join(found.kinds)}"
    )
    typer.echo(printable(f"next: dear search find {found.out} PHOTO --by {found.kinds[-1]}"))


@command(app)
def find(
    folder: Annotated[
        Path, typer.Argument(metavar="INDEX", help="Folder of the index, or of a run that has one.", show_default=False)
    ],
    query: Query = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Words besides an image; both count the same.")
    ] = None,
    by: By = "cls",
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--not", metavar="NAME", help="Attribute to leave out, to compare by everything else; may be repeated."
        ),
    ] = None,
    swap: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=IMAGE", help="Take one attribute from another image, as in color=other.jpg; may be repeated."
        ),
    ] = None,
    top_k: Results = 12,
    min_score: Annotated[
        str | None,
        typer.Option(
            metavar="SCORE|auto",
            help="Leave out results below this score; auto for the one proposed by the spread of scores.",
        ),
    ] = None,
    sheet: SheetFile = None,
    as_json: ask.Json = False,
    run: MadeBy = None,
    clip: PlainClip = None,
    pretrained: ask.Pretrained = None,
    device: ask.Device = None,
    threads: ask.Threads = None,
    to: OldIndex = None,
) -> None:
    """Print the images nearest to QUERY, nearest first: as a whole, by one attribute, or by each of them."""
    from dear.engine.ranks import local_device
    from dear.reports.sheet import write_found
    from dear.retrieval.encoder import encoder_of
    from dear.retrieval.search import asked, check
    from dear.retrieval.search import find as find_in
    from dear.workflows.search import opened

    ask.use_threads(threads)
    told: dict[str, Any] = {"by": by, "without": tuple(without or ()), "swap": _swaps(swap), "top_k": top_k}
    wanted = asked(query, text=text, min_score=_least(min_score), **told)
    stored, model = opened(folder, to)
    check(stored, wanted)
    on = local_device(device)
    given = _given(run, clip, pretrained, on) or model
    found = find_in(encoder_of(stored, given, device=on), stored, wanted)
    for one in found:
        _print(one, as_json, headed=len(found) > 1, left_out=min_score is not None)
    if sheet is not None:
        write_found(sheet, wanted, found)
        say(f"sheet: {sheet}")


def _given(run: Path | None, clip: str | None, pretrained: str | None, device: str) -> Any:
    """What made the index, if it is named: a run, or a CLIP, which is loaded."""
    from dear.backbone.load import load_clip

    if run is not None and clip is not None:
        raise ConfigError("An index is made by a CLIP (--clip) or by an adapter (--run): name one of them, or neither.")
    return run if clip is None else load_clip(clip, pretrained, device)


def _print(found: Found, as_json: bool, *, headed: bool, left_out: bool) -> None:
    if found.remark:
        say(f"note: {found.remark}")
    if headed and not as_json:
        typer.echo(f"{found.title}:")
    for hit in found.hits:
        row = {"image": str(hit.path), "score": round(hit.score, 6), "by": hit.by, "matches": hit.matches}
        mark = "" if hit.matches else "  (below)"
        typer.echo(json_line(row) if as_json else printable(f"{hit.score:.3f}  {hit.path}{mark}"))
    below = sum(not hit.matches for hit in found.hits)
    if left_out and not found.hits:
        say(f"Nothing by {found.by} reaches a score of {found.least:.3f}.")
    elif below:
        say(
            f"{below} of {len(found.hits)} by {found.by} lie below {found.least:.3f}, the least score that is "
            f"proposed: --min-score auto leaves them out."
        )


def _least(text: str | None) -> float | str | None:
    try:
        return text if text in (None, "auto") else float(str(text))
    except ValueError:
        raise ConfigError(f"--min-score is {text!r}, but is a number, or auto for the proposed one.") from None


def _swaps(pairs: list[str] | None) -> dict[str, Path]:
    found = {}
    for pair in pairs or ():
        kind, equals, image = pair.partition("=")
        if not equals or not kind.strip() or not image.strip():
            raise ConfigError(f"--swap {pair!r} is not NAME=IMAGE, as in --swap color=other.jpg.")
        found[kind.strip()] = Path(image.strip())
    return found


@old_app.command("index", hidden=True)
def old_index(
    run: ask.Run,
    photos: Photos,
    to: Annotated[Path | None, typer.Option("--index", metavar="FOLDER", help="Folder of the index.")] = None,
    workers: ask.Workers = 2,
    device: ask.Device = None,
) -> None:
    """Index the images of PHOTOS: the former name of 'dear search index'."""
    say("note: 'dear retrieve index' is now called 'dear search index', written 'dear search index PHOTOS --run RUN'.")
    index(photos, run=run, to=to, workers=workers, device=device)


@old_app.command("search", hidden=True)
def old_search(
    run: ask.Run,
    query: Query,
    by: Annotated[str, typer.Option("--by", "--attribute", metavar="NAME", help=BY)] = "cls",
    top_k: Annotated[int, typer.Option("-k", "--top-k", "--count", metavar="N", min=1, help="Number of results.")] = 10,
    to: Annotated[Path | None, typer.Option("--index", metavar="FOLDER", help="Folder of the index.")] = None,
    sheet: SheetFile = None,
    as_json: ask.Json = False,
    device: ask.Device = None,
) -> None:
    """Print the images nearest to QUERY: the former name of 'dear search find'."""
    say("note: 'dear retrieve search' is now called 'dear search find', with --by and --top-k.")
    find(run, query, by=by, top_k=top_k, to=to, sheet=sheet, as_json=as_json, device=device)
