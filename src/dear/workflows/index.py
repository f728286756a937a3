"""Index a folder of images for search."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.config import whole_number
from dear.data.images import folder_images
from dear.errors import ConfigError, DearError
from dear.model.load import load
from dear.model.model import Model
from dear.retrieval.encoder import Encoder, encoder_of, head_encoder, model_encoder
from dear.retrieval.index import WHOLE, Index, read_index
from dear.retrieval.update import Progress, update_index
from dear.roles.auto import auto_roles
from dear.roles.known import AUTO
from dear.roles.rolemap import CORE_ATTRIBUTES, RoleMap
from dear.storage.files import as_folder
from dear.storage.locks import check_ours


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
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Index:
    """Index a folder's images for `dear.search`, by a plain CLIP or by an adapter. Repeated, it only does what is new.

    Args:
        folder: folder of images, and of folders of images.
        out: folder of the index; by default RUN/index.
        clip: a CLIP by name or from `dear.load_clip`, whose heads give a feature per attribute, without training.
        pretrained: tag of the CLIP's weights.
        roles: its role map; by default the one shipped for its weights; without one, "auto" finds one from the images.
        kinds: features besides the whole image: concepts of the map, or heads such as "head:11.4"; by default the core
            attributes.
        run: an adapter instead of a CLIP: its folder, or a loaded model.
        batch_size: images per forward pass.
        workers: threads that read images.
        device: "cpu", "cuda"; by default the CPU.
        overwrite: discard the index that is there and start over.
        progress: called with the number of images done.
    """
    whole_number("batch_size", batch_size, least=1)
    whole_number("workers", workers)
    if (run is None) == (clip is None):
        raise ConfigError("An index is made by a CLIP (--clip CLIP) or by an adapter (--run RUN): name one of them.")
    if out is None and (run is None or isinstance(run, Model)):
        raise ConfigError("Name a folder for the index: --out INDEX.")
    to = as_folder(out) if out is not None else as_folder(run) / "index"  # type: ignore[arg-type]
    if kinds is not None and (isinstance(kinds, str) or not all(isinstance(kind, str) for kind in _items(kinds))):
        raise ConfigError(f"kinds is {kinds!r}, but lists kinds of features, as in ['color', 'head:11.4'].")
    folder_images(as_folder(folder))
    check_ours(to, "index", resume=not overwrite, overwrite=overwrite)
    if isinstance(run, Model):
        encoder = model_encoder(run)
    elif run is not None:
        encoder = model_encoder(load(run, device=device), as_folder(run), to)
    else:
        loaded = clip if isinstance(clip, FrozenClip) else load_clip(clip, pretrained, device or "cpu")  # type: ignore[arg-type]
        before = None if overwrite or roles != AUTO else _encoder_before(to, loaded, kinds)
        found = auto_roles(loaded, folder_images(folder)) if roles == AUTO and before is None else roles
        encoder = before or head_encoder(loaded, found, kinds)
    how: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "overwrite": overwrite, "progress": progress}
    return update_index(encoder, as_folder(folder), to, **how)[0]


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


def _items(given: Any) -> list[Any]:
    return list(given) if isinstance(given, Sequence) else [given]
