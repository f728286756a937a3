"""Sources of images that are not a folder: tar and Parquet files, by name, by pattern or by their folder."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dear.data.dataset import Item, in_order
from dear.data.images import ImageList, content_of, folder_images, is_image_name, open_image
from dear.data.packed import PARQUET, SHARDS, TAR, Shard, file_mark, is_shard, open_shard
from dear.data.readers import LABELS, ReaderResult, spoken
from dear.errors import DataError, DearWarning
from dear.storage.files import MEGABYTE, is_file, is_folder, shown

MOST_FILES = 1_000_000
"""Most files that a pattern can name."""
LONGEST_LABEL = 100
"""Most letters of a class name; a longer text is a caption."""
LABEL_ENDINGS = ("cls", "json", "txt")
"""Endings of members with the label of a sample, in order of preference."""
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
SPLIT_NAMES = {
    "train": "train", "training": "train", "validation": "val", "valid": "val", "val": "val", "test": "test",
    "testing": "test",
}  # fmt: skip
"""How file and folder names begin that say which split a shard belongs to."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
_FIRST_LETTERS = re.compile(r"[a-z]+")


class Labelled(NamedTuple):
    """An image of a shard, by its path through the shard, and its label, if it has one."""

    path: Path
    label: str | int | None


def shard_files(source: str | Path) -> tuple[Path, ...]:
    """The tar or Parquet files that a source names: one, a pattern such as 'shards/{000..099}.tar', or their folder.

    Empty for everything else. Braces are ranges of numbers or lists of words; *, ? and [] are those of a shell.
    """
    text, path = str(source), Path(source)
    if "\0" in text or is_file(path):
        return (path,) if "\0" not in text and is_shard(path) else ()
    if is_folder(path):
        return _in_folder(path)
    if not text.lower().endswith(SHARDS) or not any(letter in text for letter in "{*?["):
        return ()
    found: list[Path] = []
    for one in _expanded(text):
        if any(letter in one for letter in "*?["):
            found += _matching(one)
        elif is_shard(Path(one)):
            found.append(Path(one))
        else:
            raise DataError(f"{shown(one)} does not exist: correct the pattern {shown(text)!r}.")
    if not found:
        raise DataError(f"No file is called {shown(text)}: correct the pattern.")
    return tuple(dict.fromkeys(found))


def _matching(pattern: str) -> list[Path]:
    """The tar or Parquet files that a pattern without braces names."""
    anchor = Path(Path(pattern).anchor)
    try:
        return sorted(file for file in anchor.glob(str(Path(pattern).relative_to(anchor))) if is_shard(file))
    except ValueError:  # in Python before 3.13
        raise DataError(f"The pattern {shown(pattern)!r} has ** beside other letters: write * there.") from None


def refuse_compressed(source: str | Path) -> None:
    """Raise `DataError` for a compressed tar file, in which an image has no place of its own."""
    if str(source).lower().endswith(COMPRESSED):
        raise DataError(f"{shown(source)} is compressed: images are read at their places, so unpack it to .tar first.")


def _in_folder(folder: Path) -> tuple[Path, ...]:
    """The shards of a folder, or of its folder `data`; none if it contains images or other folders."""
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except OSError:
        return ()
    folders = [entry.name for entry in entries if entry.is_dir()]
    if any(is_image_name(entry.name) for entry in entries) or folders not in ([], ["data"]):
        return ()
    found = sorted(Path(entry.path) for entry in entries if is_shard(Path(entry.path)))
    return tuple(found) if found or not folders else _in_folder(folder / "data")


def _expanded(text: str) -> list[str]:
    """A text with braces as all texts that it stands for."""
    found = list(islice(_each(text), MOST_FILES + 1))
    if len(found) > MOST_FILES:
        raise DataError(f"The pattern {shown(text)!r} names more than {MOST_FILES:,} files: give several patterns.")
    return found


def _each(text: str) -> Iterator[str]:
    match = _BRACES.search(text)
    if match is None:
        yield text
        return
    for value in _values(match[1]):
        yield from _each(f"{text[: match.start()]}{value}{text[match.end() :]}")


def _values(braces: str) -> Iterable[str]:
    """What braces stand for: the numbers of a range, or the words of a list."""
    limits = _RANGE.fullmatch(braces)
    if limits is None:
        return braces.split(",")
    return (f"{number:0{len(limits[1])}d}" for number in range(int(limits[1]), int(limits[2]) + 1))


