"""`dear bench`: the four protocols over data sets × methods × choices × seeds, as grids that can be resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dear.cli.talk import say
from dear.cli.train import Clip, Device, Pretrained, Root, Workers, literal
from dear.errors import ConfigError

if TYPE_CHECKING:
    from dear.protocols.results import CellResult

app = typer.Typer(help="The paper's protocols, as resumable grids with tables.", no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="Folder for cells, runs, table.csv and table.md.")]
Data = Annotated[str | None, typer.Option(help="Comma-separated data sets; by default all that fit the backbone.")]
Methods = Annotated[str, typer.Option(help="Comma-separated, see 'dear ls methods'.")]
Seeds = Annotated[str, typer.Option(help="Comma-separated.")]
Shots = Annotated[int, typer.Option(min=1, help="Images a class to learn from.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=V1,V2", help="Values of a choice, each a variant, such as mask=roles,all_mixed."
    ),
]
Roles = Annotated[str | None, typer.Option(help="Role map: a name, a roles.json, or discover's folder.")]
Epochs = Annotated[int, typer.Option(min=1, help="Rounds through the images.")]
Views = Annotated[int, typer.Option(min=0, help="Stored views an image, instead of new ones every epoch.")]
Cache = Annotated[Path | None, typer.Option(help="Folder for prefixes; by default OUT/cache.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Compute prefixes every time (needs no disk).")]
Jobs = Annotated[int, typer.Option(min=1, help="So many cells at once, each with its share of the cores.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the grid in OUT.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start the grid in OUT again.")]
Validate = Annotated[
    bool, typer.Option("--validate", help="Leave test images alone: test on training images that were not drawn.")
]
Source = Annotated[str | None, typer.Option(help="What is learned; by default imagenet, or world-broad.")]

_DOCS = {
    "base-to-novel": "Learn half of the classes; test that half and the other, each among its own classes.",
    "few-shot": "Learn all classes from 1, 2, 4, 8 and 16 images each.",
    "cross-dataset": "Learn one data set; test others.",
    "domain": "Learn one data set; test its shifted variants.",
}


def _run(protocol: Any, shots: list[int], source: str | None, given: dict[str, Any]) -> None:
    from dear.engine.distributed import local_device
    from dear.engine.train import TrainSettings
    from dear.protocols.cells import make_cells
    from dear.protocols.grid import Setting, run_grid
    from dear.protocols.tables import to_markdown

    out: Path = given["out"]
    data = _data_sets(protocol, given["data"], given["clip"], source)
    choices = _choices(given["sets"] or [], given["roles"])
    methods = _split(given["methods"])
    seeds = [_whole(seed) for seed in _split(given["seeds"])]
    cells = make_cells(protocol, data, methods=methods, seeds=seeds, shots=shots, source=source, choices=choices)
    setting = Setting(
        out=out,
        clip=given["clip"],
        pretrained=given["pretrained"],
        root=given["root"],
        device=local_device(given["device"]),
        train=TrainSettings(epochs=given["epochs"]),
        cached_views=given["cached_views"],
        cache=None if given["no_cache"] else given["cache"] or out / "cache",
        workers=given["workers"],
        validate=given["validate"],
    )
    _prepare(out, resume=given["resume"], overwrite=given["overwrite"])
    say(f"{len(cells)} cells: {len(data)} data set(s), {len(seeds)} seed(s)")

    def tell(done: int, result: CellResult) -> None:
        scores = ", ".join(f"{s.data} {s.part} {s.fusion:.1f}" for s in result.scores[:3])
        name = f"{result.method} {result.variant}".strip()
        say(f"[{done}/{len(cells)}] {name}, {result.data}, seed {result.seed}, {result.shots} shots: {scores}")

    results = run_grid(cells, setting, jobs=given["jobs"], on_cell=tell)
    typer.echo(to_markdown(results))
    say(f"tables: {out / 'table.csv'}, {out / 'table.md'}")


def _prepare(out: Path, *, resume: bool, overwrite: bool) -> None:
    """As every output folder: not empty is refused; starting again removes what a grid writes."""
    import shutil

    from dear.files import prepare_folder

    prepare_folder(out, ("table.csv", "table.md"), resume=resume, overwrite=overwrite)
    if overwrite:
        for part in ("cells", "runs"):
            shutil.rmtree(out / part, ignore_errors=True)


def _data_sets(protocol: str, data: str | None, clip: str, source: str | None) -> list[str]:
    from dear.data.catalog import declarations
    from dear.data.world.datasets import world_dataset_names

    if data is not None:
        return _split(data)
    names = list(world_dataset_names()) if clip == "world" else list(declarations())
    variants = [name for name in names if name.startswith(("world-broad-", "imagenet-", "imagenetv2", "imagenet_"))]
    if protocol == "domain":
        return variants
    if protocol == "base-to-novel" and clip == "world":
        return names
    return [name for name in names if name not in variants and name != source]


def _choices(sets: list[str], roles: str | None) -> dict[str, list[Any]]:
    choices: dict[str, list[Any]] = {"roles": [roles]} if roles else {}
    for one in sets:
        name, equals, values = one.partition("=")
        if not equals or not name.strip() or not values.strip():
            raise ConfigError(f"--set {one!r} is not NAME=V1,V2, as in --set beta=0.5,0.9.")
        choices[name.strip()] = [literal(value) for value in _split(values)]
    return choices


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole(text: str) -> int:
    if not text.isdigit():
        raise ConfigError(f"The seed {text!r} is not a whole number from 0 on.")
    return int(text)


@app.command("base-to-novel", help=_DOCS["base-to-novel"])
def base_to_novel(
    out: Out,
    clip: Clip = "world",
    pretrained: Pretrained = None,
    data: Data = None,
    methods: Methods = "zero_shot,dear",
    seeds: Seeds = "1,2,3",
    shots: Shots = 16,
    sets: Sets = None,
    roles: Roles = None,
    root: Root = None,
    epochs: Epochs = 10,
    cached_views: Views = 0,
    cache: Cache = None,
    no_cache: NoCache = False,
    workers: Workers = 2,
    jobs: Jobs = 1,
    device: Device = None,
    validate: Validate = False,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Base-to-novel."""
    given = {name: value for name, value in locals().items() if name != "shots"}
    _run("base-to-novel", [shots], None, given)


