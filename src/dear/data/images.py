"""Images from anywhere: find them in a folder, open them safely, hand them out in batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
from torch import Tensor

from dear.errors import ImageError
from dear.files import sha256

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"}


@dataclass(frozen=True)
class ImageList:
    """Named images that are opened one by one; an image that cannot be read raises `ImageError` when it is opened."""

    names: tuple[str, ...]
    open: Callable[[int], Image.Image]
    source: str = ""
    """Where they come from: lists with the same names from different places are different lists."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self.names)

    @property
    def sha256(self) -> str:
        """Identity of the list: where it comes from and its names in order."""
        return sha256("\n".join([self.source, *self.names]).encode("utf-8", "surrogateescape"))

    def spread(self, count: int) -> ImageList:
        """At most `count` of the images, evenly spread over the list."""
        if count >= len(self):
            return self
        chosen = [index * len(self) // count for index in range(count)]
        return ImageList(tuple(self.names[i] for i in chosen), lambda index: self.open(chosen[index]), self.source)


def folder_images(folder: str | Path) -> ImageList:
    """All images below a folder, in the order of their paths, whatever order the disk lists them in."""
    root = Path(folder)
    if not root.is_dir():
        raise ImageError(f"{root} is not a folder: give a folder with images in it or below it.")
    paths = sorted(
        (p for p in root.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()),
        key=lambda p: p.relative_to(root).parts,
    )
    if not paths:
        raise ImageError(f"There are no images in {root}: give a folder with {', '.join(sorted(SUFFIXES))} files.")
    names = tuple(p.relative_to(root).as_posix() for p in paths)
    return ImageList(names, lambda index: open_image(paths[index]), str(root.resolve()))


def open_image(path: Path) -> Image.Image:
    """An image as upright RGB; anything wrong with it is one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                return ImageOps.exif_transpose(image).convert("RGB")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"{path} cannot be read: it has far too many pixels to be a photograph.") from error
    except Exception as error:  # decoders raise all sorts of things over damaged files
        reason = "it is empty" if path.is_file() and path.stat().st_size == 0 else "it is damaged or not an image"
        raise ImageError(f"{path} cannot be read: {reason}.") from error


@dataclass(frozen=True)
class ImageBatch:
    """Readable images of one stretch of a list, and what could not be read."""

    start: int
    stop: int
    indices: tuple[int, ...]
    images: Tensor | None
    problems: tuple[str, ...]


def image_batches(
    images: ImageList, preprocess: Callable[[Any], Tensor], *, size: int, start: int = 0, workers: int = 2
) -> Iterator[ImageBatch]:
    """Batches from `start` on, their borders at multiples of `size`; the next one is read while one is used."""

    def read(index: int) -> Tensor | ImageError:
        try:
            return preprocess(images.open(index))
        except ImageError as error:
            return error

    def submit(first: int) -> list[Any]:
        return [pool.submit(read, index) for index in range(first, min(first + size, len(images)))]

    with ThreadPoolExecutor(max(1, workers)) as pool:
        upcoming = submit(start)
        for first in range(start, len(images), size):
            results = [task.result() for task in upcoming]
            upcoming = submit(first + size)
            good = [(first + i, r) for i, r in enumerate(results) if isinstance(r, Tensor)]
            yield ImageBatch(
                start=first,
                stop=first + len(results),
                indices=tuple(index for index, _ in good),
                images=torch.stack([tensor for _, tensor in good]) if good else None,
                problems=tuple(str(r) for r in results if isinstance(r, ImageError)),
            )
