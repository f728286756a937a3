"""`dear bench`: the four protocols over data sets × methods × settings × seeds, as grids that can be resumed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dear.cli import options as ask
from dear.cli.console import Group, cell_text, printable, say, terminal_width
from dear.cli.plugins import extensible

if TYPE_CHECKING:
    from dear.evaluation.cells import Cell, Setting
    from dear.evaluation.results import CellResult

TRANSFER = ("cross-dataset", "domain")

app = typer.Typer(help="Run the paper's protocols as resumable grids with tables.", cls=Group)

Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for cells, runs, table.csv and table.md.")]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,NAME", help="Data sets, folders or lists, comma-separated; by default the world's or the paper's."
    ),
]
Source = Annotated[
    str | None, typer.Option(metavar="NAME", help="Data set to train on; by default imagenet, or world-broad.")
]
Methods = Annotated[str, typer.Option(metavar="NAME,NAME", help="Methods, comma-separated, see 'dear ls methods'.")]
Shots = Annotated[str, typer.Option(metavar="N,N", help="Training images per class, comma-separated.")]
Validate = Annotated[
    bool, typer.Option("--validate", help="Test on training images that were not drawn, and leave test images alone.")
]


def _run(
    protocol: Any,
    out: Out,
    *,
    clip: ask.Clip = None,
    pretrained: ask.Pretrained = None,
    data_root: ask.DataRoot = None,
    source: Source = None,
    data: Data = None,
    methods: Methods = "zero_shot,dear",
    roles: ask.Roles = None,
    setting: ask.Settings = None,
    descriptions: ask.Descriptions = None,
    seeds: ask.Seeds = "1,2,3",
    shots: Shots = "16",
    training: ask.Training,
    jobs: ask.Jobs = 1,
    validate: Validate = False,
    resume: ask.Resume = False,
    overwrite: ask.Overwrite = False,
) -> None:
    from dear.evaluation.cells import Setting, make_cells
    from dear.evaluation.defaults import backbone_for, broad_set, default_data
    from dear.storage.locks import check_ours

    check_ours(out, "grid", resume=resume, overwrite=overwrite)
    named = [*([source] if source else []), *(ask.split(data) if data is not None else [])]
    name, weights = backbone_for(named, clip, pretrained)
    broad = broad_set(name)
    if protocol in TRANSFER:
        source = source or broad
    cells = make_cells(
        protocol,
        ask.split(data) if data is not None else default_data(protocol, broad, source),
        methods=ask.split(methods),
        seeds=ask.whole_numbers(seeds, "--seeds", least=0),
        shots=ask.whole_numbers(shots, "--shots", least=1),
        source=source,
        choices={**({"roles": [roles]} if roles else {}), **ask.parse_settings(setting)},
    )
    shared = Setting(
        out=out,
        clip=name,
        pretrained=weights,
        data_root=data_root,
        descriptions=descriptions,
        device=training.device,
        recipe=training.recipe,
        train=training.settings,
        cached_views=training.cached_views or 0,
        cache=training.cache_in(out),
        workers=training.workers,
        validate=validate,
        threads=training.threads,
    )
    _carry_out(cells, shared, training, resume=resume, overwrite=overwrite, jobs=jobs)


def _add(protocol: str, about: str, **defaults: Any) -> None:
    """Make a command of a protocol: the options are those of `_run`, and `source` only if one is trained on."""
    left_out = {} if protocol in TRANSFER else {"source": ...}
    command = ask.with_training(partial(_run, protocol), **left_out, **defaults)
    app.command(protocol, help=about)(extensible(command))


_add("base-to-novel", "Train on one half of the classes; test that half and the other, each among its own classes.")
_add("few-shot", "Train on all classes with 1, 2, 4, 8 and 16 images each.", shots="1,2,4,8,16")
_add("cross-dataset", "Train on one data set; test others.")
_add("domain", "Train on one data set; test its shifted variants.")


def _carry_out(cells: Sequence[Cell], setting: Setting, training: ask.Training, **how: Any) -> None:
    from dear.evaluation.grid import run_grid
    from dear.evaluation.tables import to_text

    out = setting.out
    write_config = training.config_writer(out, clip=setting.clip, pretrained=setting.pretrained)

    def tell(done: int, result: CellResult) -> None:
        write_config()
        say(cell_text(done, len(cells), result))

    results = run_grid(cells, setting, on_cell=tell, on_step=lambda metrics: write_config(), **how)
    typer.echo(printable(to_text(results, width=terminal_width())))
    say(f"tables: {out / 'table.csv'}, {out / 'table.md'}")
