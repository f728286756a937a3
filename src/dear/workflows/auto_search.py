"""The search of `--method auto`: tries candidates on the same trials, within a budget of time.

Methods on features come first, the cheapest at the start, then those in towers, the most promising at the start.
Answers are stored per candidate and trial, so a search that was killed resumes without repeating any. Time decides only
which candidates fit into the budget, and whether the curve of fewer photos does; it decides no answer and no rank.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from dear.engine.feature_cache import cached_views, evaluation_states
from dear.engine.job import Job
from dear.engine.loop import Metrics
from dear.engine.ranks import Ranks
from dear.engine.run import Reading
from dear.engine.workspace import Say
from dear.errors import CacheError, ClusterError, DearError, Terminated
from dear.evaluation.choice import PLAIN, CandidateRecord, Choice, Seconds
from dear.evaluation.choice_ranking import NOTHING, is_clearly_behind, rank
from dear.evaluation.expected_gains import expected_gains
from dear.progress.stages import duration, stage
from dear.workflows.auto_candidates import ON_FEATURES, Candidate, reason, view_names
from dear.workflows.auto_trials import StoredAnswers, Trial, TrialJob, answer, fold_shots, smaller, trial_job

FIRST_STEPS, FIRST_SECONDS = 3, 2.0
"""Steps and seconds of a training after which its length is estimated."""


class OverBudgetError(Exception):
    """The trials of a candidate would take longer than the time that is left; the seconds, if they are known."""

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Elsewhere(Protocol):
    """Runs trials on other machines; what was asked for first is run first."""

    def ask(self, method: str, trial: Trial) -> None:
        """Have a trial run."""

    def answers(self, method: str, trial: Trial, seconds: float | None) -> StoredAnswers | None:
        """Wait for the answers; None if they are not there after `seconds`, if that is a number."""

    def cancel(self, method: str | None = None) -> None:
        """End the trials of a method, or all of them."""


@dataclass
class Budget:
    """Seconds that may be spent, and those that were."""

    seconds: float
    spent_before: float = 0.0
    began: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        """Seconds since the search began, without those between a kill and the resumption."""
        return self.spent_before + time.monotonic() - self.began

    def check(self, more: float) -> None:
        """Raise `OverBudgetError` unless `more` seconds are left."""
        if self.spent + more > self.seconds:
            raise OverBudgetError(more)


@dataclass
class Pace:
    """Estimates the length of a training from its first steps; what precedes the first step is done once."""

    first: tuple[int, float] | None = None
    """The first step that was seen, and the seconds until its end."""

    def whole(self, step: int, steps: int, took: float) -> float | None:
        """Seconds of the whole training, after `took` seconds at the end of a step; None if it is too early to say."""
        if self.first is None:
            self.first = step, took
        done, before = self.first
        if step - done < FIRST_STEPS or took - before < FIRST_SECONDS:
            return None
        return before + (took - before) / (step - done) * (steps - done)


class Search:
    """Tries candidates one after the other; `choice` is the result so far."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        trials: Sequence[Trial],
        budget: Budget,
        reading: Reading,
        *,
        folder: Path | None,
        keep_novel: float,
        failed: Sequence[CandidateRecord] = (),
        mark: str = "",
        elsewhere: Elsewhere | None = None,
        say: Say,
    ) -> None:
        self._candidates, self._trials, self._budget, self._reading = candidates, trials, budget, reading
        self._folder, self._keep_novel, self._mark, self._say = folder, keep_novel, mark, say
        self._elsewhere = elsewhere
        self._found = {one.method: one for one in failed}
        self._curve: dict[str, dict[str, list[int]]] = {}
        self._training: dict[str, float] = {}
        self._estimated: dict[str, float] = {}
        self._encoded: set[object] = set()
        self._per_photo = 0.0
        self._interrupted = False
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            budget.spent_before = sum(one.seconds for one in map(_stored, sorted(folder.glob("*.json"))) if one)

    @property
    def _job(self) -> Job:
        return self._candidates[0].job

    def run(self) -> Choice:
        """Try everything that fits. Ctrl-C ends the search with the best so far, if plain CLIP was tried."""
        total = len(self._candidates) * len(self._trials)
        try:
            with stage("trying methods", total, outer=True) as advance:
                self._ask_for_all()
                for number, one in enumerate(in_turn(self._candidates)):
                    self._found[one.method] = self._try(one)
                    left = self._budget.seconds - self._budget.spent
                    advance((number + 1) * len(self._trials), left=max(left, 0.0))
                self._learn_from_fewer()
        except KeyboardInterrupt as stop:
            if isinstance(stop, Terminated) or PLAIN not in self._found:
                raise
            self._interrupted = True
            self._say("Search stopped: the best method so far is trained. Ctrl-C again stops that, too.")
        return self.choice()

    def _ask_for_all(self) -> None:
        """Have other machines, if any, run all trials, in the order of the search; photos are encoded here."""
        for one in in_turn(self._candidates) if self._elsewhere else ():
            with suppress(OverBudgetError, DearError):  # it is met again when the candidate is tried
                self._encode(one)
                self._ask(one, self._trials)

    def _ask(self, one: Candidate, trials: Sequence[Trial]) -> None:
        if self._elsewhere is not None:
            for trial in self._missing(one, trials):
                self._elsewhere.ask(one.method, trial)

    def choice(self) -> Choice:
        """The candidates so far; those that nothing is known about were not tried."""
        job, names = self._job, {one.method for one in self._candidates}
        waiting = "the search was stopped" if self._interrupted else ""
        listed = [self._found.get(one.method) or _untried(one, waiting) for one in self._candidates]
        listed += [one for name, one in self._found.items() if name not in names]
        found = Choice(
            data=job.dataset.name,
            mark=self._mark,
            seed=job.seed,
            shots=max(Counter(item.label for item in job.items).values()),
            fold_shots=fold_shots(self._trials) if self._trials else 0,
            keep_novel=self._keep_novel,
            classes=list(job.class_names),
            images=[item.id for item in job.items],
            labels=[item.label for item in job.items],
            trials=[one.record(job.items) for one in self._trials],
            candidates=listed,
            expected=expected_gains(names),
            curve=self._curve,
            chosen=PLAIN,
            interrupted=self._interrupted,
            seconds=Seconds(
                training={name: round(one, 3) for name, one in self._training.items()},
                estimated={name: round(one, 1) for name, one in self._estimated.items()},
                budget=self._budget.seconds,
                search=round(self._budget.spent, 1),
            ),
        )
        tried = any(one.state == "tried" for one in listed)
        return found.model_copy(update={"chosen": rank(found).chosen}) if tried and self._trials else found

    def _try(self, one: Candidate) -> CandidateRecord:
        """All trials of one candidate; what goes wrong is part of the record."""
        record = CandidateRecord(
            method=one.method,
            settings={name: str(value) for name, value in one.options.set.items()},
            state="tried",
            names_novel=one.model.method.needs.novel,
        )
        try:
            self._encode(one)
            for number, trial in enumerate(self._trials):
                found, seconds = self._answer(one, trial, left=len(self._missing(one, self._trials[number:])))
                answers = {**record.answers, trial.name: found.answers}
                record = record.model_copy(update={"answers": answers, "bytes": max(record.bytes, found.bytes)})
                if number == 0 and one.method != PLAIN:
                    self._check_rest(one, seconds)
                if number == 1 and one.method not in ON_FEATURES and is_clearly_behind(self.choice(), record):
                    self._say(f"{one.method}: clearly behind after the first trials, not tried further")
                    self._cancel(one)
                    return record.model_copy(update={"state": "behind"})
        except OverBudgetError as over:
            self._cancel(one)
            if over.seconds is None:
                self._say(f"{one.method}: not tried, the time is up")
            else:
                self._estimated[one.method] = over.seconds
                self._say(f"{one.method}: not tried, would take about {duration(over.seconds)}")
            return record.model_copy(update={"state": "not tried", "answers": {}})
        except (DearError, MemoryError, torch.OutOfMemoryError) as error:
            if one.method == PLAIN or isinstance(error, CacheError | ClusterError):
                raise
            self._cancel(one)
            self._say(f"{one.method}: left out: {reason(error)}")
            return record.model_copy(update={"state": "failed", "why": reason(error), "answers": {}})
        self._say(self._line(record))
        return record

    def _line(self, record: CandidateRecord) -> str:
        """A candidate that is done, in words, with the time that was spent."""
        before = {**self._found, record.method: record}
        choice = self.choice().model_copy(update={"candidates": list(before.values())})
        one = rank(choice).of(record.method)
        novel = "" if one.novel is None else f", {one.novel.value:.1f} % left out"
        each, budget = duration(self._training[record.method]), self._budget
        spent = f"{duration(budget.spent)} of {duration(budget.seconds)}"
        return f"{one.method}: {one.learned.value:.1f} % learned{novel}, {each} each ({spent})"

    def _check_rest(self, one: Candidate, seconds: float) -> None:
        """Refuse a candidate whose other trials and final training do not fit, unless their answers are stored."""
        if missing := len(self._missing(one, self._trials)):
            self._budget.check(seconds if self._elsewhere else (missing + 1) * seconds)

    def _cancel(self, one: Candidate) -> None:
        if self._elsewhere is not None:
            self._elsewhere.cancel(one.method)

    def _plain_answers(self, one: Candidate, trial: Trial) -> bool:
        """Whether plain CLIP answers for a method that cannot name new classes."""
        return trial.kind == "novel" and not one.model.method.needs.novel

    def _missing(self, one: Candidate, trials: Sequence[Trial]) -> list[Trial]:
        """The trials for which a candidate still has to be trained."""
        return [each for each in trials if not self._plain_answers(one, each) and not self._stored_answers(one, each)]

    def _answer(self, one: Candidate, trial: Trial, left: int) -> tuple[StoredAnswers, float]:
        """Stored answers, or new ones; plain CLIP answers for a method that cannot name new classes."""
        if self._plain_answers(one, trial):
            plain = self._found[PLAIN].answers[trial.name]
            return StoredAnswers(mark="", answers=plain, bytes=0, seconds=0.0), 0.0
        ready = trial_job(one.job, trial, one.model.clip)
        path = self._path(one, trial)
        found = _stored(path)
        if found is None or found.mark != ready.mark:
            found = self._asked(one, trial, ready) if self._elsewhere else self._made(one, trial, ready, left)
            if path is not None:
                found.write(path)
        if trial.shots is None:
            self._training[one.method] = max(self._training.get(one.method, 0.0), found.seconds)
        return found, found.seconds

    def _made(self, one: Candidate, trial: Trial, ready: TrialJob, left: int) -> StoredAnswers:
        """Answers of a training here, which ends early if the candidate does not fit into the budget."""
        pace = Pace()

        def on_step(metrics: Metrics, took: float) -> None:
            whole = pace.whole(int(metrics["step"]), int(metrics["steps"]), took)
            if one.method not in self._training and whole is not None:
                self._budget.check(whole * (left + 1) - took)

        return answer(one.job, trial, ready, self._reading, on_step)

    def _asked(self, one: Candidate, trial: Trial, ready: TrialJob) -> StoredAnswers:
        """Answers of a training on another machine; those of plain CLIP are needed, however long they take."""
        assert self._elsewhere is not None
        left = None if one.method == PLAIN else self._budget.seconds - self._budget.spent
        found = self._elsewhere.answers(one.method, trial, left)
        if found is None:
            raise OverBudgetError
        if found.mark != ready.mark:
            raise ClusterError("A node sees other photos or weights than this machine: use folders that all share.")
        return found

    def _stored_answers(self, one: Candidate, trial: Trial) -> StoredAnswers | None:
        found = _stored(self._path(one, trial))
        return found if found and found.mark == trial_job(one.job, trial, one.model.clip).mark else None

    def _path(self, one: Candidate, trial: Trial) -> Path | None:
        fewer = f"-{trial.shots}-shots" if trial.shots else ""
        return (
            None if self._folder is None else self._folder / f"{one.method}-{trial.name.replace(' ', '-')}{fewer}.json"
        )

    def _encode(self, one: Candidate) -> None:
        """Pass the photos through the towers once for all candidates, and their views once for each size of crops."""
        job, model, reading = self._job, self._candidates[0].model, self._reading
        if reading.cache is None:
            raise CacheError("A search needs a cache folder.")
        if not self._encoded:
            began = time.monotonic()
            names = tuple(dict.fromkeys(name for each in self._candidates for name in each.reads))
            batches = evaluation_states(
                model, job.dataset, job.items, cache=reading.cache, batch_size=64, workers=reading.workers,
                problems={}, names=names,
            )  # fmt: skip
            for _ in batches:
                pass
            self._per_photo = (time.monotonic() - began) / len(job.items)
            self._encoded.add(None)
        crop = one.job.resolved.crop
        if one.needs_views and crop not in self._encoded and self._missing(one, self._trials):
            self._budget.check(self._per_photo * len(job.items) * job.cached_views)
            cached_views(
                model, job.dataset, job.items, views=job.cached_views, seed=job.seed, crop=crop, cache=reading.cache,
                workers=reading.workers, ranks=Ranks(), names=view_names(self._candidates)[crop],
            )  # fmt: skip
            self._encoded.add(crop)

    def _learn_from_fewer(self) -> None:
        """Train the chosen method with fewer photos, if that fits: its curve says what more photos would bring."""
        chosen = self.choice().chosen
        one = next(each for each in self._candidates if each.method == chosen)
        learned = [trial for trial in self._trials if trial.kind == "learned"]
        if chosen == PLAIN or not learned:
            return
        most = fold_shots(self._trials)
        sizes = sorted({max(1, most * quarter // 4) for quarter in (1, 2, 3)} - {most})
        curve: dict[str, dict[str, list[int]]] = {}
        try:
            for size in sizes if len(sizes) > 1 else ():
                parts = [smaller(trial, size, self._job.seed) for trial in learned]
                if any(self._stored_answers(one, part) is None for part in parts):
                    self._budget.check(self._training[chosen] * (1 + len(parts)))
                self._ask(one, parts)
                curve[str(size)] = {part.name: self._answer(one, part, left=0)[0].answers for part in parts}
        except OverBudgetError as over:
            more = "the time is up" if over.seconds is None else f"that would take {duration(over.seconds)} more"
            self._say(f"What more photos would bring is not measured: {more}")
            return
        except (DearError, MemoryError, torch.OutOfMemoryError) as error:
            self._say(f"What more photos would bring is not measured: {reason(error)}")
            return
        self._curve = curve


def in_turn(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates in the order of the search: of those in towers, the ones that gained most on other data sets first."""
    known = expected_gains({one.method for one in candidates}).gains

    def place(one: Candidate) -> float:
        gain = None if one.method in ON_FEATURES else known.get(one.method, NOTHING)
        return float("-inf") if gain is None else -(gain.learned + gain.novel)

    return sorted(candidates, key=place)


def _untried(one: Candidate, why: str) -> CandidateRecord:
    return CandidateRecord(method=one.method, state="not tried", why=why, names_novel=one.model.method.needs.novel)


def _stored(path: Path | None) -> StoredAnswers | None:
    """Answers in a file; None if there are none, or if they are damaged."""
    if path is None:
        return None
    try:
        return StoredAnswers.read(path)
    except (OSError, DearError):
        return None
