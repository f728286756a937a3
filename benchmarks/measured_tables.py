"""Tables of the documentation from the JSON files that other scripts of this folder wrote into results/."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import dear_settings
from documented_numbers import document
from which_method import link

from dear.methods.registry import get_method
from dear.methods.tuned import Tuned
from dear.storage.markdown import table

ATTRIBUTES = ("color", "shape", "texture", "object", "location")
FEATURES = {"heads": "**head features**", "open": "**the paper's mask**", "strict": "**`routing=strict`**"}
"""Kinds of features by their name in attribute-search.json: the heads, and the names of two runs."""
WHOLE = "cls"


def numbers(values: Sequence[float], *, bold: int | None = None) -> list[str]:
    """With one digit, one of them bold."""
    return [f"**{value:.1f}**" if place == bold else f"{value:.1f}" for place, value in enumerate(values)]


def search_table() -> str:
    """Precision of the ten nearest scenes by every kind of feature."""
    found = document("attribute-search")
    lines = [("chance", *numbers(found["chance"]))]
    for name, title in FEATURES.items():
        whole, part = ("the whole embedding", "heads") if name == "heads" else ("[CLS]", "token")
        for kind, values in found["precision"][name].items():
            what = f"{title}: {whole}" if kind == WHOLE else f"{kind} {part}"
            bold = ATTRIBUTES.index(kind) if kind in ATTRIBUTES else None
            lines.append((what, *numbers(values, bold=bold)))
    return table(("feature", *ATTRIBUTES), lines)


def proposed_table() -> str:
    """How well the proposed minimum score separates."""
    found = document("attribute-search")["proposed"]
    titles = ("hits at or above it that share the attribute", "scenes sharing the attribute that are at or above it")
    lines = [
        (f"{title}, per cent", *(f"{found[one][place]:.0f}" for one in ATTRIBUTES))
        for place, title in enumerate(titles)
    ]
    return table(("", *ATTRIBUTES), lines)


def photograph_search_table() -> str:
    """Precision of the ten nearest photographs by kind of head."""
    found = document("attribute-search-photographs")
    lines = [("chance", f"{found['chance'][0]:.1f}")]
    for kind, values in found["precision"]["heads"].items():
        lines.append(("the whole embedding" if kind == WHOLE else f"{kind} heads", f"{values[0]:.1f}"))
    return table(("feature", "class"), lines)


def heat_map_table() -> str:
    """Whether heat maps point at the right region."""
    found = document("heat-maps")
    heads = list(next(iter(found.values())))
    return table(("attribute", *heads), [(name, *numbers(list(one.values()))) for name, one in found.items()])


def method_step_table() -> str:
    """A step of published methods, plain and ours, the largest saving first."""
    rows = document("method-step")["rows"]
    lines = []
    for row in sorted(rows, key=lambda row: -row["median"]["plain"] / row["median"]["live"]):
        middle, memory = row["median"], row["megabytes"]
        ratios = [middle["plain"] / middle[way] for way in ("live", "cached")]
        times = [f"{middle[way]:.2f}" for way in ("plain", "live")]
        sizes = [f"{memory[way]:,.0f}" for way in ("plain", "live")]
        lines.append((named(row), str(row["batch"]), *times, f"**{ratios[0]:.1f}**", f"{ratios[1]:.1f}", *sizes))
    heads = ("method", "batch", "plain, s", "ours live, s", "plain ÷ live", "plain ÷ cached", "MB plain", "MB live")
    return table(heads, lines)


def feature_epoch_table() -> str:
    """What methods on finished features take before, per and after an epoch."""
    lines = []
    for row in document("feature-epoch")["rows"]:
        epoch = f"{median(row['epochs']):.2f}" if row["epochs"] else "–"
        lines.append((named(row), f"{row['images']:,}", f"{row['begin']:.2f}", epoch, f"{row['finish']:.2f}"))
    return table(("method", "images", "before, s", "epoch, s", "after, s"), lines)


def tuned_table() -> str:
    """What was chosen for each method, and what it gained on validation images over the shared recipe."""
    lines = []
    for method, found in document("tuned")["methods"].items():
        chosen, first = found["chosen"], found["tried"][0]
        best = max(one["hm"] for one in found["tried"])
        used = Tuned(**chosen).recipe(get_method(method).recipe)
        rate = f"{used.optimiser} {used.lr:.2g}"
        lines.append((named(found | {"method": method}), rate, str(used.epochs), f"{first['hm']:.1f}", f"{best:.1f}"))
    return table(("method", "optimiser and learning rate", "epochs", "HM, shared", "HM, tuned"), lines)


def waiting_table() -> str:
    """Quickstart by how OpenMP's threads wait, alone and beside other programs."""
    middle = {
        place: {name: median(times) for name, times in row.items()}
        for place, row in document("waiting-threads")["seconds"].items()
    }
    ways = {
        "default": "`GOMP_SPINCOUNT=10000` (default)",
        "sleep": "`OMP_WAIT_POLICY=PASSIVE`",
        "spin": "`OMP_WAIT_POLICY=ACTIVE`",
    }
    lines = [
        (text, *(f"{row[name]:.0f} ({row[name] / min(row.values()):.2f})" for row in middle.values()))
        for name, text in ways.items()
    ]
    return table(("waiting threads", *middle), lines)


