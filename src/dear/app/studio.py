"""What the window shows: a studio that all browsers share, and a session of each browser."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from PIL import Image
from torch import Tensor

from dear.app.run_photos import RunPhotos
from dear.data.images import open_image
from dear.errors import ClassListError, ImageError, InputError
from dear.model.model import Model
from dear.retrieval.encoder import Encoder
from dear.retrieval.index import Index
from dear.roles.rolemap import RoleMap
from dear.storage.files import MEGABYTE, shown

LARGEST_PHOTO = 20 * MEGABYTE
MOST_PHOTOS = 12
"""Photos that are classified at once."""
MOST_CLASSES, LONGEST_NAME = 200, 80
"""Limits of a class list that is typed in; a name is measured in letters."""
ALL_PHOTOS = "all photos"
THUMBNAIL = 160
VIEWS = 32
"""Class lists whose text features stay in memory."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """A photo with the label that somebody gave it."""

    label: str
    name: str
    thumbnail: Image.Image
    image: Tensor
    """(3, H, W), preprocessed."""
    before: str
    """What the model answered before it was taught."""


@dataclass(frozen=True, eq=False)
class Session:
    """What belongs to one browser: the photos that it taught, and the model that learned from them."""

    lessons: tuple[Lesson, ...] = ()
    taught: Model | None = None


@dataclass(frozen=True, eq=False)
class OpenIndex:
    """An index, and what makes features for it."""

    index: Index
    encoder: Encoder


@dataclass(frozen=True, eq=False)
class Studio:
    """What all browsers share; nothing in it changes, apart from caches."""

    model: Model
    title: str = "DeAR"
    note: str = ""
    """A sentence for the top of the page."""
    roles: RoleMap | None = None
    search: OpenIndex | None = None
    report: Path | None = None
    photos: RunPhotos | None = None
    """The photos that the run was trained and tested on; None if they are unknown."""
    _views: OrderedDict[tuple[Model, tuple[str, ...]], Model] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes of the run; none for a plain CLIP."""
        return self.model.classes.names if self.model.classes else ()

    def view(self, session: Session, names: Sequence[str] | None = None) -> Model:
        """The session's model for a class list, by default its own; a view with cached text features."""
        model = session.taught or self.model
        if names is None and model.classes is None:
            raise ClassListError("Type the classes that your photos could show, such as: cat, dog, bird.")
        if names is None or (model.classes and model.classes.names == tuple(names)):
            return model
        key = model, tuple(names)
        with self._lock:
            found = self._views.pop(key, None) or model.for_classes(names)
            self._views[key] = found
            while len(self._views) > VIEWS:
                self._views.popitem(last=False)
        return found


def taught_classes(studio: Studio, session: Session) -> tuple[str, ...]:
    """The run's classes, then new ones in the order in which they were taught."""
    return tuple(dict.fromkeys((*studio.class_names, *(one.label for one in session.lessons))))


def typed_classes(text: str | None) -> tuple[str, ...] | None:
    """Class names from a text with commas or line breaks; None if it is empty."""
    names = tuple(dict.fromkeys(part.strip() for part in re.split(r"[,;\n]", text or "") if part.strip()))
    if len(names) > MOST_CLASSES:
        raise ClassListError(f"There are {len(names)} classes, but at most {MOST_CLASSES} are possible here.")
    for name in names:
        checked_name(name)
    return names or None


def checked_name(name: str | None) -> str:
    """A class name that was typed in, without spaces around it."""
    name = (name or "").strip()
    if not name:
        raise ClassListError("No label is typed in: say what the photo shows.")
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise ClassListError(f"A class name has at most {LONGEST_NAME} letters and no special characters.")
    return name


class Photo(NamedTuple):
    """A photo that was dropped: where it is, and what to call it."""

    path: Path
    name: str


def named_photos(paths: Sequence[str | Path] | None) -> list[Photo]:
    """Photos with distinct names, as phones call every photo image.jpg: further ones have a number behind it."""
    found: dict[str, Photo] = {}
    copies: Counter[str] = Counter()
    for path in map(Path, paths or ()):
        name = path.name
        while name in found:
            copies[path.name] += 1
            name = f"{path.name} ({copies[path.name] + 1})"
        found[name] = Photo(path, name)
    return list(found.values())


def dropped(paths: Sequence[str | Path] | None) -> list[Photo]:
    """The photos of a drop; too many or too large ones are refused before they are decoded."""
    photos = named_photos(paths)
    if not photos:
        raise InputError("There is no photo yet: drop one, or take one with the camera.")
    if len(photos) > MOST_PHOTOS:
        raise InputError(f"{len(photos)} photos are too many at once: drop at most {MOST_PHOTOS}.")
    return photos


def chosen(photos: Sequence[Photo], which: str | None) -> Photo:
    """The photo of a name, or the first one if none is named."""
    found = [one for one in photos if one.name == which or not which]
    if not found:
        raise InputError(f"There is no photo called {shown(which)} here: choose another one.")
    return found[0]


def opened(photo: Photo) -> Image.Image:
    """Decode a photo; an `ImageError` names it by the name that it had, not by where it was put."""
    try:
        if photo.path.stat().st_size > LARGEST_PHOTO:
            raise ImageError(f"{shown(photo.name)} is larger than {LARGEST_PHOTO // MEGABYTE} MB: make it smaller.")
        return open_image(photo.path)
    except ImageError as error:
        raise ImageError(str(error).replace(shown(photo.path), shown(photo.name))) from error
    except OSError:
        raise ImageError(f"{shown(photo.name)} is no longer there: drop it again.") from None


def thumbnail(image: Image.Image, side: int = THUMBNAIL) -> Image.Image:
    """A small copy of an image."""
    small = image.copy()
    small.thumbnail((side, side))
    return small
