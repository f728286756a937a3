"""Classify images with a run: print, write the labels to a table, put copies or links into folders."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Unpack, get_args

from dear.data.images import ImageStream, NamedImage, image_paths, no_images, open_image, passed_over_sentence
from dear.data.inputs import image_stream, named_image
from dear.data.packed import open_shard
from dear.data.shards import images_of, shard_files
from dear.errors import ConfigError, DearWarning, ImageError, option
from dear.model.model import Model
from dear.model.predict import PREDICTING, PREDICTS, OnError, Prediction, answer_rule, stream
from dear.options.commands import Predict
from dear.options.keywords import PredictOptions
from dear.options.reading import check_values, spelled
from dear.progress.display import watched
from dear.progress.stages import counting
from dear.reports.labels import LabelTable, Sorter
from dear.storage.files import as_folder, is_folder, read_regular
from dear.workflows.machine import using_threads
from dear.workflows.opened_run import model_of


def predict(
    run: str | Path | Model,
    images: Any,
    classes: Sequence[str] | None = None,
    *,
    on_error: OnError = "raise",
    progress: bool | Callable[[str, int, int], None] | None = None,
    **options: Unpack[PredictOptions],
) -> list[Prediction]:
    """Classify images with a run, among its classes or any others.

    Args:
        run: folder of a run or adapter, or a loaded model.
        images: images as for `Model.predict`, or folders of images; one, several or a generator.
        classes: other classes than the run's.
        on_error: "raise" an `ImageError` for the first image that cannot be read, or "skip" such images with a warning.
        progress: True for a bar on stderr, or a function of the name of a stage, the number done, the number of all.
        **options: as on the command line: `top_k`, `names`, `template`, `descriptions`, `readout`, `out`, `sort_into`,
            `link`, `multi_label`, `reject`, `threshold`, `batch_size`, `workers`, `device`, `threads`, `allow_pickled`.
    """
    return list(predict_each(run, images, classes, on_error=on_error, progress=progress, **options))


def predict_each(
    run: str | Path | Model,
    images: Any,
    classes: Sequence[str] | None = None,
    *,
    on_error: OnError = "raise",
    progress: bool | Callable[[str, int, int], None] | None = None,
    **options: Unpack[PredictOptions],
) -> Iterator[Prediction]:
    """Classify any number of images in constant memory: yields each prediction as soon as its batch is done.

    Arguments are those of `dear.predict`. Options are checked and the run is loaded at once. Files of `out` are written
    at the end, so not if the iteration stops earlier.
    """
    chosen = _checked(options)
    if on_error not in get_args(OnError):
        raise ConfigError(f"on_error is {on_error!r}, but can be 'raise' or 'skip'.")
    listening, files = counting(progress, PREDICTING), label_files(chosen)
    classes = chosen_classes(classes, chosen.names)
    model = model_of(run, chosen.device, allow_pickled=chosen.allow_pickled)

    def each() -> Iterator[Prediction]:
        with watched(listening):
            yield from _readable(predictions(model, images, classes, chosen), files, on_error)

    return _in_own_context(each())


def _checked(options: PredictOptions) -> Predict:
    """The options with their defaults; several sentences about labels and descriptions come later."""
    later = ("descriptions", "multi_label", "reject", "threshold")
    check_values(Predict, **{name: value for name, value in options.items() if name not in later})
    return Predict.model_construct(**options)


def _readable(results: Iterator[Prediction | ImageError], files: LabelFiles, on_error: OnError) -> Iterator[Prediction]:
    """The predictions; an image that cannot be read raises its error, or is counted in a warning at the end."""
    bad, first = 0, ""
    for one in results:
        if isinstance(one, Prediction):
            files.add(one)
            yield one
        elif on_error == "raise":
            raise one
        else:
            bad, first = bad + 1, first or str(one)
    files.finish()
    if bad:
        warnings.warn(f"{bad} images are left out, the first: {first}", DearWarning, stacklevel=2)


def _in_own_context(results: Iterator[Prediction]) -> Iterator[Prediction]:
    """The same; what is set while they are computed, such as who hears of progress, is not set for the caller."""
    context = copy_context()
    try:
        while (one := context.run(next, results, None)) is not None:
            yield one
    finally:
        context.run(results.close)  # type: ignore[attr-defined]


def predictions(
    run: str | Path | Model, images: Any, classes: Sequence[str] | None, options: Predict
) -> Iterator[Prediction | ImageError]:
    """A prediction per image, or what is wrong with it, in order and in constant memory; no file is written."""
    rule = answer_rule(options.multi_label, options.reject, options.threshold)
    with using_threads(options.threads):
        yield from stream(
            model_of(run, options.device, allow_pickled=options.allow_pickled),
            expanded(images),
            classes,
            template=options.template,
            descriptions=options.descriptions,
            readout=options.readout,
            top_k=options.top_k,
            rule=rule,
            batch_size=options.batch_size,
            workers=options.workers,
        )


class LabelFiles(NamedTuple):
    """What is written about predictions: a table, and copies or links in folders."""

    table: LabelTable | None = None
    sorter: Sorter | None = None

    def add(self, one: Prediction) -> None:
        """Add a prediction."""
        if self.table is not None:
            self.table.add(one)
        if self.sorter is not None and one.labels != ():
            self.sorter.put(one)

    def finish(self) -> list[str]:
        """Write the table, and return a sentence about each of the two."""
        if self.table is not None:
            self.table.write()
        return [one.summary() for one in self if one is not None]


def label_files(options: Predict) -> LabelFiles:
    """What to write about predictions; a place that is taken is refused now, not after an hour."""
    answer_rule(options.multi_label, options.reject, options.threshold)
    out, folder = options.out, options.sort_into
    if options.link and folder is None:
        raise ConfigError(
            f"{spelled('link')} says how images are put into folders: name one with {option(sort_into='FOLDER')}."
        )
    if options.multi_label and folder is not None:
        raise ConfigError(
            f"{spelled('sort_into')} puts an image into the folder of one class, but with {option(multi_label=True)} "
            f"it can have several labels: write a table with {option(out='FILE')} instead."
        )
    return LabelFiles(
        LabelTable(as_folder(out)) if out is not None else None,
        Sorter(as_folder(folder), link=options.link) if folder is not None else None,
    )


def expanded(images: Any) -> ImageStream:
    """What a caller passes, with folders replaced by the images in them, which are listed as they are needed.

    A folder without images gives an error in its place; photos that are skipped are reported now.
    """
    if not isinstance(images, str | Path | list | tuple):
        return image_stream(images, PREDICTS)
    listed = [images] if isinstance(images, str | Path) else images
    counts = [_count_of(one) for one in listed]

    def each() -> Iterator[NamedImage]:
        for index, (one, count) in enumerate(zip(listed, counts, strict=True)):
            if count is None:
                yield named_image(one, index, PREDICTS)
            elif not count:
                yield NamedImage(str(one), partial(_raise, no_images(Path(one))))
            else:
                for path in _paths_in(one):
                    yield NamedImage(str(path), partial(open_image, path))

    return ImageStream(each(), sum(1 if count is None else max(1, count) for count in counts))


def _count_of(one: Any) -> int | None:
    """The number of images in a folder, or in tar or Parquet files; None for everything else."""
    if not isinstance(one, str | Path) or "\0" in str(one):
        return None
    shards = shard_files(one)
    if not shards and not is_folder(one):
        return None
    count = sum(1 for _ in _paths_in(one))
    if count and not shards and (others := passed_over_sentence(Path(one))):
        warnings.warn(others, DearWarning, stacklevel=3)
    return count


def _paths_in(one: str | Path) -> Iterator[Path]:
    """The images in a folder, or in tar or Parquet files."""
    files = shard_files(one)
    if not files:
        yield from image_paths(Path(one))
    for file in files:
        yield from (image.path for image in images_of(open_shard(file)))


def _raise(error: ImageError) -> Any:
    raise error


def chosen_classes(classes: Sequence[str] | None, names: str | Path | None) -> Sequence[str] | None:
    """Class names as they are, or from a file with one per line; None for the run's own."""
    if names is None:
        return classes
    if classes is not None:
        raise ConfigError(
            f"{spelled('classes')} and {spelled('names')} both say which classes there are: choose one of them."
        )
    return read_class_list(Path(names))


def read_class_list(path: Path) -> list[str]:
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
