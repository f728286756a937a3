"""Choose each method's `tuned` recipe: the same few ways to train, compared on validation images, never on test images.

Three steps per method, on three data sets of the embedded world with seed 1; each keeps the best so far by the mean
harmonic mean of base and novel classes, and a tie goes to the earlier choice:

1. the shared recipe (AdamW), or the method's own optimiser, rate and schedule, scaled to the shared batch size,
2. 0.3 or 3 times that learning rate,
3. half as many epochs.

Each cell is resumable, and each method has a file of its own in OUT, so two processes can share the methods. `--write`
collects the files into results/tuned.json (every choice with its scores) and src/dear/methods/tuned.json (the chosen).

    python benchmarks/tune_recipes.py --out runs/tuned --methods dear,mmrl
    python benchmarks/tune_recipes.py --out runs/tuned --write
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from dear.data.splits import Half
from dear.engine.workspace import Workspace
from dear.methods.registry import get_method, list_methods
from dear.methods.tuned import LONGEST, Tuned, takes_steps, tuned_choices
from dear.options.parts import Bench
from dear.options.reading import check
from dear.storage.files import write_atomic
from dear.workflows.bench import run_bench

ROOT = Path(__file__).parents[1]
HALVES: tuple[Half, ...] = ("base", "novel")
DATA = ["world-textures", "world-emblems", "world-broad"]
ALSO: dict[str, dict[str, Any]] = {
    "llamp": {"set": {"lm": [str(ROOT / "results/tiny-lm")]}},
    "tac": {"set": {"views": [2]}},
}
"""Settings that a method needs here, or that make it cheaper, as in the other tables."""


def tuned_methods() -> list[str]:
    """Methods that train by gradient steps on labelled images."""
    methods = {name: get_method(name) for name in list_methods()}
    return [name for name, one in methods.items() if takes_steps(one) and not one.needs.unlabelled]


class Trials:
    """The choices of one method that were tried, with their scores on validation images."""

    def __init__(self, method: str, out: Path, workspace: Workspace) -> None:
        self.method, self.out, self.workspace = method, out, workspace
        self.scores: dict[Tuned, dict[str, Any]] = {}

    def best(self) -> Tuned:
        """The choice with the highest mean; of equal ones the first."""
        return max(self.scores, key=lambda choice: self.scores[choice]["hm"])

    def score(self, choice: Tuned) -> None:
        """Train and validate with one choice on every data set."""
        tuned_choices()[self.method] = choice
        name = f"{self.method}-{choice.optimiser}-{choice.rate:g}-{choice.epochs}"
        values = {
            **{"data": DATA, "methods": [self.method], "seeds": [1], "out": self.out / "grids" / name, "resume": True},
            **{"recipe": "tuned", "validate": True, "cached_views": 10, "threads": 1, "cache": self.out / "cache"},
            **ALSO.get(self.method, {}),
        }
        results = run_bench("base-to-novel", check(Bench, values), workspace=self.workspace).results
        by_set = {}
        for cell in results:
            assert cell.tested_on == "validation"
            halves = {half: cell.reading(cell.score(half)) for half in HALVES}
            by_set[cell.data] = {**halves, "hm": cell.harmonic_mean()}
        self.scores[choice] = {"hm": fmean(one["hm"] for one in by_set.values()), "by_set": by_set}
        print(f"{name}: {self.scores[choice]['hm']:.2f}, {fmean(cell.seconds for cell in results):.1f} s", flush=True)


def tune(method: str, out: Path, workspace: Workspace) -> None:
    """Try the choices of one method, and write what came out."""
    file = out / f"{method}.json"
    if file.is_file():
        return
    trials = Trials(method, out, workspace)
    for optimiser in ("shared", "own"):
        trials.score(Tuned(optimiser=optimiser, rate=1.0, epochs=LONGEST))
    first = trials.best()
    for rate in (0.3, 3.0):
        trials.score(first.model_copy(update={"rate": rate}))
    trials.score(trials.best().model_copy(update={"epochs": LONGEST // 2}))
    tried = [{**choice.model_dump(), **scores} for choice, scores in trials.scores.items()]
    write_atomic(file, json.dumps({"chosen": trials.best().model_dump(), "tried": tried}, indent=1).encode() + b"\n")


def write(out: Path) -> None:
    """Collect the files of all methods."""
    found = {name: json.loads(file.read_text()) for name in tuned_methods() if (file := out / f"{name}.json").is_file()}
    about = {"data": DATA, "seed": 1, "images": "validation", "recipe": "shared batch size and crops", "methods": found}
    write_atomic(ROOT / "results/tuned.json", json.dumps(about, indent=1).encode() + b"\n")
    chosen = {name: one["chosen"] for name, one in found.items()}
    write_atomic(ROOT / "src/dear/methods/tuned.json", json.dumps(chosen, indent=1).encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "runs/tuned")
    parser.add_argument("--methods", default=",".join(tuned_methods()))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.write:
        write(options.out)
        return
    workspace = Workspace()
    for method in options.methods.split(","):
        tune(method, options.out, workspace)


if __name__ == "__main__":
    main()
