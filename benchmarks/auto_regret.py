"""Measure how good the choices of `--method auto` are: regret on test images, and its estimates against the test.

For each data set, number of shots and seed: the search tries candidates on the shots of the base half. Then every
candidate that was tried is trained on all these shots and tested once, on test images of both halves. Nothing is chosen
on test images. Tests that a table in results/ has already are taken from there.

The choice is made without what is known from the tables about the data set itself: of the world, the other sets count,
and for photographs the table on photographs does not. Each case is one JSON file in OUT/cases, so an interrupted run
resumes; the summary is of all cases in OUT, whatever command computed them, and of those in --json that OUT lacks.

    python benchmarks/auto_regret.py --data world-textures,world-emblems,world-broad,world-scenes,world-blooms \
        --seeds 2 --out runs/regret
    python benchmarks/auto_regret.py --data photos-4,photos-5,photos-6,caltech101 --data-root DATA --clip CLIP \
        --roles MAP --seeds 2 --out runs/regret --json results/auto-regret.json
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from documented_numbers import compared
from expected_gains import GROUNDS, expected

from dear.data.splits import Half, labels_of
from dear.engine.run import Reading, train_model
from dear.engine.workspace import Workspace, silent
from dear.evaluation.choice import PLAIN, Choice, read_choice
from dear.evaluation.choice_ranking import Estimate, Ranking, rank
from dear.evaluation.evaluate import evaluate_items
from dear.evaluation.expected_gains import all_expected
from dear.evaluation.results import harmonic_mean
from dear.evaluation.test_data import items_to_test
from dear.options.parts import Fit
from dear.options.reading import check
from dear.storage.files import write_atomic
from dear.storage.markdown import table
from dear.workflows.auto_candidates import DEFAULT, options_for
from dear.workflows.train import train_run

FIXED = ("dear", "tip_adapter_f", "gda", "textrefiner", "clip_lora", "zero_shot")
"""What the choice is compared with: always taking one of these."""
RULES = ("auto", "photos alone", "tables alone", "without left-out classes")
"""Ways to choose from one search."""
PHOTOGRAPHS = "caltech101"
"""The data set that all photographs come from."""
Tests = dict[str, dict[str, float]]
"""Base, novel and HM by method."""


def case(options: Fit, workspace: Workspace) -> dict[str, Any]:
    """One search, and the test of every candidate that was tried."""
    out = options.out
    assert out is not None
    began = time.monotonic()
    known = read_choice(out) if out.is_dir() else None
    if known is None or not (out / "adapter_config.json").is_file():
        resume = options.model_copy(update={"resume": out.is_dir()})
        known = train_run(resume, workspace=workspace, say=print).choice
    assert known is not None
    whole = time.monotonic() - began
    stored = stored_tests(options)
    tests = {
        one.method: stored.get(one.method) or tested(one.method, options, workspace) for one in rank(known).standings
    }
    return {
        "data": Path(str(options.data)).name,
        "shots": options.shots,
        "seed": options.seed,
        "tests": tests,
        "untried": {one.method: one.state for one in known.candidates if one.state != "tried"},
        "seconds": {"search": known.seconds.search, "whole": round(whole, 1), **known.seconds.training},
    }


def stored_tests(options: Fit) -> Tests:
    """Tests of methods that were trained in the same way for a table in results/."""
    found: Tests = {}
    for folder in GROUNDS:
        for row, cells in compared(folder).cells.items():
            for cell in cells:
                if not row.variant and (cell.data, cell.shots, cell.seed) == (
                    options.data,
                    options.shots,
                    options.seed,
                ):
                    base, novel = (cell.reading(cell.score(half)) for half in ("base", "novel"))
                    found[row.method] = {"base": base, "novel": novel, "hm": harmonic_mean(base, novel)}
    return found


def tested(method: str, options: Fit, workspace: Workspace) -> dict[str, float]:
    """Test accuracy of a method that is trained on all shots of the base half, on both halves, and their HM."""
    clip = workspace.prepare(options_for("zero_shot", options, None)).model.clip
    job, model = workspace.prepare(options_for(method, options, clip), clip=clip, say=silent)
    cache = options.cache_folder(options.out)
    train_model(job, model, None, reading=Reading(options.workers, cache))
    found = {}
    halves: tuple[tuple[Half, str], ...] = (("base", "default"), ("novel", "novel"))
    for half, purpose in halves:
        labels = labels_of(job.dataset, half)
        items = items_to_test(job.dataset, half, trained_items=job.items)
        novel = half == "novel" and not model.method.needs.novel
        view = (model.plain() if novel else model).for_classes(job.dataset.classes(job.dataset.names_in(labels)))
        scores = evaluate_items(view, job.dataset, items, half=half, cache=cache, workers=options.workers).scores
        found[half] = scores.accuracy[view.readout(purpose)]
    return {**found, "hm": harmonic_mean(found["base"], found["novel"])}


def ranked(one: dict[str, Any], choice: Choice) -> dict[str, Any]:
    """A case with what is chosen by all that is known, by photos alone and by tables alone, and all estimates."""
    elsewhere = expected(without=one["data"] if one["data"].startswith("world") else PHOTOGRAPHS)
    informed = choice.model_copy(update={"expected": elsewhere})
    tables = elsewhere.model_copy(update={"spread": 1e-6})
    found = rank(informed)
    return {
        **one,
        "chosen": {
            "auto": found.chosen,
            "photos alone": rank(choice.model_copy(update={"expected": None})).chosen,
            "tables alone": rank(informed.model_copy(update={"expected": tables})).chosen,
            "without left-out classes": rank(informed.model_copy(update={"keep_novel": 0.0})).chosen,
        },
        "estimates": estimates(found),
    }


def estimates(found: Ranking) -> dict[str, dict[str, Any]]:
    """Held-out accuracies by method, with their intervals."""
    return {
        one.method: {
            "learned": one.learned, "novel": one.novel, "combined": one.combined, "expected": round(one.expected, 2)
        }
        for one in found.standings
    }  # fmt: skip


def summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean regret of the rules and of fixed choices; bias and coverage of the held-out estimates."""
    regrets = {rule: [regret(one, method) for one in cases if (method := one["chosen"][rule])] for rule in RULES}
    for name in FIXED:
        regrets[f"always {name}"] = [regret(one, name) for one in cases if name in one["tests"]]
    short = [one["tests"]["zero_shot"]["hm"] - one["tests"][one["chosen"]["auto"]]["hm"] for one in cases]
    return {
        "cases": len(cases),
        "regret": {name: round(fmean(values), 2) for name, values in regrets.items() if values},
        "largest_regret": {name: round(max(values), 2) for name, values in regrets.items() if values},
        "tested": {name: len(values) for name, values in regrets.items()},
        "stopped": {name: sum(one["untried"].get(name) == "behind" for one in cases) for name in FIXED},
        "off_in_trials": round(off_in_trials(cases), 2),
        "below_plain": sum(one > 0 for one in short),
        "most_below_plain": round(max(short), 2),
        "estimates": {
            what: held_out_against_test(cases, what, half)
            for what, half in (("learned", "base"), ("novel", "novel"), ("combined", "hm"))
        },
    }


