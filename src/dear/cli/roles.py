"""`dear roles`: find out what heads do, look at it, compare it, prove it by intervention."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dear.cli import options as ask
from dear.cli.console import Group, say
from dear.cli.plugins import command
from dear.errors import ConfigError

if TYPE_CHECKING:
    from dear.roles.rolemap import RoleMap

app = typer.Typer(help="What attention heads do: discover, show, compare and test their roles.", cls=Group)

Clip = Annotated[
    str,
    typer.Option(metavar="NAME", help="Backbone: world, an OpenCLIP name, hf-hub:ORG/REPO or local-dir:FOLDER."),
]
Map = Annotated[
    str, typer.Argument(metavar="MAP", help="A roles.json, discover's folder, or the name of a shipped map: vit-b-16.")
]


@command(app)
def discover(
    clip: Clip,
    images: Annotated[
        str, typer.Option(metavar="FOLDER", help="Folder of images, world, or a data set for its training images.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for roles.json, discovery.json and index.html.")],
    data_root: ask.DataRoot = None,
    pool: Annotated[
        str, typer.Option(metavar="NAME", help="Phrases: photographs, world, or a text file with one phrase per line.")
    ] = "photographs",
    pretrained: ask.Pretrained = None,
    rule: Annotated[
        str, typer.Option(metavar="dominance|quantile", help="Rule that decides a head's role.")
    ] = "dominance",
    phrases: Annotated[int, typer.Option(metavar="N", min=1, help="Number of phrases per head.")] = 20,
    first_layer: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="First layer to examine; by default the last four layers.")
    ] = None,
    max_images: Annotated[
        int | None, typer.Option(metavar="N", min=2, help="Maximum number of images to read, evenly spread.")
    ] = None,
    examples: Annotated[
        int, typer.Option(metavar="N", min=0, help="Number of images to search for each head's examples; 0 for none.")
    ] = 256,
    sentence_model: Annotated[
        str, typer.Option(metavar="NAME", help="Sentence model, by name or folder.")
    ] = "all-MiniLM-L6-v2",
    centroids: Annotated[
        str, typer.Option(metavar="prototypes|clusters", help="What stands for a concept.")
    ] = "prototypes",
    device: ask.Device = None,
    threads: ask.Threads = None,
    resume: ask.Resume = False,
    overwrite: ask.Overwrite = False,
) -> None:
    """Find the role of every head of a CLIP's last layers, from images and a pool of phrases."""
    from dear.roles.concepts import ClusterSettings
    from dear.roles.discover import DiscoverySettings
    from dear.workflows.discover import discover_and_write

    ask.use_threads(threads)
    told: dict[str, Any] = {"rule": rule, "sentence_model": sentence_model, "phrases": phrases}
    clustering: dict[str, Any] = {"centroids": centroids}
    settings = DiscoverySettings(**told, first_layer=first_layer, clustering=ClusterSettings(**clustering))
    how: dict[str, Any] = {"data_root": data_root, "device": device, "resume": resume, "overwrite": overwrite}
    found = discover_and_write(
        clip,
        images,
        settings,
        out=out,
        pool=pool,
        pretrained=pretrained,
        max_images=max_images,
        examples=examples,
        say=say,
        **how,
    )
    typer.echo(f"{found.summary}\n")
    typer.echo(f"Next: {_train_command(clip, pretrained, images, _best_map(out, found.roles), data_root)}")


def _best_map(out: Path, chosen: RoleMap) -> Path:
    """The map to train with: the chosen one, unless only the other rule finds specialised heads."""
    from dear.roles.known import is_specialised
    from dear.roles.rolemap import RoleMap

    others = [] if is_specialised(chosen) else sorted(out.glob("roles-*.json"))
    return next((path for path in others if is_specialised(RoleMap.load(path))), out)


def _train_command(clip: str, pretrained: str | None, images: str, out: Path, data_root: Path | None) -> str:
    """What to type to train with the map; on the same images if they are in class folders."""
    from shlex import join

    from dear.data.open import open_dataset
    from dear.errors import DearError

    words = ["dear", "train"]
    try:
        open_dataset(images, data_root)
        words += [
            images,
            *(["--data-root", str(data_root)] if data_root is not None and not Path(images).is_dir() else []),
        ]
    except DearError:
        words.append("world-textures" if images == "world" else "PHOTOS")
    words += ["--clip", clip, *(["--pretrained", pretrained] if pretrained else []), "--roles", str(out)]
    return join([*words, "--out", "runs/mine"])


@app.command()
def show(
    roles: Map,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the map as a page.")] = None,
) -> None:
    """Print a role map as a grid, and write it as a page."""
    from dear.reports.role_page import role_page
    from dear.roles.grid import role_grid
    from dear.storage.files import write_result

    role_map = _map(roles)
    typer.echo(role_grid(role_map))
    if html is not None:
        write_result(html, role_page(role_map, title=f"Roles of attention heads: {Path(roles).name}"))
        typer.echo(str(html))


@app.command()
def compare(
    first: Map,
    second: Annotated[str, typer.Argument(metavar="OTHER", help="The map to compare it with.")],
) -> None:
    """Print how closely two role maps of the same heads agree."""
    from dear.roles.compare import compare_maps

    typer.echo(compare_maps(_map(first), _map(second)))


@app.command()
def ablate(
    clip: Clip,
    roles: Annotated[
        str, typer.Option(metavar="MAP", help="A roles.json, discover's folder, or the name of a shipped map.")
    ],
    images: Annotated[str, typer.Option(metavar="FOLDER", help="Folder of class folders, or world.")],
    pretrained: ask.Pretrained = None,
    template: Annotated[
        str, typer.Option(metavar="TEXT", help="Prompt around a folder's class names.")
    ] = "a photo of a {}.",
    max_images: Annotated[int, typer.Option(metavar="N", min=10, help="Maximum number of images to read.")] = 2000,
    draws: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of random groups of heads to compare with.")
    ] = 20,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the tables as Markdown.")] = None,
    threads: ask.Threads = None,
) -> None:
    """Mean-ablate heads and layers, and print how much zero-shot accuracy each costs."""
    from dear.backbone.load import load_clip
    from dear.data.images import image_batches
    from dear.reports.ablation import ablation_markdown
    from dear.roles.ablation import check_fits, collect_terms, measure
    from dear.roles.sources import tasks_from
    from dear.storage.files import write_result

    if template.count("{}") != 1:
        raise ConfigError(f"The template {template!r} must hold '{{}}' exactly once, where the class name goes.")
    ask.use_threads(threads)
    role_map = _map(roles)
    image_list, tasks = tasks_from(images, template, max_images)
    backbone = load_clip(clip, pretrained)
    check_fits(backbone, role_map)
    groups = image_batches(image_list, backbone.preprocess_eval, size=64)
    terms, read = collect_terms(backbone, groups)
    report = ablation_markdown(measure(backbone, role_map, terms, [task.only(read) for task in tasks], draws=draws))
    typer.echo(report)
    if out is not None:
        write_result(out, report + "\n")


def _map(named: str) -> Any:
    """A role map by name, file, or the folder that 'dear roles discover' wrote."""
    from dear.roles.rolemap import RoleMap

    return RoleMap.load(named)
