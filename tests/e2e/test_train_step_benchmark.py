"""The training-step benchmark runs from end to end on a tiny CLIP; no time is asserted, only what does not vary."""

import json
import sys
from pathlib import Path

import pytest

import reference

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(reference, "role_mask", reference.role_mask)  # the benchmark replaces it


def test_the_benchmark_starts(monkeypatch, capsys):
    from train_step import main

    monkeypatch.setattr(sys, "argv", ["train_step.py", "--help"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    assert "--eval-batch" in capsys.readouterr().out


@pytest.mark.slow
def test_benchmark_on_a_tiny_clip(tiny_folders, tmp_path, monkeypatch, capsys):
    from train_step import main

    out, clip = tmp_path / "found.json", f"local-dir:{tiny_folders['plain']}"
    words = f"--clip {clip} --classes 30 24 --batch 2 --eval-batch 2 --repeats 1 --threads 1 --out {out}"
    monkeypatch.setattr(sys, "argv", ["train_step.py", *words.split()])
    main()
    found, printed = json.loads(out.read_text()), capsys.readouterr().out
    assert [steps["classes"] for steps in found["steps"]] == [30, 24]
    for steps in found["steps"]:
        errors = steps["errors"]
        assert all(error <= 1e-4 for error in errors["live against plain"].values())
        assert set(errors["cached against ours from the same rounded view"].values()) == {0.0}
        assert all(error <= 1e-2 for error in errors["cached against live (fp16's share)"].values())
        assert set(steps["plain_over_ours"]) == {"live", "cached"}
        assert 0 < steps["median_seconds"]["plain_frozen_text"] < steps["median_seconds"]["plain"]
    assert found["steps"][0]["prompt_tokens_longest"] == 18
    assert found["memory"]["megabytes"]["plain"] > 0
    assert found["evaluation"]["images_per_second"]["ours"] > 0
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 2 * 2 + 2
    assert any(line.startswith("| step, 24 classes, live |") and "≥ 1.6" in line for line in rows)


@pytest.mark.parametrize("count", [1, 501])
def test_only_so_many_class_names(count):
    from class_words import class_names

    with pytest.raises(SystemExit, match="There are names for 2 to 500 classes"):
        class_names(count)
    assert len(set(class_names(500))) == 500
