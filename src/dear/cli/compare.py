"""`dear compare`: every method on every data set with every seed, ending in one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dear.cli import options as ask
from dear.cli.console import cell_text, say
from dear.errors import ConfigError

if TYPE_CHECKING:
    from dear.evaluation.results import CellResult


def compare(
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Folder for cells, runs, compare.html, compare.csv; may be one of 'bench'."
        ),
    ],
    *,
    protocol: Annotated[
        str, typer.Option(metavar="base-to-novel|few-shot", help="Protocol, as in 'dear bench'.")
    ] = "base-to-novel",
    clip: ask.Clip = None,
    pretrained: ask.Pretrained = None,
    data_root: ask.DataRoot = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="Data sets, folders or lists, comma-separated; by default the world's seven or the paper's eleven.",
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(metavar="NAME,NAME", help="all, or methods, comma-separated; see 'dear ls methods'."),
    ] = "all",
    roles: ask.Roles = None,
    setting: ask.Settings = None,
    seeds: ask.Seeds = "1,2,3",
    shots: Annotated[str, typer.Option(metavar="N,N", help="Training images per class; several for few-shot.")] = "16",
    training: ask.Training,
    epochs_of: Annotated[
        str | None,
        typer.Option(metavar="NAME=N,NAME=N", help="Other numbers of epochs for some methods; the page marks them."),
    ] = None,
    jobs: ask.Jobs = 1,
    validate: Annotated[
        bool,
        typer.Option("--validate", help="Test on training images that were not drawn, and leave test images alone."),
    ] = False,
    resume: ask.Resume = False,
    overwrite: ask.Overwrite = False,
) -> None:
    """Compare methods on data sets × seeds: one page that says which to take, with tables and tests."""
    _carry_out(
        training,
        out,
        ask.split(data) if data is not None else None,
        clip,
        protocol=protocol,
        methods=ask.split(methods),
        seeds=ask.whole_numbers(seeds, "--seeds", least=0),
        shots=ask.whole_numbers(shots, "--shots", least=1),
        settings={**({"roles": [roles]} if roles else {}), **ask.parse_settings(setting)},
        jobs=jobs,
        resume=resume,
        overwrite=overwrite,
        **_how(training, out, epochs_of, pretrained=pretrained, data_root=data_root, validate=validate),
    )


def _carry_out(training: ask.Training, out: Path, data: list[str] | None, clip: str | None, **how: Any) -> None:
    from dear.reports.compare_page import PAGE
    from dear.reports.compare_words import verdict
    from dear.workflows.compare import compare

    write_config = training.config_writer(out)

    def tell(done: int, total: int, result: CellResult) -> None:
        write_config()
        say(cell_text(done, total, result))

    found = compare(data, clip, out=out, on_cell=tell, on_step=lambda metrics: write_config(), **how)
    for row, why in sorted(found.refused.items()):
        say(f"{' '.join(filter(None, row))} could not be run: {why}")
    typer.echo("\n".join(verdict(found)))
    say(f"page: {out / PAGE}")


def _how(training: ask.Training, out: Path, epochs_of: str | None, **others: Any) -> dict[str, Any]:
    """The options of a training as `dear.compare` takes them."""
    return {
        **others,
        "recipe": training.recipe,
        "train": training.settings,
        "epochs": _numbers(epochs_of),
        "cached_views": training.cached_views or 0,
        "cache": training.cache_in(out),
        "workers": training.workers,
        "threads": training.threads,
        "device": training.device,
    }


def _numbers(text: str | None) -> dict[str, int]:
    """`NAME=N,NAME=N` as numbers by name."""
    found = {}
    for pair in ask.split(text or ""):
        name, _, number = pair.partition("=")
        if not name.strip() or not number.strip().isdecimal():
            raise ConfigError(f"--epochs-of {pair!r} is not NAME=N, as in --epochs-of maple=5.")
        found[name.strip()] = int(number)
    return found
