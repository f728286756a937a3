"""Find the roles of a CLIP's heads and write them down, in one call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shlex import join, quote
from typing import NamedTuple

from dear import __version__
from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.cluster.blocks import Cluster
from dear.cluster.connection import connected
from dear.data.images import ImageList
from dear.data.open import open_dataset
from dear.data.shards import absolute_source
from dear.engine.ranks import local_device
from dear.errors import DearError
from dear.options.reading import check_values
from dear.options.tools import Centroids, DiscoverRoles, Rule
from dear.progress.display import watched
from dear.reports.discovery import change_rule, is_whole, write_discovery
from dear.roles.concepts import DEFAULT_SENTENCE_MODEL, ClusterSettings, load_encoder
from dear.roles.corpus import TextPool
from dear.roles.discover import DiscoverySettings, discover, first_examined_layer
from dear.roles.examples import head_examples
from dear.roles.moments import CHECKPOINT, collect_moments
from dear.roles.on_ray import ImageSource, collect_on
from dear.roles.rolemap import RoleMap
from dear.roles.sources import images_from, pool_from
from dear.roles.stability import doubt, stability_by_rule, with_stability
from dear.storage.files import as_folder, sha256
from dear.storage.locks import check_ours, locked, remove_ours
from dear.workflows.machine import using_threads

Progress = bool | Callable[[str, int, int], None]


class Discovered(NamedTuple):
    """A role map, a summary for the terminal, and what was wrong with images that were skipped."""

    roles: RoleMap
    summary: str
    problems: tuple[str, ...]


def discover_roles(
    clip: str | FrozenClip,
    images: str | Path,
    *,
    out: str | Path,
    pool: str | Path = "photographs",
    pretrained: str | None = None,
    rule: Rule = "dominance",
    phrases: int = 20,
    first_layer: int | None = None,
    max_images: int | None = None,
    examples: int = 256,
    sentence_model: str = DEFAULT_SENTENCE_MODEL,
    centroids: Centroids = "prototypes",
    data_root: str | Path | None = None,
    device: str | None = None,
    threads: int | None = None,
    on: str | None = None,
    gpus: float | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> RoleMap:
    """Find the role of every head of a CLIP's last layers, write map, evidence and page to a folder, return the map.

    Args:
        clip: a backbone's name, such as "ViT-B-16-quickgelu", or one from `dear.load_clip`.
        images: a folder of images, tar or Parquet files, "world", or a data set's name for its training images.
        out: folder for roles.json, discovery.json, index.html and the figures roles.svg and roles.pdf.
        pool: phrases that may describe a head: "photographs", "world", or a text file with one phrase per line.
        pretrained: tag of the weights, if the name needs one ("openai").
        rule, phrases: "dominance" or "quantile", and the number of phrases per head.
        first_layer: first layer to examine; by default the last four layers.
        max_images, examples: images to read, evenly spread, by default all; images to search for each head's examples.
        sentence_model: sentence model, by name or folder.
        centroids: what represents a concept: "prototypes" or "clusters".
        data_root: folder that contains the paper's data sets.
        device, threads: "cpu" or "cuda", by default a GPU if there is one; threads on a CPU, by default all.
        on, gpus: a cluster that reads the images, "ray", "ray:auto" or "ray:HOST:PORT", and its GPUs per worker.
        resume, overwrite: resume an interrupted discovery in `out`, or discard it and start over.
        progress: True for a bar on stderr, or a function of the name of a stage, the number done, the number of all.
    """
    return discover_and_write(
        clip,
        images,
        discovery_settings(rule, phrases, first_layer, sentence_model, centroids),
        out=out,
        pool=pool,
        pretrained=pretrained,
        max_images=max_images,
        examples=examples,
        data_root=data_root,
        device=device,
        threads=threads,
        on=on,
        gpus=gpus,
        resume=resume,
        overwrite=overwrite,
        progress=progress,
    ).roles


def discovery_settings(
    rule: Rule, phrases: int, first_layer: int | None, sentence_model: str, centroids: Centroids
) -> DiscoverySettings:
    """The settings of a discovery, from options of `dear roles discover`."""
    check_values(DiscoverRoles, rule=rule, phrases=phrases, first_layer=first_layer)
    check_values(DiscoverRoles, sentence_model=sentence_model, centroids=centroids)
    return DiscoverySettings(
        rule=rule,
        phrases=phrases,
        first_layer=first_layer,
        sentence_model=sentence_model,
        clustering=ClusterSettings(centroids=centroids),
    )


def discover_and_write(
    clip: str | FrozenClip,
    images: str | Path,
    settings: DiscoverySettings,
    *,
    out: str | Path,
    pool: str | Path = "photographs",
    pretrained: str | None = None,
    max_images: int | None = None,
    examples: int = 256,
    data_root: str | Path | None = None,
    device: str | None = None,
    threads: int | None = None,
    on: str | None = None,
    gpus: float | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Discovered:
    """As `discover_roles`, with a summary; whatever can be refused is refused before anything is written."""
    check_values(
        DiscoverRoles, max_images=max_images, examples=examples, device=device, threads=threads, on=on, gpus=gpus
    )
    folder = as_folder(out)
    check_ours(folder, "discovery", resume=resume, overwrite=overwrite)
    text_pool = pool_from(str(pool))
    root = as_folder(data_root) if data_root is not None else None
    image_list = images_from(str(images), max_images, root).remembering()
    with using_threads(threads), watched(progress):
        backbone = clip if isinstance(clip, FrozenClip) else load_clip(clip, pretrained, local_device(device))
        first = first_examined_layer(backbone, settings.first_layer)
        made_from = _made_from(backbone, image_list, first, text_pool, settings, examples)
        if resume and is_whole(folder, made_from):
            with locked(folder, "discovery"):
                return Discovered(*change_rule(folder, settings.rule), ())
        encode = load_encoder(settings.sentence_model)
        with locked(folder, "discovery"):
            check_ours(folder, "discovery", resume=resume, overwrite=overwrite)  # another one may just have ended
            if overwrite:
                remove_ours(folder, (CHECKPOINT,))  # the old map stays until the new one is whole
            if on is not None:
                place = ImageSource(absolute_source(images), max_images, str(root.resolve()) if root else None)
                with connected(on) as ray:
                    to = Cluster(ray, threads or 1, gpus or 0.0)
                    collect_on(to, backbone, image_list, place, first_layer=first, out=folder)
            collected = collect_moments(backbone, image_list, first_layer=first, checkpoint=folder)
            source = f"found by dear roles discover on {collected.whole().count} images of {Path(images).name}"
            discovery = discover(backbone, collected, text_pool, encode, settings, source=source)
            variations = stability_by_rule(backbone, collected, discovery, settings)
            discovery = with_stability(discovery, variations)
            shown = image_list.spread(examples)
            pictures = head_examples(backbone, shown, discovery.places, discovery.spans, discovery.texts_TE)
            parts = backbone, collected, text_pool, discovery, settings, variations, pictures
            summary = write_discovery(folder, *parts, made_from)
    return Discovered(discovery.roles, summary, tuple(collected.problems))


def next_step(
    found: Discovered, clip: str, pretrained: str | None, images: str, out: Path, data_root: Path | None
) -> str:
    """What to do after a discovery: train with its map, or, if resampling does not confirm it, better not."""
    best = _best_map(out, found.roles)
    train = _train_command(clip, pretrained, images, data_root)
    if doubt(RoleMap.load(best)) is None:
        return f"Next: {join([*train, '--roles', str(best), '--out', 'runs/mine'])}"
    return (
        "Next: repeat the discovery with more images (a few thousand different photos are enough), or train without "
        f"roles:\n  {join([*train, '--set', 'mask=all_mixed', '--out', 'runs/mine'])}\n"
        f"Training with this map (--roles {quote(str(best))}) is possible, but its roles may be no better than random "
        "ones: compare with --set mask=shuffled."
    )


def _train_command(clip: str, pretrained: str | None, images: str, data_root: Path | None) -> list[str]:
    """The beginning of a command that trains; on the same images if they are in class folders."""
    words = ["dear", "train"]
    try:
        open_dataset(images, data_root)
        words.append(images)
        if data_root is not None and not Path(images).is_dir():
            words += ["--data-root", str(data_root)]
    except DearError:
        words.append("world-textures" if images == "world" else "PHOTOS")
    return [*words, "--clip", clip, *(["--pretrained", pretrained] if pretrained else [])]


def _best_map(out: Path, chosen: RoleMap) -> Path:
    """The map to train with: the chosen one, unless only the other rule finds specialised heads."""
    others = [] if chosen.is_specialised else sorted(out.glob("roles-*.json"))
    return next((path for path in others if RoleMap.load(path).is_specialised), out)


def _made_from(
    clip: FrozenClip, images: ImageList, first: int, pool: TextPool, settings: DiscoverySettings, examples: int
) -> str:
    """Changes with everything that decides a discovery but the rule."""
    others = settings.model_dump(mode="json", exclude={"rule"})
    facts = [clip.weights_sha256, clip.precision, images.sha256, first, pool.sha256, others, examples, __version__]
    return sha256(json.dumps(facts, sort_keys=True).encode())
