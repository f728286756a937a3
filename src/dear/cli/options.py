"""The options of the commands, each written once, and those of a training as one value."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dear.cli.config_files import Option, options_of, read_config, write_config
from dear.errors import ConfigError

if TYPE_CHECKING:
    from dear.engine.settings import TrainSettings

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


class Training(NamedTuple):
    """How to train, as the options say; what is None is as the recipe or the command says."""

    recipe: Any
    settings: TrainSettings
    cached_views: int | None
    cache: Path | None
    no_cache: bool
    workers: int
    device: str
    threads: int | None
    given: Mapping[str, Any] = {}
    """What the command was given, by the names of its parameters."""
    options: Mapping[str, Option] = {}
    """The command's options, by their names in a config file."""

    def config_writer(self, out: Path, **resolved: Any) -> Callable[[], None]:
        """What writes the command's options to OUT/config.yaml when it is first called, with what was decided since."""
        return once(partial(write_config, out, self.options, self.given, **resolved))

    def cache_in(self, out: Path) -> Path | None:
        """The cache folder: the one named, by default one in the output folder, or None."""
        return None if self.no_cache else self.cache or out / "cache"


def training(
    recipe: Annotated[
        str,
        typer.Option(
            metavar="own|shared", help="Recipe: own, as the method was published, or shared, one for all methods."
        ),
    ] = "own",
    epochs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of epochs; by default the recipe's.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Batch size; by default the recipe's.")
    ] = None,
    lr: Annotated[float | None, typer.Option(metavar="RATE", help="Learning rate; by default the recipe's.")] = None,
    decay: Decay = None,
    warmup_epochs: Warmup = None,
    micro_batch: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Maximum images per forward pass, to save memory; same result."),
    ] = None,
    class_chunk: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Maximum classes to encode at once, to save memory; same result."),
    ] = None,
    precision: Annotated[
        str, typer.Option(metavar="auto|fp32|bf16|fp16", help="Precision of the activations.")
    ] = "auto",
    cached_views: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=10_000,
            help="Cached views per image to train on (faster); 0, the default except for 'dear paper --mini', draws "
            "new views in every epoch.",
        ),
    ] = None,
    cache: Cache = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Cache nothing: needs no disk space, takes longer.")
    ] = False,
    workers: Workers = 2,
    device: Device = None,
    threads: Threads = None,
) -> Training:
    """The options of a training, checked."""
    from dear.engine.ranks import local_device
    from dear.engine.settings import TrainSettings
    from dear.methods.recipe import RECIPES

    if recipe not in RECIPES:
        raise ConfigError(f"--recipe is {recipe!r}, but can be own or shared.")
    if cache is not None and no_cache:
        raise ConfigError("--cache names a folder and --no-cache wants none: choose one of them.")
    told: dict[str, Any] = {"precision": precision, "micro_batch": micro_batch, "class_chunk": class_chunk}
    told |= {"decay": decay, "warmup_epochs": warmup_epochs}
    settings = TrainSettings(epochs=epochs, batch_size=batch_size, lr=lr, **told)
    return Training(recipe, settings, cached_views, cache, no_cache, workers, local_device(device), threads)


def with_training(function: Callable[..., None], **defaults: Any) -> Callable[..., None]:
    """A command with the options of a training, which it gets as `training`, and with --config.

    `defaults` replaces defaults of the function's own parameters; a parameter set to `...` is left out.
    """
    own, asked = (inspect.signature(one, eval_str=True).parameters for one in (function, training))
    kept: list[inspect.Parameter] = []
    for name, one in own.items():
        if name == "training":
            kept += asked.values()
        elif defaults.get(name) is not ...:
            kept.append(one.replace(default=defaults[name]) if name in defaults else one)
    options = options_of(kept)

    def command(**given: Any) -> None:
        del given["config"]  # its callback has read it
        told = {name: given[name] for name in asked}
        others = {name: value for name, value in given.items() if name not in asked}
        function(**others, training=training(**told)._replace(given=given, options=options))

    def take_config(context: typer.Context, config: Path | None) -> Path | None:
        if config is not None and not context.resilient_parsing:
            context.default_map = read_config(config, options, f"'{context.command_path}'")
        return config

    about = "YAML file with options of this command, such as OUT/config.yaml; what is typed here overrides it."
    option: Any = typer.Option("--config", metavar="FILE", is_eager=True, callback=take_config, help=about)
    keyword = inspect.Parameter.KEYWORD_ONLY
    config = inspect.Parameter("config", keyword, default=None, annotation=Annotated[Path | None, option])
    merged = [one.replace(kind=keyword) for one in (*kept, config)]
    command.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]
    command.__doc__, command.__name__ = function.__doc__, getattr(function, "__name__", "command")
    return command


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
