"""Writes predictions to disk: a CSV table of labels, or copies of or links to the images in one folder per class.

Nothing is moved, and no existing file is overwritten.
"""

from __future__ import annotations

import csv
import re
import shutil
import tempfile
from collections import Counter
from itertools import chain
from pathlib import Path

from dear.data.images import LARGEST_FILE
from dear.data.packed import packed_bytes
from dear.errors import OverwriteError
from dear.model.predict import Prediction
from dear.storage.csv_text import csv_line, no_formula
from dear.storage.files import shown, write_atomic, write_result


class LabelTable:
    """Predictions as a CSV file: image, label, probability, then the other likeliest classes or labels with theirs.

    Images with fewer labels than others have empty cells.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists() or self.path.is_symlink():
            raise OverwriteError(f"{self.path} exists already: choose another file, or remove it first.")
        self._rows = tempfile.TemporaryFile("w+", encoding="utf-8", newline="")  # noqa: SIM115  # closed by `write`
        self._count, self._most = 0, 1

    def __repr__(self) -> str:
        """One line."""
        return f"LabelTable({self.path}, {self._count} rows)"

    def add(self, one: Prediction) -> None:
        """Add a row, in a temporary file until all are known."""
        classes = one.top if one.labels is None else one.labels
        pairs = [value for name, p in classes for value in (_cell(name), f"{p:.6f}")]
        self._rows.write(csv_line([_cell(one.image), *pairs]))
        self._count, self._most = self._count + 1, max(self._most, len(classes))

    def write(self) -> None:
        """Write the file, whole or not at all."""
        head = ["image", "label", "probability"]
        head += [f"{what}_{place}" for place in range(2, self._most + 1) for what in ("label", "probability")]
        self._rows.seek(0)
        with self._rows as rows:
            padded = ([*row, *[""] * (len(head) - len(row))] for row in csv.reader(rows))
            write_result(self.path, (csv_line(row).encode() for row in chain([head], padded)))

    def summary(self) -> str:
        """What was written, and where."""
        return f"{self._count:,} images in {self.path}"


class Sorter:
    """Sorts images into one folder per class, by copies or links."""

    def __init__(self, folder: str | Path, *, link: bool = False) -> None:
        self.folder, self.link = Path(folder), link
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise OverwriteError(f"{self.folder} exists already and is not an empty folder: choose another one.")
        self._counts: Counter[str] = Counter()
        self._folders: dict[str, str] = {}
        self._taken: set[str] = set()
        """Names of the folders of classes, in small letters."""
        self._last_of_class: dict[str, int] = {}
        self._last_of_image: dict[Path, int] = {}
        """The last number behind a name that was used more than once."""

    def _folder_of(self, label: str) -> str:
        """The folder of a class; classes whose names differ in special characters only have a number behind it."""
        if label not in self._folders:
            plain = folder_name(label)
            number = self._last_of_class.get(plain.lower(), 1)
            while (name := plain if number == 1 else f"{plain}-{number}").lower() in self._taken:
                number += 1
            self._last_of_class[plain.lower()] = number
            self._taken.add(name.lower())
            self._folders[label] = name
        return self._folders[label]

    def _free(self, path: Path) -> Path:
        """An unused path: the path itself, or with a number behind its name."""
        number = self._last_of_image.get(path, 1)
        free = path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
        while free.exists() or free.is_symlink():
            number += 1
            free = path.with_name(f"{path.stem}-{number}{path.suffix}")
        if number > 1:
            self._last_of_image[path] = number
        return free

    def __repr__(self) -> str:
        """One line."""
        return f"Sorter({self.folder}, {self._counts.total()} images)"

    def put(self, one: Prediction) -> Path:
        """Copy or link an image into the folder of its class, under an unused name."""
        source = Path(one.image)
        target_folder = self.folder / self._folder_of(one.label)
        try:
            target_folder.mkdir(parents=True, exist_ok=True)
            target = self._free(target_folder / source.name)
            inside = packed_bytes(source, most=LARGEST_FILE)
            if inside is not None and self.link:
                raise OSError(0, "images in tar and Parquet files can be copied, but not linked")
            if self.link:
                target.symlink_to(source.resolve())
            elif inside is not None:
                write_atomic(target, inside)
            else:
                shutil.copy2(source, target)
        except OSError as error:
            raise OverwriteError(
                f"Cannot write {shown(source)} to {target_folder} ({error.strerror or error})."
            ) from None
        self._counts[one.label] += 1
        return target

    def summary(self) -> str:
        """The number of images, in total and for the largest classes."""
        what = "links" if self.link else "copies"
        most = ", ".join(f"{name} {count}" for name, count in self._counts.most_common(5))
        more = f", and {len(self._counts) - 5} more classes" if len(self._counts) > 5 else ""
        return f"{self._counts.total():,} {what} in {self.folder}: {most}{more}"


def folder_name(label: str) -> str:
    """A class's name as the name of a folder on any system."""
    safe = re.sub(r"[^\w .,+()&'-]", "_", label).strip(" .").encode("utf-8", "replace")[:100]
    return safe.decode("utf-8", "ignore").strip(" .") or "_"


def _cell(text: str) -> str:
    """A name as an entry of a CSV table: never a formula, and invalid UTF-8 is replaced."""
    return no_formula(text.encode("utf-8", "replace").decode())
