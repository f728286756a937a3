"""Shares of a grid (`--cells 3/20`): disjoint, complete, several at once on one folder, and the example for SLURM."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dear
from dear.evaluation.cell_run import CELLS
from dear.evaluation.grid import own_share
from helpers import make_photos
from needs import needs, needs_posix

EXAMPLE = Path(__file__).parents[2] / "examples" / "slurm.sbatch"


@pytest.fixture
def place(tmp_path, monkeypatch, tiny_folders):
    """A folder with photos, a config of two cells, and the programs that the example calls."""
    make_photos(tmp_path / "photos", ["ant", "bee", "cow", "dog"], 4)
    clip = f"clip: local-dir:{tiny_folders['shallow']}\npretrained: random\n"
    rest = "data: [photos]\nmethods: [coop]\nseeds: [1, 2]\nshots: [2]\nepochs: 2\nbatch_size: 2\nworkers: 1\n"
    (tmp_path / "grid.yaml").write_text(clip + rest)
    programs = {
        "srun": '[ "$1" = --cpus-per-task=1 ] && shift && exec "$@"',
        "dear": f'exec {sys.executable} -m dear "$@"',
    }
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def adapters(out):
    found = {path.stem: json.loads(path.read_text()) for path in (out / CELLS).glob("*.json")}
    return {name: cell["adapter_sha256"] for name, cell in found.items()}


def bench(dear_, *words):
    return dear_("bench", "base-to-novel", "--config", "grid.yaml", "--threads", "1", *words)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_shares_are_disjoint_and_complete(count):
    cells = list(range(13))
    shares = [own_share(cells, f"{which}/{count}") for which in range(1, count + 1)]
    assert sorted(cell for share in shares for cell in share) == cells
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert own_share(cells, None) == cells


def test_an_array_of_jobs_gives_the_bytes_of_one_run(dear_, place):
    """The example runs as written, two jobs at once; a third has nothing to do, and --resume writes the tables."""
    needs_posix()
    needs("bash")
    path = f"{place}{os.pathsep}{os.environ['PATH']}"
    mine = {"PYTHONPATH": str(Path(dear.__file__).parents[1]), "PATH": path, "SLURM_CPUS_PER_TASK": "1"}
    assert len(EXAMPLE.read_text().splitlines()) == 12
    jobs = [
        subprocess.Popen(
            ["bash", EXAMPLE],
            env={**os.environ, **mine, "SLURM_ARRAY_TASK_ID": str(task)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for task in (1, 2)
    ]
    for task, job in enumerate(jobs, 1):
        _, stderr = job.communicate(timeout=500)
        assert job.returncode == 0, stderr
        assert f"share {task}/20: 1 cell done; after all shares, the same command with --resume" in stderr
    code, _, stderr = bench(dear_, "--out", "grid", "--cells", "3/20")
    assert (code, "share 3/20: 0 cells done" in stderr) == (0, True)
    assert not (place / "grid" / "table.md").exists()
    assert bench(dear_, "--out", "grid", "--resume")[0] == 0
    assert bench(dear_, "--out", "whole")[0] == 0
    assert len(adapters(place / "whole")) == 2
    assert adapters(place / "grid") == adapters(place / "whole")
    tables = [(place / name / "table.md").read_text() for name in ("grid", "whole")]
    assert tables[0] == tables[1]
    assert "cells:" not in (place / "grid" / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--cells 0/3", "--cells"),
        ("--cells 4/3", "a share such as 3/20"),
        ("--cells 1/2 --overwrite", "--overwrite would discard what other shares have done"),
        ("--cells 1/2 --on ray", "--cells 1/2 is for machines without a cluster"),
        ("--gpus 1", "--gpus 1.0 is for a cluster: add --on ray"),
        ("--on spark", "ray"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(dear_, place, words, sentence):
    code, _, stderr = bench(dear_, "--out", "grid", *words.split())
    assert code == 2
    assert sentence in stderr
    assert len(stderr.strip().splitlines()) <= 2
    assert not (place / "grid").exists()


def test_a_comparison_in_shares(dear_, place):
    """A share has no page, and one with nothing but a refused method is not an error."""
    words = ["--config", "grid.yaml", "--methods", "coop,linear_probe", "--out", "grid"]
    for share in ("1/2", "2/2"):
        code, _, stderr = dear_("compare", *words, "--cells", share)
        assert code == 0, stderr
    assert not (place / "grid" / "compare.html").exists()
    code, stdout, _ = dear_("compare", *words, "--resume")
    assert code == 0
    assert stdout
    assert (place / "grid" / "compare.html").exists()
