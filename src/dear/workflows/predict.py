"""Classify images with a run: print, write the labels to a table, put copies or links into folders."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from dear.data.images import folder_images, passed_over_sentence
from dear.errors import ConfigError, DearWarning, ImageError, option
from dear.model.model import Model
from dear.model.predict import PREDICTING, OnError, Prediction, label_threshold, stream
from dear.options.commands import Predict
from dear.options.reading import check_values, spelled
from dear.progress.display import watched
from dear.progress.stages import counting
from dear.reports.labels import LabelTable, Sorter
from dear.storage.files import as_folder, read_regular
from dear.workflows.machine import using_threads
from dear.workflows.opened_run import model_of


class Predicted(NamedTuple):
    """Predictions, images that cannot be read, and sentences about the files that were written."""

    predictions: list[Prediction]
    problems: list[ImageError]
    written: list[str]


def predict(
    run: str | Path | Model,
    images: Any,
    classes: Sequence[str] | None = None,
    *,
    names: str | Path | None = None,
    template: str | None = None,
    descriptions: str | Path | Mapping[str, Sequence[str]] | None = None,
    readout: str | None = None,
    top_k: int = 3,
    out: str | Path | None = None,
    sort_into: str | Path | None = None,
    link: bool = False,
    multi_label: bool = False,
    threshold: float | None = None,
    batch_size: int = 32,
    workers: int = 2,
    device: str | None = None,
    threads: int | None = None,
    allow_pickled: bool = False,
    on_error: OnError = "raise",
    progress: bool | Callable[[str, int, int], None] | None = None,
) -> list[Prediction]:
    """Classify images with a run, among its classes or any others.

    Args:
        run: folder of a run or adapter, or a loaded model.
        images: images as for `Model.predict`, or folders of images; one, or a list.
        classes: other classes than the run's.
        names: text file with other classes than the run's, one per line.
        template: the prompt around a class name; by default the run's.
        descriptions: sentences about classes, for methods that read them: a mapping, or a JSON file.
        readout: name of the method's readout; by default its first.
        top_k: number of classes per image.
        out: CSV file to write, one row per image; nothing is overwritten.
        sort_into: folder that gets a copy, or with `link` a link, of each image in a folder of its class.
        multi_label: any number of labels per image, each with its own probability; for models with a sigmoid loss.
        threshold: with `multi_label`, the least probability of a label; by default 0.5.
        batch_size: images per forward pass.
        workers: number of image-loading threads.
        device: "cpu", "cuda"; by default a GPU if there is one.
        threads: threads to compute with on a CPU; by default all.
        allow_pickled: also read a backbone's weights from a pickled file (tensors only, never code).
        on_error: "raise" an `ImageError` for the first image that cannot be read, or "skip" such images with a warning.
        progress: True for a bar on stderr, or a function of the name of a stage, the number done, the number of all.
    """
    with watched(counting(progress, PREDICTING)):
        found = predict_each(
            run,
            images,
            chosen_classes(classes, names),
            template=template,
            descriptions=descriptions,
            listing=Listing(readout, top_k, label_threshold(multi_label, threshold)),
            files=label_files(out, sort_into, top_k=top_k, link=link, multi_label=multi_label),
            computing=Computing(batch_size, workers, device, threads, allow_pickled),
            each=_handler(on_error),
        )
    return _readable(found)


def _readable(found: Predicted) -> list[Prediction]:
    """The predictions, with a warning about images that could not be read."""
    if bad := found.problems:
        warnings.warn(f"{len(bad)} images are left out, the first: {bad[0]}", DearWarning, stacklevel=3)
    return found.predictions


class Listing(NamedTuple):
    """Which scores are read, and which classes are listed for an image."""

    readout: str | None
    top_k: int
    threshold: float | None
    """The least probability of a label, for several labels per image; None for one class."""


class Computing(NamedTuple):
    """How a run is loaded and images are classified; none of it changes a prediction."""

    batch_size: int
    workers: int
    device: str | None
    threads: int | None
    allow_pickled: bool


class LabelFiles(NamedTuple):
    """What is written about predictions: a table, and copies or links in folders."""

    table: LabelTable | None = None
    sorter: Sorter | None = None

    def add(self, one: Prediction) -> None:
        """Add a prediction."""
        if self.table is not None:
            self.table.add(one)
        if self.sorter is not None:
            self.sorter.put(one)

    def finish(self) -> list[str]:
        """Write the table, and return a sentence about each of the two."""
        if self.table is not None:
            self.table.write()
        return [one.summary() for one in self if one is not None]


def label_files(
    out: str | Path | None, sort_into: str | Path | None, *, top_k: int, link: bool, multi_label: bool
) -> LabelFiles:
    """What to write about predictions; a place that is taken is refused now, not after an hour."""
    check_values(Predict, top_k=top_k, link=link)
    if link and sort_into is None:
        raise ConfigError(
            f"{spelled('link')} says how images are put into folders: name one with {option(sort_into='FOLDER')}."
        )
    if multi_label and sort_into is not None:
        raise ConfigError(
            f"{spelled('sort_into')} puts an image into the folder of one class, but with {option(multi_label=True)} "
            f"it can have several labels: write a table with {option(out='FILE')} instead."
        )
    return LabelFiles(
        LabelTable(as_folder(out), top_k) if out is not None else None,
        Sorter(as_folder(sort_into), link=link) if sort_into is not None else None,
    )


def predict_each(
    run: str | Path | Model,
    images: Any,
    classes: Sequence[str] | None,
    *,
    template: str | None,
    descriptions: str | Path | Mapping[str, Sequence[str]] | None,
    listing: Listing,
    files: LabelFiles,
    computing: Computing,
    each: Callable[[Prediction | ImageError], None] | None = None,
) -> Predicted:
    """As `predict`; `each` is called with every prediction, or image that cannot be read, as soon as it is known."""
    check_values(Predict, top_k=listing.top_k, **computing._asdict())
    done = Predicted([], [], [])

    def take(one: Prediction | ImageError) -> None:
        if each is not None:
            each(one)
        if isinstance(one, ImageError):
            done.problems.append(one)
        else:
            files.add(one)
            done.predictions.append(one)

    expanded = _expand(images, take)
    with using_threads(computing.threads):
        model = model_of(run, computing.device, allow_pickled=computing.allow_pickled)
        for one in stream(
            model,
            expanded,
            classes,
            template=template,
            descriptions=descriptions,
            readout=listing.readout,
            top_k=listing.top_k,
            threshold=listing.threshold,
            batch_size=computing.batch_size,
            workers=computing.workers,
        ):
            take(one)
    done.written.extend(files.finish())
    return done


def _handler(on_error: OnError) -> Callable[[Prediction | ImageError], None] | None:
    """What to do with each image: raise the error of an unreadable one, or nothing."""
    if on_error not in get_args(OnError):
        raise ConfigError(f"on_error is {on_error!r}, but can be 'raise' or 'skip'.")
    return _raise if on_error == "raise" else None


def _raise(one: Prediction | ImageError) -> None:
    if isinstance(one, ImageError):
        raise one


def _expand(images: Any, take: Callable[[Prediction | ImageError], None]) -> Any:
    """Folders replaced by the images in them; a folder without images, and photos that are skipped, are reported."""
    if not isinstance(images, str | Path | list | tuple):
        return images
    found: list[Any] = []
    for one in [images] if isinstance(images, str | Path) else images:
        if not isinstance(one, str | Path) or "\0" in str(one) or not Path(one).is_dir():
            found.append(one)
            continue
        try:
            found += [Path(one) / name for name in folder_images(Path(one)).names]
        except ImageError as error:
            take(error)
            continue
        if others := passed_over_sentence(Path(one)):
            warnings.warn(others, DearWarning, stacklevel=2)
    return found


def chosen_classes(classes: Sequence[str] | None, names: str | Path | None) -> Sequence[str] | None:
    """Class names as they are, or from a file with one per line; None for the run's own."""
    if names is None:
        return classes
    if classes is not None:
        raise ConfigError(
            f"{spelled('classes')} and {spelled('names')} both say which classes there are: choose one of them."
        )
    return read_names(Path(names))


def read_names(path: Path) -> list[str]:
    """The class names of a text file, one per line."""
    try:
        lines = read_regular(path).decode("utf-8-sig").splitlines()
    except FileNotFoundError:
        raise ConfigError(f"There is no file {path}: give a text file with one class name per line.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a list of class names in UTF-8.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}).") from None
    return [line.strip() for line in lines if line.strip()]
