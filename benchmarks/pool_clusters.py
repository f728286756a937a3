"""Cluster a text pool with HDBSCAN: number and names of clusters, share of noise, and the K that DBCV prefers.

UMAP's seed is varied, since the result depends on it.

    python benchmarks/pool_clusters.py --pool published.txt --out clusters.json
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dear.roles.concepts import (
    ClusterSettings,
    Encoder,
    find_concepts,
    load_encoder,
    preferred_count,
    validity_by_count,
)
from dear.roles.corpus import TextPool, load_pool


def clusters(pool: TextPool, encode: Encoder, seed: int) -> dict[str, Any]:
    found = find_concepts(pool.phrases, encode, ClusterSettings(seed=seed))
    names = Counter(cluster["name"] for cluster in found.record["clusters"])
    sizes = [cluster["phrases"] for cluster in found.record["clusters"]]
    noise = found.record["noise"] / found.record["phrases"]
    return {"seed": seed, "clusters": len(sizes), "sizes": sizes, "noise": noise, "names": dict(names)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", action="append", default=["photographs"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--validity-of", type=int, default=1000, help="phrases, evenly spread, that DBCV looks at")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    encode = load_encoder()
    results: dict[str, Any] = {}
    print("| pool | seed | phrases | clusters | noise | names |\n|---|---:|---:|---:|---:|---|")
    for source in args.pool:
        pool = load_pool(source)
        known: dict[str, Any] = {}

        def once(phrases: Any, known: dict[str, Any] = known) -> Any:
            """Embed each phrase once, however often it is asked for."""
            if missing := [phrase for phrase in phrases if phrase not in known]:
                known.update(zip(missing, encode(missing), strict=True))
            return np.stack([known[phrase] for phrase in phrases])

        rows = [clusters(pool, once, seed) for seed in range(args.seeds)]
        for row in rows:
            names = ", ".join(f"{name} {count}" for name, count in row["names"].items())
            print(
                f"| {pool.name} | {row['seed']} | {len(pool.phrases)} | {row['clusters']} | {100 * row['noise']:.0f} % "
                f"| {names} |",
                flush=True,
            )
        some = pool.phrases[:: max(1, len(pool.phrases) // args.validity_of)]
        validity = validity_by_count(once(some), find_concepts(some, once))
        results[pool.name] = {"clusterings": rows, "dbcv": validity, "preferred": preferred_count(validity)}
    print("\n| pool | DBCV of the 2, 3, … most frequent concepts | preferred |\n|---|---|---:|")
    for name, found in results.items():
        scores = ", ".join(f"{k}: {'–' if v is None else f'{v:.3f}'}" for k, v in found["dbcv"].items())
        print(f"| {name} | {scores} | {found['preferred']} |")
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
