"""Index a folder of images for search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.cluster.blocks import Cluster
from dear.cluster.connection import connected
from dear.data.images import ImageList
from dear.data.shards import source_images
from dear.engine.ranks import local_device
from dear.errors import ConfigError, DearError
from dear.model.model import Model
from dear.options.commands import IndexImages
from dear.options.reading import check_values
from dear.progress.display import watched
from dear.progress.stages import counting, stage
from dear.retrieval.encoder import Encoder, encoder_of, head_encoder, model_encoder
from dear.retrieval.index import WHOLE, Index, read_index
from dear.retrieval.on_ray import segments_on
from dear.retrieval.update import Elsewhere, update_index
from dear.roles.auto import auto_roles
from dear.roles.known import AUTO
from dear.roles.rolemap import CORE_ATTRIBUTES, RoleMap
from dear.storage.files import as_folder
from dear.storage.locks import check_ours
from dear.workflows.machine import using_threads
from dear.workflows.opened_run import model_of

INDEXING = "images"


def index_images(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    clip: FrozenClip | str | None = None,
    pretrained: str | None = None,
    roles: RoleMap | str | Path | None = None,
    kinds: Sequence[str] | None = None,
    run: Model | str | Path | None = None,
    batch_size: int = 64,
    workers: int = 2,
    device: str | None = None,
    threads: int | None = None,
    allow_pickled: bool = False,
    on: str | None = None,
    gpus: float | None = None,
    overwrite: bool = False,
    progress: bool | Callable[[str, int, int], None] | None = None,
) -> Index:
    """Index images for `dear.search`, by a plain CLIP or by an adapter. Repeated, it only does what is new.

    Args:
        folder: folder of images and of folders of images, or tar or Parquet files: one, a pattern, or their folder.
        out: folder of the index; by default RUN/index.
        clip: a CLIP by name or from `dear.load_clip`, whose heads give a feature per attribute, without training.
        pretrained: tag of the CLIP's weights.
        roles: its role map; by default the one shipped for its weights; without one, "auto" finds one from the images.
        kinds: features besides the whole image: concepts of the map, or heads such as "head:11.4"; by default the core
            attributes.
        run: an adapter instead of a CLIP: its folder, or a loaded model.
        batch_size, workers: images per forward pass, and threads that read images.
        device, threads: "cpu" or "cuda", by default a GPU if there is one; threads on a CPU, by default all.
        allow_pickled: also read a backbone's weights from a pickled file (tensors only, never code).
        on, gpus: a cluster that encodes, "ray", "ray:auto" or "ray:HOST:PORT", and its GPUs per worker.
        overwrite: discard the existing index and start over.
        progress: True for a bar on stderr, or a function of the name of a stage, the number done, the number of all.
    """
    check_values(IndexImages, batch_size=batch_size, workers=workers, device=device, threads=threads, on=on, gpus=gpus)
    to = _place(out, run, clip)
    if kinds is not None and (isinstance(kinds, str) or not all(isinstance(kind, str) for kind in _items(kinds))):
        raise ConfigError(f"kinds is {kinds!r}, but lists kinds of features, as in ['color', 'head:11.4'].")
    listed = source_images(as_folder(folder))
    check_ours(to, "index", resume=not overwrite, overwrite=overwrite)
    with using_threads(threads), watched(counting(progress, INDEXING)), stage(INDEXING, len(listed)) as advance:
        if isinstance(run, Model):
            encoder = model_encoder(run)
        elif run is not None:
            encoder = model_encoder(model_of(run, device, allow_pickled=allow_pickled), as_folder(run), to)
        else:
            loaded = clip if isinstance(clip, FrozenClip) else None
            loaded = loaded or load_clip(clip, pretrained, local_device(device), allow_pickled=allow_pickled)  # type: ignore[arg-type]
            encoder = _clip_encoder(loaded, roles, kinds, listed, None if overwrite else to)
        size = (threads or 1, gpus or 0.0)
        with _encoding(on, size, batch_size, workers, allow_pickled) as elsewhere:
            how: dict[str, Any] = {"overwrite": overwrite, "progress": advance, "elsewhere": elsewhere}
            return update_index(encoder, as_folder(folder), to, batch_size=batch_size, workers=workers, **how)[0]


@contextmanager
def _encoding(
    on: str | None, size: tuple[int, float], batch_size: int, workers: int, allow_pickled: bool
) -> Iterator[Elsewhere | None]:
    """What encodes images on a cluster, as long as it is connected; None for this process."""
    if on is None:
        yield None
        return
    with connected(on) as ray:
        cluster = Cluster(ray, *size)
        yield segments_on(cluster, batch_size=batch_size, workers=workers, allow_pickled=allow_pickled)


def _place(out: str | Path | None, run: Model | str | Path | None, clip: FrozenClip | str | None) -> Path:
    """The folder of the index, if one thing is named that makes it."""
    if (run is None) == (clip is None):
        raise ConfigError("An index is made by a CLIP (--clip CLIP) or by an adapter (--run RUN): name one of them.")
    if out is not None:
        return as_folder(out)
    if run is None or isinstance(run, Model):
        raise ConfigError("Name a folder for the index: --out INDEX.")
    return as_folder(run) / "index"


def _clip_encoder(
    clip: FrozenClip,
    roles: RoleMap | str | Path | None,
    kinds: Sequence[str] | None,
    images: ImageList,
    before: Path | None,
) -> Encoder:
    """The features of a plain CLIP; with "auto", those of the index that exists, or of a map found from the images."""
    if roles != AUTO:
        return head_encoder(clip, roles, kinds)
    found = _encoder_before(before, clip, kinds) if before is not None else None
    return found or head_encoder(clip, auto_roles(clip, images), kinds)


def _encoder_before(to: Path, clip: FrozenClip, kinds: Sequence[str] | None) -> Encoder | None:
    """What the index in a folder was made by, if that was the same CLIP with the same kinds; else None.

    An index stays with the heads that were found for it, also when photos are added to the folder.
    """
    with suppress(DearError):
        index = read_index(to)
        encoder, lacking = encoder_of(index, clip), index.manifest.lacking
        wanted = [name for name in CORE_ATTRIBUTES if name not in lacking] if kinds is None else kinds
        if encoder.mark == index.model_sha256 and {WHOLE, *wanted} == set(encoder.kinds):
            return encoder
    return None


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) else [value]
