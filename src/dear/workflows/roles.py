"""Show, compare and test role maps."""

from __future__ import annotations

from pathlib import Path

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.data.images import image_batches
from dear.engine.ranks import local_device
from dear.errors import ConfigError
from dear.options.reading import check_values
from dear.options.tools import AblateRoles
from dear.reports.ablation import ablation_markdown
from dear.reports.role_figure import check_figure, write_figure
from dear.reports.role_page import role_page
from dear.roles.ablation import check_fits, collect_terms, measure
from dear.roles.compare import compare_maps
from dear.roles.grid import role_grid
from dear.roles.rolemap import RoleMap
from dear.roles.sources import tasks_from
from dear.roles.stability import doubt
from dear.storage.files import write_result
from dear.workflows.machine import using_threads

BATCH = 64


def show_roles(roles: str | Path | RoleMap, *, html: str | Path | None = None, figure: str | Path | None = None) -> str:
    """Return a role map as a grid of text, with a sentence if it is unstable, and write it as a page or figure.

    Args:
        roles: a role map, a roles.json, the folder of a discovery, or the name of a shipped map.
        html: page to write.
        figure: file to write the grid to, for a paper: .svg or .pdf.
    """
    if figure is not None:
        check_figure(Path(figure))
    found = _map(roles)
    if html is not None:
        title = f"Roles of attention heads: {Path(roles).name}" if isinstance(roles, str | Path) else "Role map"
        write_result(Path(html), role_page(found, title=title))
    if figure is not None:
        write_figure(found, Path(figure))
    problem = doubt(found)
    return role_grid(found) + (f"\n\n{problem}" if problem else "")


def compare_roles(roles: str | Path | RoleMap, other: str | Path | RoleMap) -> str:
    """Describe how closely two role maps of the same heads agree.

    Args:
        roles: a role map, a roles.json, the folder of a discovery, or the name of a shipped map.
        other: the map to compare it with.
    """
    return compare_maps(_map(roles), _map(other))


def ablate_roles(
    clip: str | FrozenClip,
    roles: str | Path | RoleMap,
    images: str | Path,
    *,
    pretrained: str | None = None,
    template: str = "a photo of a {}.",
    max_images: int = 2000,
    draws: int = 20,
    out: str | Path | None = None,
    device: str | None = None,
    threads: int | None = None,
) -> str:
    """Mean-ablate heads and layers; return, as Markdown, how much zero-shot accuracy each costs.

    Args:
        clip: a backbone's name, or one from `dear.load_clip`.
        roles: a role map, a roles.json, the folder of a discovery, or the name of a shipped map.
        images: a folder of class folders, or "world".
        pretrained: tag of the weights, if the name needs one ("openai").
        template: the prompt around a folder's class names.
        max_images: maximum number of images to read.
        draws: number of random groups of heads to compare with.
        out: Markdown file to write.
        device: "cpu", "cuda"; by default a GPU if there is one.
        threads: threads to compute with on a CPU; by default all.
    """
    check_values(AblateRoles, template=template, max_images=max_images, draws=draws, device=device, threads=threads)
    if template.count("{}") != 1:
        raise ConfigError(f"The template {template!r} must contain '{{}}' exactly once, where the class name goes.")
    role_map = _map(roles)
    image_list, tasks = tasks_from(str(images), template, max_images)
    with using_threads(threads):
        backbone = clip if isinstance(clip, FrozenClip) else load_clip(clip, pretrained, local_device(device))
        check_fits(backbone, role_map)
        batches = image_batches(image_list, backbone.preprocess_eval, size=BATCH)
        terms, read = collect_terms(backbone, batches)
        measured = measure(backbone, role_map, terms, [task.only(read) for task in tasks], draws=draws)
    text = ablation_markdown(measured)
    if out is not None:
        write_result(Path(out), f"{text}\n")
    return text


def _map(roles: str | Path | RoleMap) -> RoleMap:
    return roles if isinstance(roles, RoleMap) else RoleMap.load(roles)