def held_out_against_test(cases: list[dict[str, Any]], what: str, half: str) -> dict[str, float]:
    """Mean difference of held-out estimates from test accuracy, and how often the test is within their intervals."""
    pairs = [
        (Estimate(*one["estimates"][method][what]), test[half])
        for one in cases
        for method, test in one["tests"].items()
        if one["estimates"][method][what] is not None
    ]
    return {
        "bias": round(fmean(estimate.value - test for estimate, test in pairs), 2),
        "coverage": round(fmean(estimate.low <= test <= estimate.high for estimate, test in pairs), 3),
        "number": len(pairs),
    }


def off_in_trials(cases: list[dict[str, Any]]) -> float:
    """Root mean square of what a combined gain over plain CLIP in trials is off from the gain in the test, in points.

    Of default candidates whose gains on other data sets are known.
    """
    errors = []
    for one in cases:
        estimates, tests = one["estimates"], one["tests"]
        for name in tests.keys() & set(DEFAULT) & all_expected().gains.keys():
            in_trials = estimates[name]["combined"][0] - estimates[PLAIN]["combined"][0]
            errors.append(in_trials - (tests[name]["hm"] - tests[PLAIN]["hm"]))
    return fmean(error**2 for error in errors) ** 0.5


def regret(one: dict[str, Any], method: str) -> float:
    """Points of HM on test images by which the best tried candidate is better, in hindsight."""
    return float(max(test["hm"] for test in one["tests"].values()) - one["tests"][method]["hm"])


def shown(one: dict[str, Any]) -> tuple[str, ...]:
    """The row of a case."""
    method = one["chosen"]["auto"]
    best = max(one["tests"], key=lambda name: one["tests"][name]["hm"])
    accuracies = (f"{one['tests'][method][half]:.1f}" for half in ("base", "novel", "hm"))
    return (one["data"], str(one["shots"]), method, *accuracies, f"{regret(one, method):.1f}", best)


def all_cases(out: Path, stored: Path | None) -> list[dict[str, Any]]:
    """The ranked cases of a folder, and those that only the stored results have."""
    document = json.loads(stored.read_text()) if stored and stored.is_file() else {"cases": []}
    found = {(one["data"], one["shots"], one["seed"]): one for one in document["cases"]}
    for path in (out / "cases").glob("*.json"):
        choice = read_choice(out / "runs" / path.stem)
        assert choice is not None
        one = json.loads(path.read_text())
        found[one["data"], one["shots"], one["seed"]] = ranked(one, choice)
    return [found[key] for key in sorted(found)]


def main() -> None:
    """Run the cases that are missing, print the table of all cases, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="data sets and folders of photos; without it only the summary")
    parser.add_argument("--shots", default="4,16")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--candidates", default=",".join(DEFAULT))
    parser.add_argument("--budget", help="of each search; by default the product's")
    parser.add_argument("--roles")
    parser.add_argument("--clip")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    workspace, folder = Workspace(), asked.out / "cases"
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in asked.data.split(",") if name]
    for shots, data, seed in product(map(int, asked.shots.split(",")), names, map(int, asked.seeds.split(","))):
        name = f"{Path(data).name}-{shots}shots-seed{seed}"
        if not (folder / f"{name}.json").is_file():
            values = {
                "data": data, "shots": shots, "seed": seed, "half": "base", "method": "auto", "clip": asked.clip,
                "candidates": asked.candidates, "budget": asked.budget, "threads": asked.threads, "roles": asked.roles,
                "data_root": asked.data_root, "out": asked.out / "runs" / name,
                "cache": asked.cache or asked.out / "cache",
            }  # fmt: skip
            made = case(check(Fit, values), workspace)
            write_atomic(folder / f"{name}.json", json.dumps(made, indent=1).encode())
    cases = all_cases(asked.out, asked.json)
    found = summary(cases)
    print(table(("data", "shots", "chosen", "base", "novel", "HM", "regret", "best"), map(shown, cases), words=1))
    print(json.dumps(found, indent=1))
    if asked.json:
        write_atomic(asked.json, json.dumps({"summary": found, "cases": cases}, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
