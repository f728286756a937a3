"""Compare roles computed from the phrases of the paper's Table 2 with its printed roles: two rules, three centroids.

python benchmarks/table2_agreement.py --pool published.txt --out table2.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from dear.roles.concepts import ClusterSettings, Concepts, Encoder, find_concepts, load_encoder
from dear.roles.corpus import load_pool
from dear.roles.entropy import kappa, role_by_dominance, roles_by_quantile, shares
from dear.roles.rolemap import CORE_ATTRIBUTES, Role, RoleMap

TABLE_2 = RoleMap.load("vit-b-16")
PHRASES = sorted({phrase for head in TABLE_2.heads for phrase in head.phrases})


def agreement(concepts: Concepts, encode: Encoder) -> dict[str, Any]:
    embeddings = encode(PHRASES)
    every_of = dict(zip(PHRASES, concepts.classify(embeddings), strict=True))
    core_of = dict(zip(PHRASES, concepts.classify(embeddings, CORE_ATTRIBUTES), strict=True))
    every = [shares([every_of[p] for p in head.phrases], concepts.names) for head in TABLE_2.heads]
    core = [shares([core_of[p] for p in head.phrases], CORE_ATTRIBUTES) for head in TABLE_2.heads]
    rules = {
        "dominance": [role_by_dominance(head, CORE_ATTRIBUTES) for head in every],
        "quantile": roles_by_quantile(core, every, CORE_ATTRIBUTES),
    }
    core_right = [max(c, key=c.__getitem__) == h.concept for c, h in zip(core, TABLE_2.heads, strict=True)]
    concept_right = [max(e, key=e.__getitem__) == h.concept for e, h in zip(every, TABLE_2.heads, strict=True)]
    found: dict[str, Any] = {
        "core_attribute_right": sum(r for r, h in zip(core_right, TABLE_2.heads, strict=True) if h.role is Role.CORE),
        "concept_right": sum(r for r, h in zip(concept_right, TABLE_2.heads, strict=True) if h.concept),
    }
    theirs = [(head.role, head.concept) for head in TABLE_2.heads]
    for rule, ours in rules.items():
        found[rule] = {
            "kappa_roles": kappa([r.value for r, _ in theirs], [r.value for r, _ in ours]),
            "kappa_roles_and_concepts": kappa([_label(*x) for x in theirs], [_label(*x) for x in ours]),
            "confusion": [
                [sum(t[0] is row and o[0] is column for t, o in zip(theirs, ours, strict=True)) for column in Role]
                for row in Role
            ],
        }
    return found


def _label(role: Role, concept: str | None) -> str:
    return f"{role.value} {concept}" if role in (Role.CORE, Role.OTHER) else role.value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", action="append", default=["photographs"], help="a pool to take clusters from")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    encode = load_encoder()
    cases = {"prototypes": find_concepts(PHRASES, encode)}
    for source in args.pool:
        pool = load_pool(source)
        settings = ClusterSettings(centroids="clusters")
        cases[f"clusters of {pool.name}"] = find_concepts(pool.phrases, encode, settings)
    results = {name: agreement(concepts, encode) for name, concepts in cases.items()}
    print("| centroids | rule | kappa, roles | kappa, roles and concepts | core attribute | concept |")
    print("|---|---|---:|---:|---:|---:|")
    for name, found in results.items():
        for rule in ("dominance", "quantile"):
            kappas = f"{found[rule]['kappa_roles']:.2f} | {found[rule]['kappa_roles_and_concepts']:.2f}"
            print(f"| {name} | {rule} | {kappas} | {found['core_attribute_right']}/28 | {found['concept_right']}/43 |")
    names = [role.value for role in Role]
    for rule in ("dominance", "quantile"):
        print(f"\n{rule}, prototypes: rows are the paper's roles, columns ours\n")
        print(f"| | {' | '.join(names)} |\n|---|" + "---:|" * len(names))
        for name, row in zip(names, results["prototypes"][rule]["confusion"], strict=True):
            print(f"| {name} | {' | '.join(map(str, row))} |")
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