def source_images(source: str | Path) -> ImageList:
    """All images of a folder, or of tar or Parquet files, in order; names are paths below `ImageList.source`."""
    files = shard_files(source)
    refuse_compressed(source)
    return packed_images(files) if files else folder_images(source)


def packed_images(files: Sequence[Path]) -> ImageList:
    """All images of tar or Parquet files; names begin with the name of the file."""
    base = base_of(files)
    names = tuple(
        one.path.relative_to(base).as_posix() for file in files for one in images_of(open_shard(absolute(file)))
    )
    if not names:
        raise DataError(f"There are no images in {shown(files[0])}{' and the other files' if len(files) > 1 else ''}.")
    return ImageList(
        names, lambda index: open_image(base / names[index]), str(base), lambda index: content_of(base / names[index])
    )


def absolute(file: Path) -> Path:
    """A shard's path from the root; its folder is resolved, and its own name stays, also if it is a link."""
    return file.parent.resolve() / file.name


def absolute_source(source: str | Path) -> str:
    """A source's path from the root, so that a process in another folder opens the same; a name stays as it is."""
    is_path = Path(source).exists() or any(letter in str(source) for letter in "{*?[/")
    return str(absolute(Path(source))) if is_path else str(source)


def base_of(files: Sequence[Path]) -> Path:
    """The folder that contains all of these files."""
    return Path(os.path.commonpath([absolute(file).parent for file in files]))


def images_of(shard: Shard) -> list[Labelled]:
    """The images of a shard with their labels, in the order of the file."""
    if shard.images is not None:
        pairs = zip(shard.images.names, shard.images.labels, strict=True)
        return [Labelled(shard.path / name, label) for name, label in pairs]
    samples: dict[str, dict[str, str]] = defaultdict(dict)
    for name in shard.members:
        key, ending = _sample(name)
        samples[key][ending] = name
    found = []
    for name in shard.members:
        if is_image_name(PurePosixPath(name).name):
            key, ending = _sample(name)
            sample = samples[key]
            marked = next((sample[one] for one in LABEL_ENDINGS if one in sample), None)
            if marked is not None and "." in ending and any(is_image_name(f"a.{other}") for other in sample):
                continue  # a.seg.png belongs to the sample of a.jpg
            found.append(Labelled(shard.path / name, _label_of(shard, name, sample)))
    return found


def _sample(name: str) -> tuple[str, str]:
    """The key of a webdataset sample, which is its name up to the first dot, and the ending, which is the rest."""
    folder, slash, last = name.rpartition("/")
    stem, _, ending = last.partition(".")
    return f"{folder}{slash}{stem}", ending.lower()


def _label_of(shard: Shard, name: str, sample: Mapping[str, str]) -> str | int | None:
    """The label of an image in a tar file: from .cls, .json or .txt beside it, or else the name of its folder.

    A negative number means that it has none, as in a Parquet file.
    """
    for ending in LABEL_ENDINGS:
        if ending not in sample:
            continue
        try:
            text = shard.read(sample[ending], file_mark(shard.path), most=MEGABYTE).decode("utf-8-sig").strip()
            label = _in_json(text) if ending == "json" else text or None
        except (OSError, ValueError, RecursionError):
            raise DataError(f"{shown(sample[ending])} in {shown(shard.path)} cannot be read as a label.") from None
        if isinstance(label, str) and len(label) > LONGEST_LABEL:
            raise DataError(
                f"{shown(sample[ending])} in {shown(shard.path)} is not the name of a class but a text of {len(label)} "
                f"letters: write the class of each image to a .cls file beside it."
            )
        if isinstance(label, str) and ending == "cls" and label.removeprefix("-").isdecimal():
            label = int(label)
        if label is not None:
            return None if isinstance(label, int) and label < 0 else label
    return PurePosixPath(name).parent.name or None


def _in_json(text: str) -> str | int | None:
    content = json.loads(text)
    found = [content[key] for key in ("cls", *LABELS) if key in content] if isinstance(content, dict) else [content]
    return next((one for one in found if isinstance(one, str | int) and not isinstance(one, bool)), None)


class PackedData(NamedTuple):
    """A labelled data set in shards: what a reader returns, and where the image of each id is."""

    read: ReaderResult
    paths: Mapping[str, Path]


