"""The options of the commands, each written once, and those of a training as one value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dear.errors import ConfigError

if TYPE_CHECKING:
    pass

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or of a saved adapter.")]
DataRoot = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Folder that holds the paper's data sets, in CoOp's layout.")
]
Clip = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Backbone: an OpenCLIP name, hf-hub:ORG/REPO, local-dir:FOLDER, or world (the default for its data sets).",
    ),
]
Pretrained = Annotated[str | None, typer.Option(metavar="TAG", help="Tag of the backbone's weights, such as openai.")]
Method = Annotated[str, typer.Option(metavar="NAME", help="Adaptation method, see 'dear ls methods'.")]
Roles = Annotated[
    str | None,
    typer.Option(
        metavar="MAP",
        help="Role map: a name, a roles.json, the folder of 'dear roles discover', or auto, which finds one from the "
        "training images if none is shipped for the weights.",
    ),
]
Half = Annotated[str, typer.Option(metavar="all|base|novel", help="Half of the classes: all, base or novel.")]
Template = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Prompt around a class name, such as 'a photo of a {}.'.")
]
Descriptions = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Sentences about each class, for methods that read them: JSON, class name to list."
    ),
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Method setting, such as beta=0.8; may be repeated. See 'dear ls settings METHOD'.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=V1,V2",
        help="Values of a method setting, each a variant of the method, such as beta=0.5,0.9; may be repeated.",
    ),
]
Workers = Annotated[int, typer.Option(metavar="N", min=0, max=256, help="Number of image-loading threads.")]
Device = Annotated[
    str | None, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1 …; by default a GPU if there is one.")
]
Threads = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=1024, help="Threads to compute with on a CPU; by default all."),
]
BatchSize = Annotated[int, typer.Option(metavar="N", min=1, help="Number of images per forward pass.")]
Cache = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Cache folder for the frozen layers' outputs; by default OUT/cache."),
]
EvalCache = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Cache folder for the frozen layers' outputs.")]
TopK = Annotated[int, typer.Option("-k", "--top-k", metavar="N", min=1, help="Classes to list per image.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per image.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Discard the folder's contents and start over.")]
Jobs = Annotated[int, typer.Option(metavar="N", min=1, max=256, help="Number of cells to run in parallel.")]
Decay = Annotated[float | None, typer.Option(metavar="RATE", min=0, help="Weight decay; by default the recipe's.")]
Warmup = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Number of warm-up epochs; by default the recipe's.")
]
Seeds = Annotated[str, typer.Option(metavar="N,N", help="Random seeds, comma-separated.")]


def use_threads(threads: int | None) -> None:
    """Compute with this number of threads from now on."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def split(text: str) -> list[str]:
    """The parts of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(text: str, option: str, *, least: int) -> tuple[int, ...]:
    """Whole numbers from a comma-separated list, each once."""
    parts = split(text)
    if not parts or not all(part.isdecimal() and int(part) >= least for part in parts):
        raise ConfigError(f"{option} {text!r} is not a comma-separated list of whole numbers from {least} on.")
    return tuple(dict.fromkeys(int(part) for part in parts))


def parse_setting(pairs: Sequence[str] | None) -> dict[str, Any]:
    """`name=value` pairs, values read as JSON if they are JSON (0.5, true, null) and as words otherwise."""
    parsed = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {pair!r} is not NAME=VALUE, as in --set beta=0.8.")
        parsed[name.strip()] = literal(value.strip())
    return parsed


def parse_settings(pairs: Sequence[str] | None) -> dict[str, list[Any]]:
    """`name=v1,v2` pairs, each value read as `parse_setting` does."""
    parsed = {}
    for pair in pairs or ():
        name, equals, values = pair.partition("=")
        if not equals or not name.strip() or not split(values):
            raise ConfigError(f"--set {pair!r} is not NAME=V1,V2, as in --set beta=0.5,0.9.")
        parsed[name.strip()] = [literal(value) for value in split(values)]
    return parsed


def literal(text: str) -> Any:
    """A typed value: JSON if it is JSON, the text itself otherwise."""
    try:
        return json.loads(text)
    except ValueError:
        return text
