"""Measure how good the choices of `--method auto` are: regret on test images, and its estimates against the test.

For each data set, number of shots and seed: the search chooses a method by trials on the shots of the base half. Then
every candidate that was tried is trained on all these shots and tested once, on test images of both halves. Nothing is
chosen on test images. Each case is one JSON file in OUT/cases, so an interrupted run resumes.

    python benchmarks/auto_regret.py --data world-textures,world-emblems --shots 4,16 --out runs/regret \
        --candidates tip_adapter,tip_adapter_f,ape_t,dear --json results/auto-regret.json
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from dear.data.splits import labels_of, restrict
from dear.engine.run import Reading, train_model
from dear.engine.workspace import Workspace, silent
from dear.evaluation.choice import Choice, read_choice
from dear.evaluation.choice_ranking import Estimate, rank, weighted_mean
from dear.evaluation.evaluate import evaluate_items
from dear.options.parts import Fit
from dear.options.reading import check
from dear.storage.files import write_atomic
from dear.storage.markdown import table
from dear.workflows.auto_candidates import DEFAULT, options_for
from dear.workflows.train import train_run

FIXED = ("dear", "tip_adapter_f")
"""What the choice is compared with: always taking one of these."""


def case(options: Fit, workspace: Workspace) -> dict[str, Any]:
    """One choice, and the test of every candidate that was tried."""
    out = options.out
    assert out is not None
    began = time.monotonic()
    known = read_choice(out) if out.is_dir() else None
    if known is None or not (out / "adapter_config.json").is_file():
        resume = options.model_copy(update={"resume": out.is_dir()})
        known = train_run(resume, workspace=workspace, say=print).choice
    assert known is not None
    seconds = time.monotonic() - began
    tests = {one.method: tested(one.method, options, workspace) for one in rank(known).standings}
    estimates = {
        one.method: {"learned": one.learned, "novel": one.novel, "combined": one.combined}
        for one in rank(known).standings
    }
    return {
        "data": options.data,
        "shots": options.shots,
        "seed": options.seed,
        "chosen": known.chosen,
        "chosen_without_novel": _without_novel(known),
        "tests": tests,
        "estimates": estimates,
        "untried": {one.method: one.state for one in known.candidates if one.state != "tried"},
        "seconds": {"search": known.seconds.search, "whole": round(seconds, 1), **known.seconds.training},
    }


def _without_novel(known: Choice) -> str:
    return rank(known.model_copy(update={"keep_novel": 0.0})).chosen


def tested(method: str, options: Fit, workspace: Workspace) -> dict[str, float]:
    """Test accuracy of a method that is trained on all shots of the base half, on both halves, and their HM."""
    clip = workspace.prepare(options_for("zero_shot", options, None)).model.clip
    wanted = options_for(method, options, clip)
    job, model = workspace.prepare(wanted, clip=clip, say=silent)
    cache = options.cache_folder(options.out)
    train_model(job, model, None, reading=Reading(options.workers, cache))
    found = {}
    for half, purpose in (("base", "default"), ("novel", "novel")):
        labels = labels_of(job.dataset, half)
        items = restrict(job.dataset.test, labels)
        novel = half == "novel" and not model.method.needs.novel
        view = (model.plain() if novel else model).for_classes(job.dataset.classes(job.dataset.names_in(labels)))
        scores = evaluate_items(view, job.dataset, items, half=half, cache=cache, workers=options.workers).scores  # type: ignore[arg-type]
        found[half] = scores.accuracy[view.readout(purpose)]
    found["hm"] = float(weighted_mean(*(_array(found[half]) for half in ("base", "novel")), 1.0)[0])
    return found


def _array(value: float) -> Any:
    import numpy as np

    return np.array([value])


def summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean regret of the choice and of fixed choices; bias and coverage of the held-out estimates."""
    regrets = {"auto": [regret(one, one["chosen"]) for one in cases]}
    for name in (*FIXED, "zero_shot"):
        regrets[f"always {name}"] = [regret(one, name) for one in cases if name in one["tests"]]
    pairs = [
        (Estimate(*one["estimates"][method][what]), test[half])
        for one in cases
        for method, test in one["tests"].items()
        for what, half in (("learned", "base"), ("novel", "novel"), ("combined", "hm"))
        if one["estimates"][method][what] is not None
    ]
    return {
        "cases": len(cases),
        "regret": {name: round(fmean(values), 2) for name, values in regrets.items() if values},
        "largest_regret": {name: round(max(values), 2) for name, values in regrets.items() if values},
        "below_plain": sum(one["tests"][one["chosen"]]["hm"] < one["tests"]["zero_shot"]["hm"] for one in cases),
        "bias": round(fmean(estimate.value - test for estimate, test in pairs), 2),
        "coverage": round(fmean(estimate.low <= test <= estimate.high for estimate, test in pairs), 3),
        "estimates": len(pairs),
    }


def regret(one: dict[str, Any], method: str) -> float:
    """Points of HM on test images by which the best tried candidate is better, in hindsight."""
    return max(test["hm"] for test in one["tests"].values()) - one["tests"][method]["hm"]


def main() -> None:
    """Run the cases that are missing, print the table, and write JSON if all are done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="world-textures,world-emblems")
    parser.add_argument("--shots", default="4,16")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--candidates", default=",".join(DEFAULT))
    parser.add_argument("--budget", default="2h")
    parser.add_argument("--clip")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    cases, workspace = [], Workspace()
    (asked.out / "cases").mkdir(parents=True, exist_ok=True)
    grid = product(asked.data.split(","), map(int, asked.shots.split(",")), map(int, asked.seeds.split(",")))
    for data, shots, seed in grid:
        name = f"{Path(data).name}-{shots}shots-seed{seed}"
        path = asked.out / "cases" / f"{name}.json"
        if not path.is_file():
            values = {
                "data": data, "shots": shots, "seed": seed, "half": "base", "method": "auto", "clip": asked.clip,
                "candidates": asked.candidates, "budget": asked.budget, "threads": asked.threads,
                "data_root": asked.data_root, "out": asked.out / "runs" / name, "cache": asked.out / "cache",
            }  # fmt: skip
            write_atomic(path, json.dumps(case(check(Fit, values), workspace), indent=1).encode())
        cases.append(json.loads(path.read_text()))
    found = summary(cases)
    rows = [
        [
            one["data"],
            str(one["shots"]),
            one["chosen"],
            one["chosen_without_novel"],
            f"{regret(one, one['chosen']):.1f}",
        ]
        for one in cases
    ]
    print(table(("data", "shots", "chosen", "without left-out classes", "regret"), rows, words=1))
    print(json.dumps(found, indent=1))
    if asked.json:
        asked.json.write_text(json.dumps({"summary": found, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
