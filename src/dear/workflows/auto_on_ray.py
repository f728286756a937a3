"""Trials of `--method auto` as tasks of Ray: every candidate and every split at once, as the cluster has room.

Nodes return answers and write nothing but the shared cache of features, so an attempt that comes back late spoils
nothing. The answers are those of a search on one machine; the chosen method is trained on this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dear.cluster.connection import check_room, connected
from dear.cluster.nodes import check_nodes, here
from dear.cluster.tasks import THREADS, Order, as_task, cancel, make_order, result
from dear.engine.run import Reading
from dear.engine.workspace import Workspace
from dear.errors import typed
from dear.evaluation.choice import PLAIN
from dear.evaluation.processes import workspace_for
from dear.methods.plugins import added
from dear.options.parts import Fit
from dear.workflows.auto_candidates import Candidate, make_candidate, options_for
from dear.workflows.auto_trials import StoredAnswers, Trial, TrialJob, answer, make_trials, smaller, trial_job

Asked = tuple[str, str, int | None]
"""A method, the name of a trial, and the photos per class that it is taught if they are fewer."""


class _Known(NamedTuple):
    candidate: Candidate
    trials: dict[str, Trial]


@contextmanager
def trials_on_ray(options: Fit, out: Path) -> Iterator[TrialsOnRay]:
    """Connect to the cluster that the options name, and see that its nodes can run trials."""
    with connected(str(options.on)) as ray:
        threads, gpus = options.threads or THREADS, options.gpus or 0.0
        check_room(ray.nodes(), threads, gpus)
        expected = here(out)
        check_nodes(ray, expected, threads, gpus)
        if options.device is None and not gpus:
            options = options.model_copy(update={"device": "cpu"})
        task = as_task(ray, "dear.workflows.auto_on_ray:run_task", threads, gpus)
        trials = TrialsOnRay(ray, partial(task.remote, make_order(threads, added(), expected)), ray.put(options))
        try:
            yield trials
        finally:
            trials.cancel()


class TrialsOnRay:
    """Trials that were asked for, and those of them that are done."""

    def __init__(self, ray: Any, start: Any, options: Any) -> None:
        self._ray, self._start, self._options = ray, start, options
        self._tasks: dict[Asked, Any] = {}

    def ask(self, method: str, trial: Trial) -> None:
        """Have a trial run as soon as there is room; those that were asked for first are run first."""
        what = (method, trial.name, trial.shots)
        if what not in self._tasks:
            self._tasks[what] = self._start(self._options, what)

    def answers(self, method: str, trial: Trial, seconds: float | None) -> StoredAnswers | None:
        """Wait for the answers; None if they are not there after `seconds`, if that is a number."""
        self.ask(method, trial)
        task = self._tasks[method, trial.name, trial.shots]
        done, _ = self._ray.wait([task], timeout=None if seconds is None else max(seconds, 0.0))
        return StoredAnswers(**result(self._ray, task, "trial")) if done else None

    def cancel(self, method: str | None = None) -> None:
        """End the trials of a method, or all of them."""
        ended = [what for what in self._tasks if method in (None, what[0])]
        cancel(self._ray, [self._tasks.pop(what) for what in ended])


def run_task(order: Order, options: Fit, asked: Asked) -> dict[str, Any]:
    """Run a trial on a node."""
    method, name, shots = asked
    with typed(order.commands):
        workspace = workspace_for(order)
        candidate, trials = workspace.remember(("auto", method), partial(_known, method, options, workspace))
        trial = trials[name] if shots is None else smaller(trials[name], shots, candidate.job.seed)
        ready: TrialJob = trial_job(candidate.job, trial, candidate.model.clip)
        reading = Reading(options.workers, options.cache_folder(options.out))
        return answer(candidate.job, trial, ready, reading, lambda metrics, seconds: None).model_dump()


def _known(method: str, options: Fit, workspace: Workspace) -> _Known:
    """A candidate and the trials, as the search made them."""
    job, model = workspace.prepare(options_for(PLAIN, options, None))
    candidate = make_candidate(method, options, workspace, job, model.clip)
    return _Known(candidate, {one.name: one for one in make_trials(job)})
