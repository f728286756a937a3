"""From a folder of photos, or any data set, to an adapted CLIP in one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from dear.backbone.clip import FrozenClip
from dear.data.dataset import Dataset
from dear.data.descriptions import with_descriptions
from dear.data.names import with_class, with_names
from dear.data.open import open_dataset
from dear.engine.checkpoint import Progress
from dear.engine.job import Job
from dear.engine.loop import Metrics
from dear.engine.run import Reading, train_model
from dear.engine.run_folder import works_beside
from dear.engine.step_logs import check_log, step_log
from dear.engine.workspace import Say, Workspace, log
from dear.errors import ConfigError, DearWarning, did_you_mean
from dear.evaluation.choice import Choice
from dear.evaluation.choice_words import section as choice_section
from dear.methods.registry import get_method
from dear.model.artefact import add_to_card
from dear.model.model import Model
from dear.options.keywords import FitOptions
from dear.options.parts import AUTO_METHOD, Fit, Training
from dear.options.reading import check, options_of, renamed, write_config
from dear.progress.display import watched
from dear.progress.stages import checked
from dear.storage.locks import check_ours, locked
from dear.workflows.auto import chosen_method, forget_choice
from dear.workflows.machine import using_threads


class Trained(NamedTuple):
    """A trained model, what it was trained on, and how the training went."""

    model: Model
    job: Job
    progress: Progress
    problems: tuple[str, ...]
    """Images that could not be read, one sentence each."""
    warnings: tuple[str, ...] = ()
    """What is doubtful about the result, one sentence each."""
    choice: Choice | None = None
    """How `--method auto` chose the method; None if it was named."""


def fit(
    data: str | Path | Dataset | Any,
    clip: str | FrozenClip | None = None,
    *,
    train: Training | None = None,
    on_step: Callable[[Metrics], None] | None = None,
    progress: bool | Callable[[str, int, int], None] | None = None,
    **options: Unpack[FitOptions],
) -> Model:
    """Adapt a CLIP to a data set and return the model, ready for `model.predict(paths)`.

    Every option of `dear train` is a keyword here: `shots=16`, `out="runs/pets"`, `epochs=5`, `threads=2`. Settings of
    the method are keywords as well: `mask="all_mixed"`, `beta=0.9`; `set={"beta": 0.9}` does the same.

    Args:
        data: a folder of class folders, a .csv or .json list, tar or Parquet files, a data set's name, an opened data
            set, or a sequence of (image, label) or of mappings with `image` and `label`.
        clip: a backbone's name, or one from `dear.load_clip`; the world's data sets use the world's by default.
        train: options of the training in one object; keywords override it.
        on_step: called with every step's metrics.
        progress: True for a bar on stderr, or a function of the name of a stage, the number done, the number of all.
        **options: as `dear train -h` and `dear.options.keywords.FitOptions` list them. Without `out` nothing is
            written.
    """
    _check_types(train, on_step, progress)
    values, objects = _fit_values(data, clip, train, dict(options))
    checked_options = check(Fit, values)
    if checked_options.method != AUTO_METHOD:
        _check_settings(checked_options.method, checked_options.set)
    with watched(progress):
        trained = train_run(
            checked_options,
            data=objects.dataset(checked_options),
            clip=clip if isinstance(clip, FrozenClip) else None,
            on_step=on_step,
            record_options=_is_text(values, objects) and not isinstance(clip, FrozenClip),
        )
    for one in trained.warnings:
        warnings.warn(one, DearWarning, stacklevel=2)
    return trained.model


def train_run(
    options: Fit,
    *,
    data: Dataset | None = None,
    clip: FrozenClip | None = None,
    workspace: Workspace | None = None,
    on_step: Callable[[Metrics], None] | None = None,
    say: Say = log,
    record_options: bool = False,
) -> Trained:
    """Train as the options say: what `dear.fit` and `dear train` do.

    Args:
        options: what to train, and how.
        data: the data set, if it is open already.
        clip: the backbone, if it is loaded already.
        workspace: what is open already.
        on_step: called with every step's metrics.
        say: called with each message.
        record_options: write OUT/config.yaml, which repeats the run with `dear train --config`.
    """
    check_log(options.log, options.out)
    workspace, say = workspace or Workspace(), once(say)  # a choice and a training have notes in common
    trained = partial(_train_one, data=data, clip=clip, workspace=workspace, on_step=on_step, say=say)
    if options.method != AUTO_METHOD:
        replaces = options.out is not None and works_beside(options.out, options.if_exists)
        found = trained(options, record_options=record_options)
        if options.out is not None and (options.overwrite or replaces):
            forget_choice(options.out)
        return found
    with (
        using_threads(options.threads),
        chosen_method(options, data=data, clip=clip, workspace=workspace, say=say) as (final, choice),
    ):
        found = trained(final, record_options=record_options)._replace(choice=choice)
        if options.out is not None:
            with locked(options.out, "run"):
                add_to_card(options.out, choice_section(choice))
        return found


def _train_one(
    options: Fit,
    *,
    data: Dataset | None,
    clip: FrozenClip | None,
    workspace: Workspace,
    on_step: Callable[[Metrics], None] | None,
    say: Say,
    record_options: bool,
) -> Trained:
    """Train one method."""
    out = options.out
    if out is not None:
        check_ours(out, "run", resume=options.resume, overwrite=options.overwrite)
    with using_threads(options.threads):
        job, model = workspace.prepare(options, data=data, clip=clip, say=say)
        record: Callable[[], None] = (
            once(partial(write_config, out, options, clip=model.clip.name, pretrained=model.clip.pretrained))
            if record_options and out is not None
            else lambda: None
        )
        problems: dict[str, None] = {}

        def after_step(metrics: Metrics) -> None:
            if not options.overwrite:  # the old run stays as it is until the new one is whole
                record()
            problems.update(dict.fromkeys(metrics["problems"]))
            if on_step is not None:
                on_step(metrics)

        reading = Reading(options.workers, options.cache_folder(out))
        doubts: list[str] = []
        with step_log(options.log, out, after_step) as each_step:
            progress = train_model(
                job,
                model,
                out,
                if_exists=options.if_exists,
                reading=reading,
                on_step=each_step,
                on_warning=doubts.append,
            )
        record()
    problems.update(dict.fromkeys(progress.problems))
    return Trained(model, job, progress, tuple(problems), tuple(doubts))


class _Objects(NamedTuple):
    """What Python can pass instead of text: an opened data set, and mappings."""

    data: Dataset | None
    names: Mapping[str, str] | None
    descriptions: Mapping[str, Any] | None

    def dataset(self, options: Fit) -> Dataset | None:
        """The opened data set with names and descriptions; None if the options say all of it."""
        found = self.data
        if found is None and self.names is None and self.descriptions is None:
            return None
        if found is None:
            found = open_dataset(
                options.data,
                options.data_root,
                template=options.template,
                names=self.names if self.names is not None else options.names,
                add_class=options.add_class or (),
            )
        else:
            found = with_names(found, self.names if self.names is not None else options.names)
            for folder in options.add_class or ():
                found = with_class(found, folder)
            if options.template is not None:
                found = replace(found, template=options.template)
        return with_descriptions(found, self.descriptions)


def _fit_values(
    data: str | Path | Dataset | Any, clip: str | FrozenClip | None, train: Training | None, options: dict[str, Any]
) -> tuple[dict[str, Any], _Objects]:
    """The keywords as values of options, and the objects among them."""
    values = renamed(Fit, options)
    known = options_of(Fit)
    mappings = {
        name: values.pop(name) if isinstance(values.get(name), Mapping) else None for name in ("names", "descriptions")
    }
    opened = data if isinstance(data, Dataset) else None
    if opened is None and not isinstance(data, str | Path):  # images in memory
        opened = open_dataset(data, names=mappings.pop("names") or values.pop("names", None))
    settings = {name: values.pop(name) for name in list(values) if name not in known}
    if not isinstance(values.get("roles"), str | None):
        settings["roles"] = values.pop("roles")
    if isinstance(settings.get("roles"), Path):
        values["roles"] = str(settings.pop("roles"))
    values["set"] = {**(values.get("set") or {}), **settings}
    if train is not None:
        values = {**{name: getattr(train, name) for name in train.model_fields_set}, **values}
    values["data"] = (opened.source or opened.name) if opened is not None else _text(data)
    values["clip"] = None if isinstance(clip, FrozenClip) else _text(clip)
    return values, _Objects(opened, mappings.get("names"), mappings["descriptions"])


def _is_text(values: Mapping[str, Any], objects: _Objects) -> bool:
    """Whether a config file can contain everything that was passed."""
    plain = (str, int, float, bool, list, tuple, type(None))
    return objects == (None, None, None) and all(isinstance(one, plain) for one in values["set"].values())


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _check_settings(method: str, settings: Mapping[str, Any]) -> None:
    """Refuse keywords that are neither options nor settings of the method, before anything is opened or loaded."""
    config = get_method(method).Config
    known = {*config.model_fields, *(former.name for former in config.former.values())}
    for name in settings:
        if name not in known:
            near = did_you_mean(name, [*known, *options_of(Fit)], most=1)
            raise ConfigError(f"There is no option or setting {name!r} of {method}.{near}")


def _check_types(train: object, on_step: object, progress: object) -> None:
    checked(progress)
    if train is not None and not isinstance(train, Training):
        raise ConfigError(f"train is of type {type(train).__name__}: give dear.TrainSettings(epochs=…, …).")
    if on_step is not None and not callable(on_step):
        raise ConfigError(f"on_step is of type {type(on_step).__name__}: give a function that takes a step's metrics.")
