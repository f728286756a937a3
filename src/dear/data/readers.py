"""Readers of data set layouts: split files, class folders, and CSV or JSON lists."""

from __future__ import annotations

import csv
import io
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dear.data.dataset import Item, in_order
from dear.data.images import is_image_name, leads_to_folder, passed_over_sentence
from dear.errors import DataError
from dear.storage import documents
from dear.storage.files import NotRegularError, read_regular

IGNORED_FOLDERS = {"BACKGROUND_Google", "Faces_easy"}
PATHS, LABELS = ("path", "file", "image", "filename"), ("label", "class", "classname", "name")
"""Accepted names of the columns of a CSV list."""


class ReaderResult(NamedTuple):
    """Result of a reader: class names in label order, and items whose ids are paths below the image folder."""

    class_names: tuple[str, ...]
    train: tuple[Item, ...] = ()
    val: tuple[Item, ...] = ()
    test: tuple[Item, ...] = ()


def read_split_file(path: Path, rename: Mapping[str, str] | None = None) -> ReaderResult:
    """Read CoOp's `split_zhou_*.json`: for each split, rows of path, label and class name."""
    content = _json(path)
    names: dict[int, str] = {}
    splits: dict[str, list[Item]] = {}
    for split in ("train", "val", "test"):
        rows = content.get(split) if isinstance(content, dict) else None
        if not isinstance(rows, list) or not all(_is_split_row(row) for row in rows):
            raise DataError(
                f"{path} is not a split file: it needs train, val and test with rows of path, label, class."
            )
        splits[split] = [Item(row[0], row[1]) for row in rows]
        names |= {row[1]: row[2] for row in rows}
    class_names = tuple((rename or {}).get(names[label], names[label]) for label in sorted(names))
    if sorted(names) != list(range(len(names))):
        raise DataError(f"{path} numbers its classes with gaps: labels must go from 0 to {len(names) - 1}.")
    return ReaderResult(class_names, *(in_order(splits[split]) for split in ("train", "val", "test")))


def _is_split_row(row: Any) -> bool:
    return isinstance(row, list) and [type(one) for one in row] == [str, int, str]


def read_imagenet(folder: Path) -> ReaderResult:
    """Read ImageNet: `images/train` and `images/val` with one folder per class, named in `classnames.txt`."""
    names = read_class_names(folder / "classnames.txt")
    folders = sorted(names)
    train, test = (_class_folders(folder / "images", part, folders) for part in ("train", "val"))
    return ReaderResult(tuple(names[f] for f in folders), train=train, test=test)


def read_imagenet_variant(folder: Path, images: str) -> ReaderResult:
    """Read a test set with ImageNet's class folders, or some of them; classes without a folder are left out."""
    names = read_class_names(folder / "classnames.txt")
    present = [f for f in sorted(names) if (folder / images / f).is_dir()]
    if not present:
        raise DataError(f"{folder / images} has none of the class folders of classnames.txt: extract the images there.")
    return ReaderResult(tuple(names[f] for f in present), test=_class_folders(folder, images, present, keep_part=False))


def read_imagenet_numbered(folder: Path, images: str) -> ReaderResult:
    """Read ImageNetV2: class folders are numbers in the order of `classnames.txt`."""
    names = read_class_names(folder / "classnames.txt")
    numbers = [str(label) for label in range(len(names))]
    return ReaderResult(tuple(names.values()), test=_class_folders(folder, images, numbers, keep_part=False))


def read_aircraft(folder: Path) -> ReaderResult:
    """Read FGVCAircraft: `variants.txt` and `images_variant_{train,val,test}.txt`."""
    names = _lines(folder / "variants.txt")
    place = {name: number for number, name in enumerate(names)}
    splits = []
    for split in ("train", "val", "test"):
        path = folder / f"images_variant_{split}.txt"
        rows = [line.split(" ", 1) for line in _lines(path)]
        try:
            splits.append(in_order([Item(f"{image}.jpg", place[name]) for image, name in rows]))
        except (KeyError, ValueError):
            raise DataError(
                f"{path} names a variant that is missing in variants.txt: extract both files again."
            ) from None
    return ReaderResult(tuple(names), *splits)


def read_class_folders(folder: Path) -> ReaderResult:
    """Read a folder of class folders, named after their classes; all images are candidates for training and testing.

    If it contains `train` and `test` (and `val`) folders, each of them contains class folders.
    """
    parts = [part for part in ("train", "val", "test") if (folder / part).is_dir()]
    if "train" in parts and "test" in parts:
        names = sorted({f.name for part in parts for f in (folder / part).iterdir() if _is_class(f)})
        splits = {part: _class_folders(folder, part, names) for part in parts}
        return ReaderResult(spoken(names), **splits)
    names = sorted(f.name for f in folder.iterdir() if _is_class(f))
    if len(names) == 1:
        raise DataError(f"{folder} has only one class folder, {names[0]}: add a folder for every other class.")
    if not names:
        raise DataError(
            f"{folder} is not a folder of class folders: put the images of each class into a folder with its name."
        )
    items = _class_folders(folder.parent, folder.name, names, keep_part=False)
    return ReaderResult(spoken(names), train=items)