def named(row: dict[str, Any]) -> str:
    """A method's name, linked to its page."""
    return link({"method": row["method"], "variant": ""})


def agreement_table() -> str:
    """Roles from the phrases of the paper's Table 2 beside its printed ones."""
    found, lines = document("table2-agreement"), []
    for name, one in found.items():
        for rule in ("dominance", "quantile"):
            kappas = f"{one[rule]['kappa_roles']:.2f}", f"{one[rule]['kappa_roles_and_concepts']:.2f}"
            lines.append((name, rule, *kappas, str(one["core_attribute_right"]), str(one["concept_right"])))
    heads = (
        "concepts from",
        "rule",
        "kappa of roles",
        "with concepts",
        "attribute of 28 core heads",
        "concept of 43 heads",
    )
    return table(heads, lines)


def stability_table() -> str:
    """How well role maps agree with those of resampled images."""
    lines, called = [], {True: "unstable", False: "stable", None: "unknown"}
    for one in document("role-stability")["maps"]:
        same = sorted(100 * found["same_role"] for found in one["resampled"])
        kappas = sorted(found["kappa"] for found in one["resampled"])
        shown = (f"{kappa:.2f}".replace("-", "−") for kappa in (kappas[0], median(kappas), kappas[-1]))
        share = f"{same[0]:.0f}–{same[-1]:.0f} %"
        lines.append((f"{one['images']:,}", share, *shown, called[one["unstable"]]))
    return table(("photos", "heads with the same role", "kappa, lowest", "median", "highest", "called"), lines)


def removal_table(name: str = "world-roles") -> str:
    """What removing the heads of an attribute costs on the world, beside random heads."""
    ablation, lines = document(name)[0]["ablation"], []
    tasks = ablation["tasks"]
    for group in ablation["groups"]:
        place = tasks.index(group["attribute"])
        drops = [f"{-100 * drop + 0.0:+.1f}".replace("-", "−") for drop in group["removed"]["drops"]]
        drops[place] = f"**{drops[place]}**"
        mean, spread = 100 * group["random_means"][place], 100 * group["random_spreads"][place]
        lines.append((group["removed"]["what"], *drops, f"{-mean:+.1f} ± {spread:.1f}".replace("-", "−")))
    return table(("removed", *tasks, "as many random heads, own task"), lines)


def attribute_table(name: str = "world-score") -> str:
    """Zero-shot accuracy of a CLIP of the world by attribute."""
    found = document(name)["attributes"]
    heads = {"top1": "top-1", "seen": "seen combinations", "unseen": "never-seen combinations", "chance": "chance"}
    lines = [(name, *numbers([row[one] for one in heads])) for name, row in found.items()]
    return table(("attribute", *heads.values()), lines)


def onnx_table() -> str:
    """Exported files against torch: logits, labels, speed and size."""
    lines = []
    for one in document("onnx")["adapters"]:
        seconds = one["seconds_per_image"]
        what = f"{one['adapter'].removeprefix('dear on ')}, {one['images']:,} images, {one['classes']} classes"
        for form, size in one["bytes"].items():
            apart, same = one["largest_difference_of_a_logit"][form], 100 * one["top_1_agreement"][form]
            difference = f"{apart:.0e}".replace("e-0", "e-") if apart < 0.01 else f"{apart:.2f}"
            speed = f"{seconds['torch'] / seconds[form]:.2f}"
            lines.append((what, form, difference, f"{same:.1f}", speed, f"{size / 1e6:.1f}"))
            what = ""
    return table(("", "file", "largest difference of a logit", "same label, %", "speed, torch = 1", "MB"), lines)


def service_table() -> str:
    """The example service under load."""
    found = document("service")["load"]
    seconds, memory = found["seconds"], found["megabytes"]
    return table(
        ("requests at once", "wrong answers", "median, s", "95 %, s", "longest, s", "MB before", "MB at most"),
        [(
            str(found["requests"]),
            str(found["wrong"]),
            *(f"{seconds[one]:.1f}" for one in ("median", "p95", "max")),
            *(str(memory[one]) for one in ("before", "most")),
        )],
    )  # fmt: skip