@app.command("few-shot", help=_DOCS["few-shot"])
def few_shot(
    out: Out,
    clip: Clip = "world",
    pretrained: Pretrained = None,
    data: Data = None,
    methods: Methods = "zero_shot,dear",
    seeds: Seeds = "1,2,3",
    shots: Annotated[str, typer.Option(help="Comma-separated.")] = "1,2,4,8,16",
    sets: Sets = None,
    roles: Roles = None,
    root: Root = None,
    epochs: Epochs = 10,
    cached_views: Views = 0,
    cache: Cache = None,
    no_cache: NoCache = False,
    workers: Workers = 2,
    jobs: Jobs = 1,
    device: Device = None,
    validate: Validate = False,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Few-shot."""
    given = {name: value for name, value in locals().items() if name != "shots"}
    _run("few-shot", [_whole(number) for number in _split(shots)], None, given)


def _transfer(protocol: str, shots: int, source: str | None, given: dict[str, Any]) -> None:
    _run(protocol, [shots], source or ("world-broad" if given["clip"] == "world" else "imagenet"), given)


@app.command("cross-dataset", help=_DOCS["cross-dataset"])
def cross_dataset(
    out: Out,
    clip: Clip = "world",
    pretrained: Pretrained = None,
    source: Source = None,
    data: Data = None,
    methods: Methods = "zero_shot,dear",
    seeds: Seeds = "1,2,3",
    shots: Shots = 16,
    sets: Sets = None,
    roles: Roles = None,
    root: Root = None,
    epochs: Epochs = 10,
    cached_views: Views = 0,
    cache: Cache = None,
    no_cache: NoCache = False,
    workers: Workers = 2,
    jobs: Jobs = 1,
    device: Device = None,
    validate: Validate = False,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Cross-dataset."""
    given = {name: value for name, value in locals().items() if name not in ("shots", "source")}
    _transfer("cross-dataset", shots, source, given)


@app.command("domain", help=_DOCS["domain"])
def domain(
    out: Out,
    clip: Clip = "world",
    pretrained: Pretrained = None,
    source: Source = None,
    data: Data = None,
    methods: Methods = "zero_shot,dear",
    seeds: Seeds = "1,2,3",
    shots: Shots = 16,
    sets: Sets = None,
    roles: Roles = None,
    root: Root = None,
    epochs: Epochs = 10,
    cached_views: Views = 0,
    cache: Cache = None,
    no_cache: NoCache = False,
    workers: Workers = 2,
    jobs: Jobs = 1,
    device: Device = None,
    validate: Validate = False,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Domain generalization."""
    given = {name: value for name, value in locals().items() if name not in ("shots", "source")}
    _transfer("domain", shots, source, given)
