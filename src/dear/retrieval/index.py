"""Search images by one kind of feature: an index on disk, and exact nearest neighbours by matrix products.

An index holds, for every readable image of a folder, one unit feature of every kind that the model's method gives.
Shapes: N images, G kinds of features, E joint embedding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from PIL import Image
from pydantic import Field
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save
from torch import Tensor

from dear import documents
from dear.config import whole_number
from dear.data.images import SUFFIXES, ImageList, folder_images, image_batches, open_image
from dear.errors import ConfigError, DataError, OverwriteError, did_you_mean
from dear.files import MEGABYTE, as_folder, is_file, read_regular, sha256, write_atomic
from dear.folders import check_ours, held
from dear.loading import load
from dear.methods.base import Output
from dear.model import Model

FORMAT, FORMAT_VERSION = "dear-index", 2
LARGEST = 65536 * MEGABYTE
INDEX, FEATURES = "index.json", "features-{}.safetensors"
CLS = "cls"
BLOCK = 65536  # images compared at once
KEEP_EVERY = 4096  # newly encoded images after which an index is written, so that a stop loses little


class _Form(documents.Form):
    """Entries of index.json."""

    folder: str
    kinds: list[str] = Field(min_length=1)
    model_sha256: str
    features: str = Field(pattern=r"^features-[0-9a-f]{16}\.safetensors$")
    images: list[Annotated[tuple[str, int, int], Field(strict=False)]]


@dataclass(frozen=True)
class IndexedImage:
    """A file of the index: its path below the folder, and its size and time when it was encoded."""

    path: str
    bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Index:
    """Features of a folder's images by kind of feature."""

    folder: Path
    kinds: tuple[str, ...]
    model_sha256: str
    images: tuple[IndexedImage, ...]
    features_NGE: Tensor
    problems: tuple[str, ...]

    def features(self, kind: str) -> Tensor:
        """(N, E) features of one kind."""
        if kind not in self.kinds:
            known = ", ".join(self.kinds)
            raise ConfigError(f"There is no feature {kind!r}: choose {known}.{did_you_mean(kind, self.kinds)}")
        return self.features_NGE[:, self.kinds.index(kind)]


@dataclass(frozen=True)
class Hit:
    """A found image and its cosine with the query."""

    path: Path
    score: float


def feature_kinds(model: Model) -> tuple[str, ...]:
    """Names of the features a model gives for an image."""
    size = model.clip.geometry.image_size
    with torch.inference_mode():
        out: Output = _with_classes(model)(torch.zeros(1, 3, size, size, device=model.clip.device))
    return tuple(out.features)


def model_hash(model: Model) -> str:
    """What decides a model's image features: the backbone, the method and everything trained."""
    method = model.method
    parts = {name: sha256(_bytes(tensor)) for name, tensor in method.state_dict().items()}
    told = [model.name, model.clip.weights_sha256, method.config.first_named(), method.files, parts]
    return sha256(json.dumps(told, sort_keys=True).encode())


@torch.inference_mode()
def encode(model: Model, images: Tensor) -> Tensor:
    """(B, G, E) features of preprocessed images, of unit length."""
    out: Output = _with_classes(model)(images.to(model.clip.device))
    return torch.stack(list(out.features.values()), dim=1).float().cpu()


def _with_classes(model: Model) -> Model:
    """A model that can be run: features of images do not depend on the classes."""
    return model if model.classes is not None else model.for_classes(["thing"])


