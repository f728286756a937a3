"""Format the results of `train_step.py` as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TARGETS = {(500, "live"): 4.0, (500, "cached"): 7.0, (24, "live"): 1.6, (24, "cached"): 4.0}
MEMORY_TARGETS = {500: 0.25}
EVALUATION_TARGET = 1.0
LABELS = {"live": "live", "cached": "cached views"}

NOTES = """Memory: growth of a fresh process's resident size over one step (VmHWM, set back before it, less VmRSS;
ru_maxrss would count the peak of loading); ours counts from before
the frozen part of the classes is made. Cached rows come from the page cache.
A plain trainer may keep plain CLIP's class features instead of computing them each step: the last column. Targets are
for ViT-B/16 with a batch of 16."""


def judged(value: float, target: float | None, *, at_most: bool = False) -> str:
    if target is None:
        return ""
    met = value <= target if at_most else value >= target
    return f"{'≤' if at_most else '≥'} {target:g}, {'met' if met else 'missed'}"


def ranged(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['min']:.2f}-{ratio['max']:.2f})"


def step_rows(steps: Mapping[str, Any]) -> list[tuple[str, ...]]:
    seconds, count = steps["median_seconds"], steps["classes"]
    rows: list[tuple[str, ...]] = []
    for way, ratio in steps["plain_over_ours"].items():
        target = judged(ratio["median"], TARGETS.get((count, way)))
        lean = ranged(steps["plain_without_frozen_text_over_ours"][way])
        times = (f"{seconds['plain']:.3f} s", f"{seconds[way]:.3f} s")
        rows.append((f"step, {count} classes, {LABELS[way]}", *times, ranged(ratio), target, lean))
    return rows


def memory_row(memory: Mapping[str, Any]) -> tuple[str, ...]:
    sizes = [f"{memory['megabytes'][way]:.0f} MB" for way in ("plain", "ours")]
    ratio = memory["ours_over_plain"]
    target = judged(ratio, MEMORY_TARGETS.get(memory["classes"]), at_most=True)
    return (f"peak memory of a step, {memory['classes']} classes, ours ÷ plain", *sizes, f"{ratio:.3f}", target, "")


def evaluation_row(evaluation: Mapping[str, Any]) -> tuple[str, ...]:
    speeds = [f"{evaluation['images_per_second'][way]:.1f} images/s" for way in ("open_clip", "ours")]
    ratio = evaluation["ours_over_open_clip"]
    target = judged(ratio["median"], EVALUATION_TARGET)
    return ("evaluation, ours ÷ OpenCLIP's encode_image", *speeds, ranged(ratio), target, "")


def report(found: Mapping[str, Any]) -> str:
    """Agreement, then the table with the targets beside."""
    lines = [f"{found['clip']} ({found['pretrained']}), batch {found['batch']}, {found['threads']} threads", ""]
    for steps in found["steps"]:
        lines.append(
            f"{steps['classes']} classes: prompts of {steps['prompt_tokens_mean']:.1f} tokens on average, "
            f"{steps['prompt_tokens_longest']} at most; their frozen part took {steps['frozen_text_seconds']:.2f} s, "
            "once. Relative errors:"
        )
        for name, errors in steps["errors"].items():
            lines.append(f"- {name}: " + ", ".join(f"{what} {error:.1e}" for what, error in errors.items()))
    header = (
        "what",
        "plain",
        "ours",
        "plain ÷ ours, median (range)",
        "target",
        "plain without its frozen text pass ÷ ours",
    )
    rows = [row for steps in found["steps"] for row in step_rows(steps)]
    rows += [memory_row(found["memory"]), evaluation_row(found["evaluation"])]
    lines += [
        "",
        f"| {' | '.join(header)} |",
        "|---|---:|---:|---:|---|---:|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join([*lines, "", NOTES])
