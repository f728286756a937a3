"""`dear roles`: find out what heads do, look at it, compare it, prove it by intervention."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dear.errors import ConfigError

if TYPE_CHECKING:
    from dear.backbone.clip import FrozenClip

app = typer.Typer(help="What attention heads do: discover, show, compare and test their roles.", no_args_is_help=True)

Clip = Annotated[str, typer.Option(help="Backbone, as for load_clip: world, local-dir:FOLDER, ViT-B-16-quickgelu …")]
Pretrained = Annotated[str | None, typer.Option(help="Weights of a named backbone, such as openai.")]


@app.command()
def discover(
    clip: Clip,
    images: Annotated[str, typer.Option(help="Folder with images, 'world', or a data set for its training images.")],
    out: Annotated[Path, typer.Option(help="Folder for roles.json, discovery.json and index.html.")],
    root: Annotated[Path | None, typer.Option(help="Folder that holds the paper's data sets.")] = None,
    pool: Annotated[str, typer.Option(help="Phrases: 'photographs', 'world' or a file, one a line.")] = "photographs",
    pretrained: Pretrained = None,
    rule: Annotated[str, typer.Option(help="dominance or quantile.")] = "dominance",
    phrases: Annotated[int, typer.Option(min=1, help="Phrases per head.")] = 20,
    first_layer: Annotated[int | None, typer.Option(min=1, help="First layer; the last four by default.")] = None,
    most_images: Annotated[int | None, typer.Option(min=2, help="Read at most so many images, evenly spread.")] = None,
    examples: Annotated[int, typer.Option(min=0, help="Images searched for each head's examples; 0 for none.")] = 256,
    sentence_model: Annotated[str, typer.Option(help="Sentence model, by name or folder.")] = "all-MiniLM-L6-v2",
    centroids: Annotated[str, typer.Option(help="What a concept is: prototypes or clusters.")] = "prototypes",
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what the folder holds.")] = False,
) -> None:
    """Find the role of every head of a CLIP's last layers, from images and a pool of phrases."""
    from dear.cli.talk import progress_bar, say
    from dear.files import prepare_folder
    from dear.reports.discovery import FILES, write_discovery
    from dear.roles.concepts import ClusterSettings, load_encoder
    from dear.roles.discover import DiscoverySettings, first_examined_layer
    from dear.roles.discover import discover as run
    from dear.roles.examples import head_examples
    from dear.roles.moments import collect_moments
    from dear.roles.sources import images_from, pool_from
    from dear.roles.stability import stability

    choices: dict[str, Any] = {"rule": rule, "phrases": phrases, "first_layer": first_layer}
    clustering: dict[str, Any] = {"centroids": centroids}
    settings = DiscoverySettings(**choices, sentence_model=sentence_model, clustering=ClusterSettings(**clustering))
    text_pool, image_list = pool_from(pool), images_from(images, most_images, root)
    encode = load_encoder(sentence_model)
    backbone = _load(clip, pretrained)
    first = first_examined_layer(backbone, first_layer)
    prepare_folder(out, FILES, resume=resume, overwrite=overwrite)
    with progress_bar("reading images", len(image_list)) as advance:
        collected = collect_moments(backbone, image_list, first_layer=first, checkpoint=out, progress=advance)
    for problem in collected.problems[:5]:
        say(f"skipped: {problem}")
    if len(collected.problems) > 5:
        say(f"skipped: {len(collected.problems) - 5} more, all in discovery.json")
    say("describing heads, finding concepts …")
    source = f"found by dear roles discover on {len(image_list)} images of {Path(images).name}"
    discovery = run(backbone, collected, text_pool, encode, settings, source=source)
    variations = stability(backbone, collected, discovery, settings)
    shown = image_list.spread(examples)
    with progress_bar("finding examples", len(shown)) as advance:
        pictures = head_examples(
            backbone, shown, discovery.places, discovery.spans, discovery.texts_TE, progress=advance
        )
    typer.echo(write_discovery(out, backbone, collected, text_pool, discovery, settings, variations, pictures))


@app.command()
def show(
    roles: Annotated[str, typer.Argument(help="A roles.json, or the name of a shipped map such as vit-b-16.")],
    html: Annotated[Path | None, typer.Option(help="Also write the page to this file.")] = None,
) -> None:
    """Print a role map as a grid, and write it as a page."""
    from dear.files import write_result
    from dear.reports.role_page import role_page
    from dear.roles.grid import role_grid
    from dear.roles.rolemap import RoleMap

    role_map = RoleMap.load(roles)
    typer.echo(role_grid(role_map))
    if html is not None:
        write_result(html, role_page(role_map, title=f"Roles of attention heads: {Path(roles).name}"))
        typer.echo(str(html))


@app.command()
def compare(
    first: Annotated[str, typer.Argument(help="A roles.json or the name of a shipped map.")],
    second: Annotated[str, typer.Argument(help="The map to compare it with.")],
) -> None:
    """Print how far two role maps of the same heads agree."""
    from dear.roles.compare import compare_maps
    from dear.roles.rolemap import RoleMap

    typer.echo(compare_maps(RoleMap.load(first), RoleMap.load(second)))


@app.command()
def ablate(
    clip: Clip,
    roles: Annotated[str, typer.Option(help="A roles.json or the name of a shipped map.")],
    images: Annotated[str, typer.Option(help="Folder of class folders, or 'world'.")],
    pretrained: Pretrained = None,
    template: Annotated[str, typer.Option(help="Prompt for a folder's classes.")] = "a photo of a {}.",
    most_images: Annotated[int, typer.Option(min=10, help="Read at most so many images.")] = 2000,
    draws: Annotated[int, typer.Option(min=1, help="Random groups of heads to compare with.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Also write the tables to this Markdown file.")] = None,
) -> None:
    """Mean-ablate heads and layers, and print what zero-shot accuracy each costs."""
    from dear.cli.talk import progress_bar
    from dear.data.images import image_batches
    from dear.files import write_result
    from dear.reports.ablation import ablation_markdown
    from dear.roles.ablation import check_fits, collect_terms, measure
    from dear.roles.rolemap import RoleMap
    from dear.roles.sources import tasks_from

    if template.count("{}") != 1:
        raise ConfigError(f"The template {template!r} must hold '{{}}' exactly once, where the class name goes.")
    role_map = RoleMap.load(roles)
    image_list, tasks = tasks_from(images, template, most_images)
    backbone = _load(clip, pretrained)
    check_fits(backbone, role_map)
    with progress_bar("reading images", len(image_list)) as advance:
        groups = image_batches(image_list, backbone.preprocess_eval, size=64)
        terms, read = collect_terms(backbone, groups, progress=advance)
    report = ablation_markdown(measure(backbone, role_map, terms, [task.only(read) for task in tasks], draws=draws))
    typer.echo(report)
    if out is not None:
        write_result(out, report + "\n")


def _load(clip: str, pretrained: str | None) -> FrozenClip:
    from dear.backbone.load import load_clip

    return load_clip(clip, pretrained)