def read_list(path: Path) -> ReaderResult:
    """Read a CSV or JSON list of (path, label): labels are class names, paths are relative to the list's folder."""
    rows = _json(path) if path.suffix.lower() == ".json" else _csv(path)
    try:
        pairs = list(dict.fromkeys(map(_pair, rows)))  # an image with a row per object is one image
    except (KeyError, IndexError, TypeError):
        raise DataError(f"{path} needs a path and a label in every row.") from None
    names = sorted({label for _, label in pairs})
    if "" in names or any(not image for image, _ in pairs):
        raise DataError(f"{path} has a row with an empty path or label: complete or remove it.")
    if len(names) < 2:
        raise DataError(f"{path} names {len(names)} class(es): at least 2 are needed.")
    _refuse_same(names, f"labels in {path}")
    place = {label: number for number, label in enumerate(names)}
    return ReaderResult(tuple(names), train=in_order([Item(image, place[label]) for image, label in pairs]))


def _pair(row: Any) -> tuple[str, str]:
    image, label = (row["path"], row["label"]) if isinstance(row, dict) else (row[0], row[1])
    if not isinstance(image, str) or not isinstance(label, str | int) or isinstance(label, bool):
        raise TypeError
    return image.strip(), str(label).strip()


def read_class_names(path: Path) -> dict[str, str]:
    """Read `classnames.txt`: one folder and its class name per line, in file order."""
    rows = [line.split(" ", 1) for line in _lines(path)]
    if not rows or any(len(row) != 2 for row in rows):
        raise DataError(f"{path} needs a folder and a class name in every line.")
    return {folder: name.strip() for folder, name in rows}


def _class_folders(root: Path, part: str, folders: Sequence[str], *, keep_part: bool = True) -> tuple[Item, ...]:
    """Images of class folders below root/part; with `keep_part`, ids begin with the part."""
    if not (root / part).is_dir():
        raise DataError(f"{root / part} does not exist: put the images there.")
    items = []
    for label, folder in enumerate(folders):
        names = _image_names(root / part / folder)
        if not names:
            others = passed_over_sentence(root / part / folder)
            note = f" {others}" if others else ""
            raise DataError(
                f"The class folder {root / part / folder} has no images: add some, or remove the folder.{note}"
            )
        start = f"{part}/" if keep_part else ""
        items += [Item(f"{start}{folder}/{name}", label) for name in names]
    return in_order(items)


def _image_names(folder: Path) -> list[str]:
    """Names of the images in a folder, broken links included: they count as unreadable images."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if is_image_name(entry.name) and not leads_to_folder(entry))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"The class folder {folder} cannot be read ({error.strerror}).") from None


def _is_class(folder: Path) -> bool:
    return folder.is_dir() and not folder.name.startswith(".") and folder.name not in IGNORED_FOLDERS


def spoken(folders: Sequence[str], what: str = "folders") -> tuple[str, ...]:
    """Folder names as words; raises `DataError` if two of them become the same."""
    _refuse_same(folders, what)
    return tuple(_words(folder) for folder in folders)


def _words(name: str) -> str:
    return " ".join(name.replace("_", " ").split())


def _refuse_same(names: Sequence[str], what: str) -> None:
    by_words: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_words[_words(name).lower()].append(name)
    for same in by_words.values():
        if len(same) > 1:
            raise DataError(f"The {what} {' and '.join(map(repr, same))} name the same class: merge or rename them.")


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in _text(path).splitlines() if line.strip()]


def _json(path: Path) -> Any:
    return documents.parse(_text(path), where=str(path), what="a list of images", error=DataError)


def _csv(path: Path) -> list[Any]:
    """Rows of (path, label); with a header, the columns may be in any order and in any case."""
    try:
        rows = [
            row for row in csv.reader(io.StringIO(_text(path), newline=""), strict=True) if any(map(str.strip, row))
        ]
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file ({error}).") from None
    if not rows:
        return rows
    head = [cell.strip().lower() for cell in rows[0]]
    columns = [next((head.index(name) for name in names if name in head), None) for names in (PATHS, LABELS)]
    if None not in columns:
        at_path, at_label = columns
        try:
            return [[row[at_path], row[at_label]] for row in rows[1:]]  # type: ignore[index]
        except IndexError:
            raise DataError(f"{path} has a row with fewer columns than its header.") from None
    if not is_image_name(Path(rows[0][0]).name):
        raise DataError(
            f"{path} begins with {', '.join(rows[0][:3])!r}, which is neither an image nor a header with the columns "
            f"path and label: add such a header."
        )
    return rows


def _text(path: Path) -> str:
    """Content of a UTF-8 text file, without a byte-order mark."""
    try:
        return read_regular(path).decode("utf-8-sig")
    except NotRegularError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except FileNotFoundError:
        raise DataError(f"{path} is missing: 'dear data list' shows how to obtain each data set.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a text file in UTF-8.") from None
