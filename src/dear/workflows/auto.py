"""`--method auto`: choose the method for someone's photos by trying several on held-out photos."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from dear.backbone.clip import FrozenClip
from dear.data.dataset import Dataset
from dear.data.open import refuse_inside
from dear.engine.job import Job, describe, fingerprint
from dear.engine.ranks import join
from dear.engine.run import Reading
from dear.engine.run_folder import NEXT, RUN, read_run
from dear.engine.workspace import Say, Workspace
from dear.errors import ConfigError, DearError, option
from dear.evaluation.choice import FILE, PLAIN, CandidateRecord, Choice, read_choice
from dear.model.model import Model
from dear.options.fields import seconds_of
from dear.options.parts import Fit
from dear.progress.stages import duration
from dear.storage.files import sha256
from dear.storage.locks import check_ours, locked, remove_ours
from dear.workflows.auto_candidates import (
    WITHOUT_TRIALS,
    Candidate,
    check_options,
    check_room,
    make_candidate,
    names_of,
    options_for,
    reason,
)
from dear.workflows.auto_on_ray import trials_on_ray
from dear.workflows.auto_search import Budget, Elsewhere, Search
from dear.workflows.auto_trials import Trial, make_trials

FOLDER = "auto"
"""In the folder of a run: the answers of a search that is not finished."""
LEAST, PER_PHOTO, MOST = 120.0, 2.0, 7200.0
"""The budget by default, in seconds: at least, per photo, and at most."""


class Chosen(NamedTuple):
    """The options of the training that remains to be done, and how its method was chosen."""

    options: Fit
    choice: Choice


@contextmanager
def chosen_method(
    options: Fit, *, data: Dataset | None, clip: FrozenClip | None, workspace: Workspace, say: Say
) -> Iterator[Chosen]:
    """Choose the method for the photos; without an output folder, caches live as long as the `with` block."""
    check_options(options)
    out = options.out
    if options.on is not None and (out is None or data is not None or clip is not None):
        raise ConfigError(
            f"{option(on=options.on)} needs {option(out='FOLDER')} on a disk that all nodes share, and photos and a "
            f"CLIP by name: what is in memory cannot be sent to a cluster."
        )
    if out is not None:
        check_ours(out, "run", resume=options.resume, overwrite=options.overwrite)
    with (
        tempfile.TemporaryDirectory(prefix="dear-auto-")
        if out is None and options.cache is None
        else nullcontext() as at
    ):
        if at is not None:
            options = options.model_copy(update={"cache": Path(at)})
        job, model = workspace.prepare(options_for(PLAIN, options, clip), data=data, clip=clip, say=say)
        yield _choose(options, job, model, workspace, say)


def _choose(options: Fit, job: Job, model: Model, workspace: Workspace, say: Say) -> Chosen:
    out, cache = options.out, options.cache_folder(options.out)
    assert cache is not None
    if join(model.clip.device).world > 1:
        raise ConfigError(f"{option(method='auto')} runs in one process: start it without torchrun.")
    refuse_inside(job.dataset, out, cache)
    trials = make_trials(job)
    mark = _mark(options, job, model, trials)
    with locked(out, "run") if out is not None else nullcontext():
        known = _begun(out, mark, options) if out is not None else None
        if known is None:
            known = _searched(options, job, model, workspace, trials, cache, mark, say)
            if out is not None:
                known.write(out / FILE)
        if out is not None:
            remove_ours(out, [FOLDER])  # also what a crash after the choice left there
    say(f"{known.chosen} is taken: training it on all {len(job.items)} photos")
    final = options_for(known.chosen, options, model.clip)
    replaces = out is not None and _replaces(out, final, job, model.clip, workspace)
    return Chosen(final.model_copy(update={"resume": out is not None and not replaces, "overwrite": replaces}), known)


def _replaces(out: Path, final: Fit, job: Job, clip: FrozenClip, workspace: Workspace) -> bool:
    """Whether a folder has a whole run of something else, which stays until the chosen method is trained."""
    if not (out / RUN).is_file() or (out / NEXT / RUN).is_file():
        return False
    own = workspace.job(final, data=job.dataset)
    return bool(fingerprint(describe(own, own.build(clip))) != read_run(out)["fingerprint"])


def forget_choice(out: Path) -> None:
    """Remove the record of an earlier choice from a folder whose run was replaced by another one."""
    remove_ours(out, [FOLDER, FILE])


def _searched(
    options: Fit,
    job: Job,
    model: Model,
    workspace: Workspace,
    trials: list[Trial],
    cache: Path,
    mark: str,
    say: Say,
) -> Choice:
    """The choice after a search, or without one if nothing can be held out."""
    plain = Candidate(PLAIN, options_for(PLAIN, options, model.clip), job, model)
    candidates, failed = [plain], list[CandidateRecord]()
    for name in names_of(options)[1:]:
        try:
            candidates.append(make_candidate(name, options, workspace, job, model.clip))
        except DearError as error:
            failed.append(CandidateRecord(method=name, state="failed", why=reason(error)))
            say(f"{name}: left out: {reason(error)}")
    budget = seconds_of(options.budget) if options.budget else min(LEAST + PER_PHOTO * len(job.items), MOST)
    with _elsewhere(options, trials) as elsewhere:
        search = Search(
            candidates,
            trials,
            Budget(budget),
            Reading(options.workers, cache),
            folder=None if options.out is None else options.out / FOLDER,
            keep_novel=1.0 if options.keep_novel is None else options.keep_novel,
            failed=failed,
            mark=mark,
            elsewhere=elsewhere,
            say=say,
        )
        if not trials:
            names = [one.method for one in candidates]
            taken = WITHOUT_TRIALS if WITHOUT_TRIALS in names else names[min(1, len(names) - 1)]
            return search.choice().model_copy(update={"chosen": taken})
        check_room(candidates, cache)
        say(
            f"trying {len(candidates)} methods on {len(job.items)} photos, {len(trials)} trainings each, within "
            f"{duration(budget)}; Ctrl-C takes the best so far"
        )
        return search.run()


@contextmanager
def _elsewhere(options: Fit, trials: list[Trial]) -> Iterator[Elsewhere | None]:
    """Where trials run, if not here."""
    if options.on is None or options.out is None or not trials:
        yield None
        return
    with trials_on_ray(options, options.out) as found:
        yield found


def _begun(out: Path, mark: str, options: Fit) -> Choice | None:
    """The choice that an interrupted run has made already; None if there is none yet."""
    if not options.resume:
        remove_ours(out, [FOLDER])
        (out / FOLDER).mkdir()  # says that a search replaces the run that may be here
        remove_ours(out, [FILE])
        return None
    known = read_choice(out)
    if known is None and (out / RUN).is_file() and not (out / FOLDER).is_dir():
        raise ConfigError(f"The method of {out} was named, not chosen: resume without {option(method='auto')}.")
    if known is not None and known.mark != mark:
        raise ConfigError(
            f"{out} was begun with other photos or options: resume with the same ones, or start over with "
            f"{option(overwrite=True)}."
        )
    return known


def _mark(options: Fit, job: Job, model: Model, trials: list[Trial]) -> str:
    """Changes with everything that decides a choice, except time."""
    candidates = [options_for(name, options, model.clip) for name in names_of(options)]
    content = {
        "plain": describe(job, model),
        "candidates": [[one.method, {name: str(value) for name, value in one.set.items()}] for one in candidates],
        "roles": options.roles,
        "recipe": [candidates[0].recipe, options.changes()],
        "keep_novel": 1.0 if options.keep_novel is None else options.keep_novel,
        "trials": [[one.name, [item.id for item in one.tested]] for one in trials],
    }
    return sha256(json.dumps(content, sort_keys=True).encode())
