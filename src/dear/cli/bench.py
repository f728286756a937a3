"""`dear bench`: the four protocols over data sets × methods × choices × seeds, as grids that can be resumed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dear.cli.talk import say, step_bar
from dear.cli.train import Clip, Device, Pretrained, Root, Views, Workers, literal
from dear.errors import ConfigError

if TYPE_CHECKING:
    from dear.evaluation.cells import Cell
    from dear.evaluation.grid import Setting
    from dear.evaluation.results import CellResult

TRANSFER = ("cross-dataset", "domain")

app = typer.Typer(help="The paper's protocols, as resumable grids with tables.", no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="Folder for cells, runs, table.csv and table.md.")]
Data = Annotated[
    str | None,
    typer.Option(help="Comma-separated names, folders or lists; by default the world's sets or the paper's."),
]
Source = Annotated[str | None, typer.Option(help="What is learned; by default imagenet, or world-broad.")]
Methods = Annotated[str, typer.Option(help="Comma-separated, see 'dear ls methods'.")]
Seeds = Annotated[str, typer.Option(help="Comma-separated.")]
Shots = Annotated[str, typer.Option(help="Images a class to learn from; comma-separated.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=V1,V2",
        help="Values of a method's choice, each a variant, such as mask=roles,all_mixed; may be repeated.",
    ),
]
Roles = Annotated[str | None, typer.Option(help="Role map: a name, a roles.json, or discover's folder.")]
Epochs = Annotated[int, typer.Option(min=1, help="Rounds through the images.")]
Cache = Annotated[
    Path | None, typer.Option(help="Folder for what the frozen layers make of images; by default OUT/cache.")
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Keep none of that: needs no disk, takes longer.")]
Jobs = Annotated[int, typer.Option(min=1, help="Cells computed at the same time, each in a process of its own.")]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1, help="Threads a cell computes with; by default the cores shared by the jobs. Same number, same bytes."
    ),
]
Validate = Annotated[
    bool, typer.Option("--validate", help="Leave test images alone: test on training images that were not drawn.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the grid in OUT: what is done is not done again.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start the grid in OUT again.")]


def _run(
    protocol: Any,
    out: Out,
    clip: Clip = "world",
    pretrained: Pretrained = None,
    root: Root = None,
    source: Source = None,
    data: Data = None,
    methods: Methods = "zero_shot,dear",
    seeds: Seeds = "1,2,3",
    shots: Shots = "16",
    sets: Sets = None,
    roles: Roles = None,
    epochs: Epochs = 10,
    cached_views: Views = 0,
    cache: Cache = None,
    no_cache: NoCache = False,
    workers: Workers = 2,
    jobs: Jobs = 1,
    threads: Threads = None,
    device: Device = None,
    validate: Validate = False,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    from dear.engine.loop import TrainSettings
    from dear.engine.ranks import local_device
    from dear.evaluation.cells import make_cells
    from dear.evaluation.grid import Setting

    broad = "world-broad" if clip == "world" else "imagenet"
    if protocol in TRANSFER:
        source = source or broad
    cells = make_cells(
        protocol,
        _split(data) if data is not None else _default_data(protocol, broad, source),
        methods=_split(methods),
        seeds=_whole("seeds", seeds, least=0),
        shots=_whole("shots", shots, least=1),
        source=source,
        choices=_choices(sets or [], roles),
    )
    setting = Setting(
        out=out,
        clip=clip,
        pretrained=pretrained,
        root=root,
        device=local_device(device),
        train=TrainSettings(epochs=epochs),
        cached_views=cached_views,
        cache=None if no_cache else cache or out / "cache",
        workers=workers,
        validate=validate,
        threads=threads,
    )
    _carry_out(cells, setting, resume=resume, overwrite=overwrite, jobs=jobs)


def _add(protocol: str, about: str, *, shots: str = "16") -> None:
    """Make a command of a protocol: the options are those of `_run`, and `source` only where one is learned."""

    def command(**given: Any) -> None:
        _run(protocol, **given)

    left_out = {"protocol"} if protocol in TRANSFER else {"protocol", "source"}
    whole = inspect.signature(_run, eval_str=True)
    kept = [one for name, one in whole.parameters.items() if name not in left_out]
    changed = [one.replace(default=shots) if one.name == "shots" else one for one in kept]
    command.__signature__ = whole.replace(parameters=changed)  # type: ignore[attr-defined]
    app.command(protocol, help=about)(command)


_add("base-to-novel", "Learn half of the classes; test that half and the other, each among its own classes.")
_add("few-shot", "Learn all classes from 1, 2, 4, 8 and 16 images each.", shots="1,2,4,8,16")
_add("cross-dataset", "Learn one data set; test others.")
_add("domain", "Learn one data set; test its shifted variants.")


def _carry_out(cells: Sequence[Cell], setting: Setting, **how: Any) -> None:
    from dear.evaluation.grid import run_grid
    from dear.evaluation.tables import to_markdown

    def tell(done: int, result: CellResult) -> None:
        scores = ", ".join(f"{s.data} {s.part} {s.fusion:.1f}" for s in result.scores[:3])
        name = f"{result.method} {result.variant}".strip()
        say(f"[{done}/{len(cells)}] {name}, {result.data}, seed {result.seed}, {result.shots} shots: {scores}")
        problems = [problem for one in result.scores for problem in one.problems]
        if problems:
            say(f"  {len(problems)} test image(s) count as wrong, the first: {problems[0]}")

    with step_bar() as show:
        results = run_grid(cells, setting, on_cell=tell, on_step=show, **how)
    typer.echo(to_markdown(results))
    say(f"tables: {setting.out / 'table.csv'}, {setting.out / 'table.md'}")


def _default_data(protocol: str, broad: str, source: str | None) -> list[str]:
    """The data sets of the world or of the paper; those that are `broad` shifted are for domain, or for the world."""
    from dear.data.catalog import declarations
    from dear.world.datasets import world_dataset_names

    names = world_dataset_names() if broad == "world-broad" else tuple(declarations())
    shifted = [name for name in names if name.startswith(broad) and name != broad]
    if protocol == "domain":
        return shifted
    if protocol == "base-to-novel" and broad == "world-broad":
        return list(names)
    return [name for name in names if name not in shifted and name != source]


def _choices(sets: list[str], roles: str | None) -> dict[str, list[Any]]:
    choices: dict[str, list[Any]] = {"roles": [roles]} if roles else {}
    for one in sets:
        name, equals, values = one.partition("=")
        if not equals or not name.strip() or not _split(values):
            raise ConfigError(f"--set {one!r} is not NAME=V1,V2, as in --set beta=0.5,0.9.")
        choices[name.strip()] = [literal(value) for value in _split(values)]
    return choices


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole(what: str, text: str, least: int) -> list[int]:
    for part in _split(text):
        if not part.isdecimal() or int(part) < least:
            raise ConfigError(f"--{what} has {part!r}, but takes whole numbers from {least} on, as in 1,2,3.")
    return [int(part) for part in _split(text)]
