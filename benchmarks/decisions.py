"""Compare the choices that the paper leaves open, one at a time, without test images.

Each value is trained base-to-novel on the world's sets and tested on training images that were not sampled and on the
validation split.

    python benchmarks/decisions.py --out runs/decisions --jobs 2
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

from dear.evaluation.cells import Cell, make_cells
from dear.evaluation.grid import run_grid
from dear.evaluation.results import CellResult, harmonic_mean
from dear.options.parts import Bench

DATA = ("textures", "blooms", "things", "places", "emblems", "scenes", "broad")
FACTORS = {
    "alpha_cls": [1 / 6, 0.5, 0.9],
    "fusion_loss": ["one_minus"],
    "projection": ["random", "low_rank"],
    "beta": [0.0, 0.5, 1.0],
    "mask": ["all_mixed", "all_generalization"],
    "routing": ["strict"],
}


def cells_of(seeds: list[int], factors: list[str], names: list[str]) -> list[Cell]:
    data = [f"world-{name}" for name in names]
    shared = {"seeds": seeds, "shots": [16]}
    cells = make_cells("base-to-novel", data, methods=["zero_shot", "dear"], **shared)
    for factor in factors:
        for value in FACTORS[factor]:
            cells += make_cells("base-to-novel", data, methods=["dear"], choices={factor: [value]}, **shared)
    return cells


def row(name: str, results: list[CellResult]) -> str:
    """Mean over sets and seeds; HM is that of the mean base and the mean novel accuracy."""
    base, novel = halves(results)
    hm, by_cls = harmonic_mean(base, novel), harmonic_mean(*halves(results, "decoupled"))
    alpha = f"{mean(r.weights['cls'] for r in results):.3f}" if results[0].weights else ""
    return f"| {name} | {base:.2f} | {novel:.2f} | **{hm:.2f}** | {by_cls:.2f} | {alpha} |"


def halves(results: list[CellResult], readout: str | None = None) -> tuple[float, float]:
    """Mean accuracy on base and on novel classes, by a readout where a method has it."""

    def accuracy(one: CellResult, half: str) -> float:
        return one.reading(one.score(half), readout if readout in one.readout_names else None)

    base, novel = (mean(accuracy(one, half) for one in results) for half in ("base", "novel"))
    return base, novel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=DATA)
    parser.add_argument("--factors", nargs="+", default=list(FACTORS))
    parser.add_argument("--views", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    options = Bench(
        out=args.out,
        clip="world",
        cached_views=args.views,
        cache=args.cache or args.out / "cache",
        validate=True,
        threads=1,
        resume=True,
        jobs=args.jobs,
    )
    cells = cells_of(args.seeds, args.factors, args.data)
    results = run_grid(
        cells,
        options,
        on_cell=lambda done, one: print(f"{done}/{len(cells)} {one.data} {one.variant}", flush=True),
    )
    names = list(dict.fromkeys((one.method, one.variant) for one in results))
    print("| | base | novel | HM | HM, decoupled | α_cls at the end |\n|---|---:|---:|---:|---:|---:|")
    for method, variant in names:
        chosen = [one for one in results if (one.method, one.variant) == (method, variant)]
        print(row(variant or ("as decided" if method == "dear" else method), chosen))


if __name__ == "__main__":
    main()