def _bytes(tensor: Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    return (plain.float() if plain.is_floating_point() else plain).numpy().tobytes()


def update_index(
    model: Model,
    folder: str | Path,
    out: Path,
    *,
    workers: int = 2,
    batch_size: int = 64,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> tuple[Index, int]:
    """Index a folder's images; only new and changed files are encoded. Returns the index and how many were encoded.

    Images that cannot be read are left out and named in `Index.problems`. If it was stopped, the next call resumes it.
    """
    listed = folder_images(folder)
    check_ours(out, "index", resume=not overwrite, overwrite=overwrite)
    with held(out, "index"):
        check_ours(out, "index", resume=not overwrite, overwrite=overwrite)  # another one may just have ended
        return _update(model, Path(folder), listed, out, workers, batch_size, overwrite, progress)


def _update(
    model: Model,
    root: Path,
    listed: ImageList,
    out: Path,
    workers: int,
    batch_size: int,
    overwrite: bool,
    progress: Callable[[int], None] | None,
) -> tuple[Index, int]:
    mark = model_hash(model)
    if not overwrite:
        _refuse_another(out, root)
    stamps = [_stamp(root, name) for name in listed.names]
    old = _reusable(out, root, mark)
    known = {image: row for row, image in enumerate(old.images)} if old else {}
    new = [index for index, stamp in enumerate(stamps) if stamp not in known]
    rows: dict[int, Tensor] = {}
    if old is not None:
        rows = {i: old.features_NGE[known[stamp]] for i, stamp in enumerate(stamps) if stamp in known}
    wanted = ImageList(tuple(listed.names[i] for i in new), lambda place: listed.open(new[place]))
    problems: list[str] = []

    def so_far() -> Index:
        kept = sorted(rows)
        return Index(
            folder=root.resolve(),
            kinds=feature_kinds(model),
            model_sha256=mark,
            images=tuple(stamps[i] for i in kept),
            features_NGE=torch.stack([rows[i] for i in kept]),
            problems=tuple(problems),
        )

    kept_at = 0
    for part in image_batches(wanted, model.clip.preprocess_eval, size=batch_size, workers=workers):
        problems += part.problems
        if part.images is not None:
            encoded = encode(model, part.images)
            rows |= {new[place]: row for place, row in zip(part.indices, encoded, strict=True)}
        if part.stop - kept_at >= KEEP_EVERY and rows:
            _write(so_far(), out)
            kept_at = part.stop
        if progress:
            progress(part.stop)
    if not rows:
        raise DataError(f"None of the images in {root} can be read; the first: {problems[0]}")
    index = so_far()
    _write(index, out)
    return index, len(new) - len(problems)


def _refuse_another(out: Path, root: Path) -> None:
    """Refuse to replace the index of another folder."""
    if not (out / INDEX).exists():
        return
    old = read_index(out)
    if old.folder != root.resolve():
        raise OverwriteError(f"{out} is the index of {old.folder}: give another folder, or replace it by --overwrite.")


def read_index(out: Path) -> Index:
    """Read an index from its folder."""
    told: dict[str, Any] = {"what": "an index", "error": DataError}
    try:
        content, version = documents.read(out / INDEX, **told, form=FORMAT, newest=FORMAT_VERSION)
        form = documents.fitting(content, _Form, where=str(out / INDEX), **told)
        if version > 1 and content.get(documents.SEAL) != documents.seal(content):
            raise ValueError
        data = read_regular(out / form.features, most=LARGEST)
        if form.features != FEATURES.format(sha256(data)[:16]):
            raise ValueError
        features = tensors_from_bytes(data)["features"].float()
        images = tuple(IndexedImage(*row) for row in form.images)
        if features.ndim != 3 or tuple(features.shape[:2]) != (len(images), len(form.kinds)):
            raise ValueError
    except OSError:
        raise DataError(f"{out} holds no index: make one with 'dear search index RUN FOLDER'.") from None
    except Exception as error:  # whatever a damaged file can cause
        raise DataError(f"The index in {out} is damaged: make it again with 'dear search index'.") from error
    return Index(
        folder=Path(form.folder),
        kinds=tuple(form.kinds),
        model_sha256=form.model_sha256,
        images=images,
        features_NGE=features,
        problems=(),
    )


def nearest(query_E: Tensor, features_NE: Tensor, count: int) -> list[tuple[int, float]]:
    """Rows with the largest cosines, largest first; ties go to the earlier row. Exact, in blocks."""
    best: list[tuple[float, int]] = []
    for start in range(0, len(features_NE), BLOCK):
        scores = features_NE[start : start + BLOCK] @ query_E
        top = scores.topk(min(count, len(scores)))
        best += [
            (-value, start + place) for value, place in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        ]
        best = sorted(best)[:count]
    return [(place, -value) for value, place in best]


def find(model: Model, index: Index, query: str | Path, *, by: str = CLS, top_k: int = 10) -> list[Hit]:
    """The images nearest to a query image by one kind of feature, or nearest to a text.

    A text is compared with the images' features of that kind: they live in the joint space.
    """
    if index.model_sha256 != model_hash(model):
        raise DataError(f"The index of {index.folder} was made by another model: make it again with this one.")
    features = index.features(by)
    if features.shape[1] != model.clip.geometry.embed_dim:
        raise DataError(f"The index of {index.folder} is damaged: make it again with 'dear search index'.")
    path = Path(query)
    if is_file(path):
        image = model.clip.preprocess_eval(open_image(path))[None]
        vector = encode(model, image)[0, index.kinds.index(by)]
    elif path.suffix.lower() in SUFFIXES:
        raise ConfigError(f"There is no image {query}: check the path, or search for a text without a file ending.")
    else:
        vector = model.method.encode_text(model.clip, [str(query)])[0].cpu()
    return [Hit(index.folder / index.images[row].path, score) for row, score in nearest(vector, features, top_k)]


def search(
    run: str | Path | Model,
    query: str | Path,
    *,
    index: str | Path | None = None,
    by: str = CLS,
    top_k: int = 12,
    device: str | None = None,
) -> list[Hit]:
    """Search an index by an image or a text, nearest images first.

    Args:
        run: folder of a run or adapter, or a loaded model.
        query: path of an image, or a text such as "a striped star".
        index: folder of the index, made by 'dear search index'; by default RUN/index.
        by: kind of feature: "cls" for the whole image, or another one that the method gives.
        top_k: number of results.
        device: "cpu", "cuda"; by default the CPU.
    """
    whole_number("top_k", top_k, least=1)
    if not isinstance(query, str | Path):
        raise ConfigError(f"The query is of type {type(query).__name__}: give the path of an image, or a text.")
    if index is None and isinstance(run, Model):
        raise ConfigError("Name the folder of the index: search(model, query, index=FOLDER).")
    stored = read_index(as_folder(index) if index is not None else as_folder(run) / "index")  # type: ignore[arg-type]
    stored.features(by)
    model = run if isinstance(run, Model) else load(run, device=device)
    return find(model, stored, query, by=by, top_k=top_k)


def open_hit(hit: Hit, side: int = 160) -> Image.Image:
    """A found image as a small square picture."""
    image = open_image(hit.path)
    image.thumbnail((side, side))
    return image


def _stamp(root: Path, name: str) -> IndexedImage:
    facts = (root / name).stat()
    return IndexedImage(name, facts.st_size, facts.st_mtime_ns)


def _reusable(out: Path, root: Path, mark: str) -> Index | None:
    """The index that is already there, if it is whole and of the same model and folder."""
    try:
        old = read_index(out)
    except DataError:
        return None
    return old if (old.model_sha256, old.folder) == (mark, root.resolve()) else None


def _write(index: Index, out: Path) -> None:
    """Features under a name of their own, then the index that names them: at any moment one whole index is there."""
    data = save({"features": index.features_NGE.half().contiguous()})
    features = FEATURES.format(sha256(data)[:16])
    content: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "folder": str(index.folder),
        "kinds": list(index.kinds),
        "model_sha256": index.model_sha256,
        "features": features,
        "images": [[image.path, image.bytes, image.mtime_ns] for image in index.images],
    }
    text = documents.to_json(documents.sealed(content))
    try:
        write_atomic(out / features, data)
        write_atomic(out / INDEX, text)
        for old in out.glob(FEATURES.format("*")):
            if old.name != features:
                old.unlink()
    except OSError as error:
        raise DataError(f"The index cannot be written to {out} ({error.strerror}): make room and try again.") from None
