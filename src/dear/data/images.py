"""Find images in a folder, open them safely, and read them in batches."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from dear.config import whole_number
from dear.data.jpeg import has_too_many_scans
from dear.data.packed import packed_bytes
from dear.errors import ImageError
from dear.progress.stages import Advance, stage
from dear.storage.files import MEGABYTE, NotRegularError, is_file, is_folder, letters, read_regular, sha256, shown

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"}
HEIC = {".heic", ".heif"}
"""File endings of iPhone photos, which need the extra `heic`."""
RAW = {".avif", ".jxl", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"}
"""File endings of photos that are skipped and reported."""
INSTALL_HEIC = 'pip install "dear-vlm[heic]"'
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "MPO")
"""The only decoders that are used; none of them starts another program, as the EPS decoder does."""
LARGEST_FILE = 512 * MEGABYTE
LONGEST_SIDE = 50_000
"""Most pixels of an image's longer side; a strip of a million pixels is not a photograph and cannot be resized."""
MOST_TIMES = 200
"""Longest ratio of two sides; long panoramas have 50. Scaled by its shorter side, a strip of 1 × 50,000 took 10 GB."""

MISSING = "missing"
"""Instead of the hash of an image that cannot be read."""


@dataclass(frozen=True)
class ImageList:
    """Named images, opened one at a time; opening an unreadable image raises `ImageError`."""

    names: tuple[str, ...]
    open: Callable[[int], Image.Image]
    source: str = ""
    """Origin of the images: lists with the same names from different folders are different lists."""
    content: Callable[[int], str] | None = None
    """Returns the hash of an image's bytes, so that results are recomputed when an image changes."""

    def __repr__(self) -> str:
        """The count instead of all names."""
        return f"ImageList({len(self.names):,} images{f' of {self.source}' if self.source else ''})"

    def __len__(self) -> int:
        """Number of images."""
        return len(self.names)

    @property
    def sha256(self) -> str:
        """Hash of the list: its origin, its names in order, and the content of the images."""
        content = [] if self.content is None else [self.content(index) for index in range(len(self))]
        return sha256(letters("\n".join([self.source, *self.names, *content])))

    def remembering(self) -> ImageList:
        """The same list with cached content hashes, so that the bytes of each image are hashed only once."""
        return self if self.content is None else replace(self, content=cache(self.content))

    def marks(self) -> list[str]:
        """A short hash of each image's name and content."""
        content = self.content or (lambda index: "")
        return [sha256(letters(f"{name}\n{content(index)}"))[:16] for index, name in enumerate(self.names)]

    def spread(self, count: int) -> ImageList:
        """At most `count` of the images, evenly spread over the list."""
        return self if count >= len(self) else self.chosen([index * len(self) // count for index in range(count)])

    def chosen(self, chosen: Sequence[int]) -> ImageList:
        """Some of the images, by their places in the list."""
        content = self.content
        return ImageList(
            tuple(self.names[i] for i in chosen),
            lambda index: self.open(chosen[index]),
            self.source,
            None if content is None else lambda index: content(chosen[index]),
        )


class NamedImage(NamedTuple):
    """An image that is opened when it is needed; opening an unreadable one raises `ImageError`."""

    name: str
    open: Callable[[], Image.Image]


class ImageStream(NamedTuple):
    """Named images, one after another: those of a folder, an archive or a generator, which need not fit in memory."""

    images: Iterable[NamedImage]
    total: int = 0
    """Number of images; 0 if unknown."""


def folder_images(folder: str | Path) -> ImageList:
    """All images below a folder, sorted by path."""
    root = Path(folder)
    if not root.is_dir():
        raise ImageError(f"{root} is not a folder: give a folder with images in it or below it.")
    paths = list(image_paths(root))
    if not paths:
        raise no_images(root)
    names = tuple(p.relative_to(root).as_posix() for p in paths)
    return ImageList(
        names, lambda index: open_image(paths[index]), str(root.resolve()), lambda index: content_of(paths[index])
    )


def no_images(folder: Path) -> ImageError:
    """The error for a folder without images."""
    others = passed_over_sentence(folder)
    note = f" {others}" if others else ""
    suffixes = ", ".join(sorted(readable_suffixes()))
    return ImageError(f"There are no images in {folder}: give a folder with {suffixes} files.{note}")


def image_paths(folder: Path) -> Iterator[Path]:
    """The images below a folder, sorted by path; only the names in one branch of the tree are in memory."""
    branch = [(folder, *_names_in(folder))]
    while branch:
        at, names, folders = branch[-1]
        if not names:
            branch.pop()
        elif (name := names.pop()) in folders:
            branch.append((at / name, *_names_in(at / name)))
        else:
            yield at / name


def _names_in(folder: Path) -> tuple[list[str], set[str]]:
    """The names of the images and folders in a folder, the last one first, and those of the folders."""
    names, folders = [], set()
    with suppress(PermissionError, FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.add(entry.name)
            elif not is_image_name(entry.name) or leads_to_folder(entry):
                continue
            names.append(entry.name)
    return sorted(names, reverse=True), folders


def leads_to_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one; a link that leads nowhere, or to itself, is not."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def content_of(path: Path) -> str:
    """Hash of an image's bytes; "missing" if they cannot be read."""
    try:
        return sha256(_bytes_of(path))
    except OSError:
        return MISSING


def is_image_name(name: str) -> bool:
    """Whether a file name has the ending of an image; hidden files, such as `._photo.jpg` on a Mac, do not count."""
    return not name.startswith(".") and Path(name).suffix.lower() in readable_suffixes()


def readable_suffixes() -> set[str]:
    """File endings of images that can be read with the installed packages."""
    return SUFFIXES | HEIC if reads_heic() else SUFFIXES


@cache
def reads_heic() -> bool:
    """Whether iPhone photos can be read, that is, whether the extra `heic` is installed."""
    return find_spec("pillow_heif") is not None


@cache
def _formats() -> tuple[str, ...]:
    """The decoders that may be used."""
    if not reads_heic():
        return FORMATS
    import_module("pillow_heif").register_heif_opener()
    return (
        "HEIF",
        *FORMATS,
    )  # before MPO, for which Pillow registers no decoder of that name: the JPEG decoder reads it


def passed_over(folder: Path) -> list[str]:
    """Relative paths of the photos below a folder whose format cannot be read here."""
    wanted = (HEIC | RAW) - readable_suffixes()
    files = (Path(at, name) for at, _, names in os.walk(folder) for name in names if not name.startswith("."))
    return sorted(one.relative_to(folder).as_posix() for one in files if one.suffix.lower() in wanted)


def passed_over_sentence(folder: Path) -> str | None:
    """A sentence about the photos that are skipped; None if there are none."""
    names = passed_over(folder)
    if not names:
        return None
    heic = [name for name in names if Path(name).suffix.lower() in HEIC]
    how = f"{len(heic)} of them HEIC, read with {INSTALL_HEIC}" if heic else "convert them to JPEG"
    are = "photo is" if len(names) == 1 else "photos are"
    return f"{len(names)} {are} skipped in {shown(folder)}, such as {shown(names[0])} ({how})."


def open_image(path: Path) -> Image.Image:
    """Open an image file as upright RGB; any problem raises `ImageError` with one sentence.

    Only regular files of limited size are read, and only the formats above are decoded.
    """
    try:
        return _decoded(_bytes_of(path))
    except Exception as error:  # decoders raise many kinds of errors for damaged files
        raise ImageError(f"{shown(path)} cannot be read: {_reason(path, error)}.") from error


def _bytes_of(path: Path) -> bytes:
    """The bytes of an image: of a file, or of one in a tar or Parquet file."""
    inside = packed_bytes(path, most=LARGEST_FILE)
    return read_regular(path, most=LARGEST_FILE) if inside is None else inside


def decode_image(data: bytes, name: str) -> Image.Image:
    """Decode the bytes of an image file as upright RGB; `name` is used in the error message."""
    try:
        return _decoded(bytes(data))
    except Exception as error:
        what = _unusual(error) or "its bytes are damaged or not an image"
        raise ImageError(f"{shown(name)} cannot be read: {what}.") from error


def _decoded(data: bytes) -> Image.Image:
    if has_too_many_scans(data):
        raise Image.DecompressionBombError
    with Image.open(io.BytesIO(data), formats=_formats()) as image:
        if image.width * image.height > (Image.MAX_IMAGE_PIXELS or float("inf")) or max(image.size) > LONGEST_SIDE:
            raise Image.DecompressionBombError
        if max(image.size) > MOST_TIMES * min(image.size):
            raise _StripError
        return as_rgb(image)


class _StripError(Exception):
    """An image is far longer than wide."""


def _unusual(error: Exception) -> str | None:
    """What is wrong with an image that is not a photograph; None for any other error."""
    if isinstance(error, _StripError):
        return f"one side is more than {MOST_TIMES} times as long as the other; crop or remove it"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return "it has far too many pixels to be a photograph; make it smaller or remove it"
    return None


def _reason(path: Path, error: Exception) -> str:
    if what := _unusual(error):
        return what
    if is_folder(path):
        return "it is a folder; give the images in it"
    if isinstance(error, FileNotFoundError):
        return "it does not exist; check the path"
    if isinstance(error, PermissionError):
        return "reading it is not permitted; change its permissions"
    if isinstance(error, NotRegularError):
        return f"{error.strerror}; replace or remove it"
    if path.suffix.lower() in HEIC and not reads_heic():
        return f"it is a HEIC photo, which is read with {INSTALL_HEIC}"
    what = "it is empty" if is_file(path) and path.stat().st_size == 0 else "it is damaged or not an image"
    return f"{what}; replace or remove it"


def as_rgb(image: Image.Image) -> Image.Image:
    """The first frame of an image as a viewer shows it: upright, 8 bits per channel, white where transparent."""
    image.load()
    try:
        image = ImageOps.exif_transpose(image)
    except Exception:  # noqa: BLE001  # the pixels are valid even if the EXIF data is broken
        image = image.copy()
    if image.mode.startswith("I") or image.mode == "F":
        return _eight_bits(image).convert("RGB")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Convert gray of 16 or 32 bits or floating point to 8 bits; white is the type's maximum or the largest value."""
    pixels = np.asarray(image)
    shown_pixels = np.empty(pixels.shape, np.uint8)

    def rows() -> Iterator[tuple[slice, Any]]:
        """Some rows at a time, as floating point of a whole image takes gigabytes."""
        for first in range(0, len(pixels), 256):
            part = slice(first, first + 256)
            yield part, np.nan_to_num(pixels[part].astype(np.float64))

    largest = max((float(values.max(initial=0.0)) for _, values in rows()), default=0.0)
    if image.mode.startswith("I;16"):
        white = 65535.0
    elif image.mode == "F" and largest <= 1:
        white = 1.0
    else:
        white = next((w for w in (255.0, 65535.0) if largest <= w), largest)
    for part, values in rows():
        shown_pixels[part] = (values.clip(0) * (255 / white)).round().clip(0, 255).astype(np.uint8)
    return Image.fromarray(shown_pixels)


@dataclass(frozen=True)
class ImageBatch:
    """The readable images of a range of a list, and the problems of the others."""

    start: int
    stop: int
    indices: tuple[int, ...]
    images: Tensor | None
    problems: tuple[str, ...]


def read_batches(
    images: Iterable[NamedImage], preprocess: Callable[[Any], Tensor], *, size: int, workers: int = 2
) -> Iterator[list[tuple[str, Tensor | ImageError]]]:
    """Yield images in batches, each with its name, or what is wrong with it; the next batch is read meanwhile."""
    whole_number("batch_size", size, least=1)
    whole_number("workers", workers)

    def read(image: NamedImage) -> Tensor | ImageError:
        try:
            return preprocess(image.open())
        except ImageError as error:
            return error
        except Exception as error:  # noqa: BLE001  # one bad image must not stop the others
            return ImageError(f"{shown(image.name)} cannot be used: {type(error).__name__}: {error}")

    waiting, pool = iter(images), ThreadPoolExecutor(max(1, workers))

    def submit() -> list[Any]:
        return [(image.name, pool.submit(read, image)) for image in islice(waiting, size)]

    try:
        upcoming = submit()
        while upcoming:
            results = [(name, task.result()) for name, task in upcoming]
            upcoming = submit()
            yield results
    finally:
        pool.shutdown(cancel_futures=True)


def image_batches(
    images: ImageList,
    preprocess: Callable[[Any], Tensor],
    *,
    size: int,
    start: int = 0,
    workers: int = 2,
    what: str = "reading images",
    advance: Advance | None = None,
) -> Iterator[ImageBatch]:
    """Yield batches from `start` on, with limits at multiples of `size`; the next batch is read in the background.

    `what` is the label of the progress display; a batch counts as done when the next one is requested. With `advance`,
    they are counted in a stage that is open already.
    """
    named = (NamedImage(images.names[index], partial(images.open, index)) for index in range(start, len(images)))
    counted = stage(what, len(images), done=start) if advance is None else nullcontext(advance)
    first = start
    with counted as count:
        for batch in read_batches(named, preprocess, size=size, workers=workers):
            good = [(first + place, one) for place, (_, one) in enumerate(batch) if isinstance(one, Tensor)]
            yield ImageBatch(
                start=first,
                stop=first + len(batch),
                indices=tuple(index for index, _ in good),
                images=torch.stack([tensor for _, tensor in good]) if good else None,
                problems=tuple(str(one) for _, one in batch if isinstance(one, ImageError)),
            )
            first += len(batch)
            count(first)