def read_packed(files: Sequence[Path]) -> PackedData:
    """Read the names and labels of images in shards. The id of an image is CLASS/NAME, as in a folder of classes.

    Splits are recognised by file names, such as train-00000-of-00002.parquet. Images without a label are left out.
    """
    rows: dict[str, list[Labelled]] = defaultdict(list)
    names: tuple[str, ...] | None = None
    for file, split in zip(files, splits_of(files), strict=True):
        shard = open_shard(absolute(file))
        own = shard.images.class_names if shard.images is not None else None
        if names is not None and own is not None and own != names:
            raise DataError(f"{shown(file)} names other classes than {shown(files[0])}: give files of one data set.")
        names = names or own
        rows[split] += images_of(shard)
    labelled = {split: [one for one in found if one.label is not None] for split, found in rows.items()}
    _warn_about_others(files, rows["train"], labelled)
    if not labelled.get("test"):
        labelled["test"] = labelled.pop("val", [])
    folders = _class_folders(files, labelled, names)
    number = {folder: label for label, folder in enumerate(folders)}
    paths: dict[str, Path] = {}
    copies: Counter[str] = Counter()
    splits = {}
    for split, found in labelled.items():
        pairs = [(one, _folder(one.label, names)) for one in found]
        if unknown := [folder for _, folder in pairs if folder not in number]:
            raise DataError(
                f"{shown(files[0])} has the label {shown(unknown[0])[:80]!r}, which is not one of its classes."
            )
        splits[split] = in_order([Item(_id(one, folder, paths, copies), number[folder]) for one, folder in pairs])
    return PackedData(ReaderResult(spoken(folders, "classes"), **splits), paths)


def splits_of(files: Sequence[Path]) -> list[str]:
    """The split of each shard by the first letters of its name, or of its folder's; all "train" if none is for test."""
    found = []
    for file in files:
        words = [_FIRST_LETTERS.match(part.lower()) for part in (file.name.rpartition(".")[0], file.parent.name)]
        known = [SPLIT_NAMES[word[0]] for word in words if word and word[0] in SPLIT_NAMES]
        found.append(known[0] if known else "")
    several = "train" in found and ("test" in found or "val" in found)
    return [split or "train" for split in found] if several else ["train"] * len(found)


def _class_folders(
    files: Sequence[Path], labelled: Mapping[str, Sequence[Labelled]], names: tuple[str, ...] | None
) -> list[str]:
    """The names of classes as their folders would be called, in the order of their labels."""
    if names is not None and len(names) > 1:
        return list(names)
    labels = {one.label for found in labelled.values() for one in found}
    if len(labels) < 2:
        what = "label" if labels else "label that names or numbers its class"
        raise DataError(
            f"{shown(files[0])} has images of {len(labels)} class(es), but at least 2 are needed: give every image a "
            f"{what}{_HOW[files[0].suffix.lower() == TAR]}."
        )
    numbers = sorted(label for label in labels if isinstance(label, int))
    return [str(one) for one in (numbers if len(numbers) == len(labels) else sorted(map(str, labels)))]


_HOW = {True: ", in a .cls file beside it or as the name of its folder", False: ", in a column called label"}


def _folder(label: str | int | None, names: tuple[str, ...] | None) -> str:
    is_number = names is not None and isinstance(label, int) and label < len(names)
    return names[label] if is_number else str(label)  # type: ignore[index]


def _id(one: Labelled, folder: str, paths: dict[str, Path], copies: Counter[str]) -> str:
    """CLASS/NAME; further images with the same one have a number behind it. The path is added to `paths`."""
    name, parent = one.path.name, one.path.parent
    if parent.suffix.lower() == PARQUET and name.isdecimal():  # a row without a name
        name = f"{parent.stem}-{name:0>6}"
    plain = found = f"{folder.replace('/', ' ')}/{name}"
    while found in paths:
        copies[plain] += 1
        found = f"{plain}#{copies[plain] + 1}"
    paths[found] = one.path
    return found


def _warn_about_others(
    files: Sequence[Path], train: Sequence[Labelled], labelled: Mapping[str, Sequence[Labelled]]
) -> None:
    """Warn about training images without a label."""
    left = len(train) - len(labelled.get("train", ()))
    if left and left < len(train):
        warnings.warn(
            f"{left:,} of {len(train):,} images in {shown(files[0])}{' …' if len(files) > 1 else ''} have no label and "
            f"are left out.",
            DearWarning,
            stacklevel=2,
        )
