"""Two drivers of one cluster in one folder, and a node whose dear has no clusters. Run by `make ray`."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dear
from dear.evaluation.cell_run import CELLS
from dear.storage.locks import LOCK
from helpers import heed_interrupts, make_photos
from needs import needs, needs_posix
from ray_nodes import ray_nodes

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]

SOURCE = Path(dear.__file__).parents[1]
OLDER = "0.1.0"
UNTIL = 900
"""Seconds to wait for something that must happen."""


@pytest.fixture(scope="module")
def nodes():
    needs("ray")
    needs_posix()
    with ray_nodes(SOURCE, others=0) as nodes:
        yield nodes


@pytest.fixture
def drive(nodes, tmp_path, tiny_folders):
    """Starts `dear bench` with one cell that takes hours, in the folder of the test."""
    make_photos(tmp_path / "photos", ["ant", "bee", "cow", "dog"], 4)
    words = (
        f"few-shot --data photos --clip local-dir:{tiny_folders['shallow']} --pretrained random --shots 2 --seeds 1 "
    )
    words += f"--epochs 100000 --batch-size 2 --methods coop --threads 1 --workers 1 --out out --on ray:{nodes.address}"

    def start(*more):
        line = [sys.executable, "-m", "dear", "bench", *words.split(), *more]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(line, cwd=tmp_path, env=nodes.environment, preexec_fn=heed_interrupts, **pipes)

    return start


def ended(process):
    """Exit code and messages of a command that ends by itself."""
    _, stderr = process.communicate(timeout=UNTIL)
    assert "Traceback" not in stderr
    return process.returncode, stderr


def test_the_second_driver_is_refused(drive, tmp_path):
    first, lock = drive(), tmp_path / "out" / LOCK
    until = time.monotonic() + UNTIL
    while not (lock.exists() and lock.read_text()):
        assert first.poll() is None
        assert time.monotonic() < until
        time.sleep(0.1)
    code, stderr = ended(drive("--resume"))
    assert code == 2
    assert f"The grid in out is being written by process {first.pid} on " in stderr
    assert stderr.count("dear: ") == 1
    first.send_signal(signal.SIGINT)
    code, stderr = ended(first)
    assert code == 130
    assert stderr.count("dear: stopped; ") == 1


def test_a_node_without_clusters_is_refused_with_both_versions(nodes, drive, tmp_path):
    package = tmp_path / "older" / "dear"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"__version__ = {OLDER!r}\n")
    nodes.start(environment={"PYTHONPATH": str(package.parent)})
    code, stderr = ended(drive())
    assert code == 2
    assert f"has dear {OLDER}, but this machine has {dear.__version__}: install the same version on both." in stderr
    assert not list((tmp_path / "out").glob(f"{CELLS}/*.json"))