def hostile_table() -> str:
    """What the example service answers to hostile uploads."""
    rows = document("service")["hostile"]
    lines = [(one["upload"], str(one["status"]), one["answer"], "yes" if one["alive"] else "no") for one in rows]
    return table(("upload", "status", "answer", "still answers others"), lines)


def search_size_table() -> str:
    """Queries in a million vectors: CPU milliseconds and recall of the exact store and of faiss."""
    found = document("search-lists")["clustered"]
    exact = (f"{found['exact store'][one]:.0f}" for one in ("photo ms", "text ms"))
    lines = [("exact store", "", *exact, "1.000", "1.000")]
    for name in ("faiss one list", "faiss lists"):
        one = found[name]
        searched = f"{one['searched']:,} of {one['lists']:,}"
        milliseconds = (f"{one[key]:.0f}" for key in ("photo ms", "text ms"))
        lines.append((name, searched, *milliseconds, *(f"{one[key]:.3f}" for key in ("photo recall", "text recall"))))
    heads = ("", "lists searched", "photo, CPU ms", "text, CPU ms", "photo, recall@10", "text, recall@10")
    return table(heads, lines)


def class_scale_table() -> str:
    """A training step with many classes in chunks: memory, time and error of the gradients."""
    rows = document("class-scale")["rows"]
    lines = []
    for one in rows:
        error = one.get("gradient_error")
        lines.append((
            f"{one['classes']:,}",
            f"{one['chunk']:,}" if one["chunk"] else "all",
            f"{one['peak_mb']:,.0f}",
            f"{one['peak_mb'] / rows[0]['peak_mb']:.2f}",
            f"{one['step_cpu_seconds']:.1f}",
            "" if error is None else f"{error:.0e}".replace("e-0", "e-"),
        ))  # fmt: skip
    heads = ("classes", "at once", "peak MB", "÷ first", "CPU s per step", "largest relative error of a gradient")
    return table(heads, lines)


def class_memory_table() -> str:
    """Peak memory of a step per class, and the estimate of it."""
    rows = document("class-memory")["rows"]
    lines = [
        (one["clip"], one["method"], f"{one['MB']:.2f}", f"{one['estimated MB']:.2f}", f"{one['ratio']:.2f}")
        for one in rows
    ]
    return table(("CLIP", "method", "MB per class", "estimated", "estimated ÷ real"), lines)


def many_classes_table() -> str:
    """Training and evaluation with thousands of classes: CPU time and memory."""
    rows = sorted(document("many-classes")["rows"], key=lambda one: (one["classes"], one["method"]))
    lines = [
        (
            f"{one['classes']:,}",
            one["method"],
            *(f"{one[f'{part} CPU s']:.0f}" for part in ("train", "eval")),
            *(f"{one[f'{part} MB']:,}" for part in ("train", "eval")),
        )
        for one in rows
    ]
    return table(("classes", "method", "training, CPU s", "test, CPU s", "training, MB", "test, MB"), lines)


def regret_table() -> str:
    """The choice of `--method auto` by case: its accuracies on test images, its regret, the best in hindsight."""
    lines = []
    for one in document("auto-regret")["cases"]:
        tests, chosen = one["tests"], one["chosen"]["auto"]
        best = max(tests, key=lambda name: tests[name]["hm"])
        accuracies = (f"{tests[chosen][half]:.1f}" for half in ("base", "novel", "hm"))
        lines.append((
            one["data"].removeprefix("world-"),
            str(one["shots"]),
            f"`{chosen}`",
            *accuracies,
            f"{tests['zero_shot']['hm']:.1f}",
            f"`{best}` {tests[best]['hm']:.1f}",
            f"{tests[best]['hm'] - tests[chosen]['hm']:.1f}",
            f"{one['seconds']['search'] / 60:.0f}",
        ))  # fmt: skip
    heads = ("photos", "shots", "chosen", "base", "novel", "HM", "plain CLIP", "best", "regret", "minutes")
    return table(heads, lines)


def rules_table() -> str:
    """Mean and largest regret of ways to choose."""
    found = document("auto-regret")["summary"]
    names = sorted(found["regret"], key=lambda name: found["regret"][name])
    lines = [
        (name, f"{found['regret'][name]:.1f}", f"{found['largest_regret'][name]:.1f}", str(found["tested"][name]))
        for name in names
    ]
    return table(("rule", "mean regret", "largest", "cases"), lines)


def dear_settings_table(name: str) -> str:
    """DeAR with one setting changed: means on validation images, and paired differences from the published ones."""
    return dear_settings.shown(document(name))
