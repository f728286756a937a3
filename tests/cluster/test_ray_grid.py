"""Grids on Ray: two nodes on loopback, one of which is killed in the middle. Run by `make ray`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dear
from dear.evaluation.attempts import ATTEMPTS
from dear.evaluation.cell_run import CELLS, RUNS
from helpers import heed_interrupts, make_photos
from needs import needs, needs_posix
from ray_nodes import ray_nodes

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]

SOURCE = Path(dear.__file__).parents[1]
WORLD = "few-shot --data world-blooms --methods clip_adapter,coop --shots 1 --seeds 1,2,3,4,5,6 --epochs 1 --threads 1"
UNTIL = 900
"""Seconds to wait for something that must happen."""


@pytest.fixture(scope="module")
def nodes():
    needs("ray")
    needs_posix()
    with ray_nodes(SOURCE) as nodes:
        yield nodes


@pytest.fixture
def grid(nodes, tmp_path, tiny_folders):
    """Starts `dear bench` on these nodes or elsewhere, in the folder of the test."""
    make_photos(tmp_path / "photos", ["ant", "bee", "cow", "dog"], 4)

    def start(*words, small=True):
        tiny = f"few-shot --data photos --clip local-dir:{tiny_folders['shallow']} --pretrained random --shots 2 "
        tiny += "--epochs 20 --batch-size 2 --methods coop --threads 1 --workers 1"
        line = [sys.executable, "-m", "dear", "bench", *(tiny if small else WORLD).split(), *map(str, words)]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(line, cwd=tmp_path, env=nodes.environment, preexec_fn=heed_interrupts, **pipes)

    return start


def ended(process):
    """Exit code and messages of a command that ends by itself."""
    _, stderr = process.communicate(timeout=UNTIL)
    return process.returncode, stderr


def wait_for(condition):
    until = time.monotonic() + UNTIL
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return found


def cells_on(nodes, session=None):
    """Processes that run a cell now; Ray shows the name of a task as the name of its process."""
    names = {pid: Path(f"/proc/{pid}/cmdline") for pid in nodes.processes(session)}
    return [pid for pid, file in names.items() if file.exists() and b"shots-seed" in file.read_bytes()]


def adapters(out):
    found = {path.stem: json.loads(path.read_text()) for path in (out / CELLS).glob("*.json")}
    return {name: cell["adapter_sha256"] for name, cell in found.items()}


def test_gpus_that_no_node_has_are_refused(nodes, grid, tmp_path):
    code, stderr = ended(grid("--on", f"ray:{nodes.address}", "--gpus", "0.25", "--out", "out"))
    assert code == 2
    assert "--gpus 0.25 asks for a GPU, but the cluster has none: leave it out" in stderr
    assert "Traceback" not in stderr
    assert not (tmp_path / "out").exists()


def test_our_errors_are_not_tried_again(nodes, grid, tmp_path):
    for path in (tmp_path / "photos").rglob("*.png"):
        path.write_bytes(b"")
    code, stderr = ended(grid("--on", f"ray:{nodes.address}", "--seeds", "1", "--out", "out"))
    assert code == 2
    assert "None of the 8 training images could be read" in stderr
    assert "Traceback" not in stderr
    assert len(list((tmp_path / "out" / RUNS / ATTEMPTS).iterdir())) == 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_grid_is_resumed(nodes, grid, tmp_path, how):
    """Ctrl-C ends the cells; a dead driver loses nothing. Here the rest is run without Ray, from the checkpoints."""
    driver = grid("--on", f"ray:{nodes.address}", "--seeds", "1,2,3,4", "--out", "out")
    wait_for(lambda: cells_on(nodes))
    driver.send_signal(how)
    code, stderr = ended(driver)
    if how == signal.SIGINT:
        assert code == 130
        assert "dear: stopped; " in stderr
        assert "Traceback" not in stderr
    wait_for(lambda: not cells_on(nodes))
    assert len(adapters(tmp_path / "out")) < 4
    assert ended(grid("--resume", "--seeds", "1,2,3,4", "--out", "out"))[0] == 0
    assert ended(grid("--seeds", "1,2,3,4", "--out", "whole"))[0] == 0
    assert len(adapters(tmp_path / "whole")) == 4
    assert adapters(tmp_path / "out") == adapters(tmp_path / "whole")


def test_a_node_is_killed_in_the_middle(nodes, grid, tmp_path):
    """All cells of the world are done, with the bytes of two local processes, and nothing is left running."""
    other = nodes.started[1]
    driver = grid("--on", f"ray:{nodes.address}", "--out", "out", small=False)
    wait_for(lambda: len(adapters(tmp_path / "out")) >= 3 and cells_on(nodes, other.pid))
    nodes.kill(other)
    assert len(adapters(tmp_path / "out")) < 12
    code, stderr = ended(driver)
    assert code == 0, stderr
    assert ended(grid("--jobs", "2", "--out", "local", small=False))[0] == 0
    assert len(adapters(tmp_path / "out")) == 12
    assert adapters(tmp_path / "out") == adapters(tmp_path / "local")
    tables = [(tmp_path / name / "table.md").read_text() for name in ("out", "local")]
    assert tables[0] == tables[1]
    assert not (tmp_path / "out" / RUNS / ATTEMPTS).exists()
    assert not nodes.processes(other.pid)
    wait_for(lambda: not cells_on(nodes))


def test_a_node_with_another_version_is_refused(nodes, grid, tmp_path):
    package = tmp_path / "src" / "dear"
    package.mkdir(parents=True)
    for path in (SOURCE / "dear").iterdir():
        (package / path.name).symlink_to(path)
    (package / "__init__.py").unlink()
    text = (SOURCE / "dear" / "__init__.py").read_text()
    (package / "__init__.py").write_text(text.replace(dear.__version__, "0.0.1"))
    nodes.start(environment={"PYTHONPATH": str(package.parent)})
    code, stderr = ended(grid("--on", f"ray:{nodes.address}", "--seeds", "1", "--out", "out"))
    assert code == 2
    assert f"has dear 0.0.1, but this machine has {dear.__version__}: install the same version on both." in stderr
    assert not adapters(tmp_path / "out")


def test_nothing_is_orphaned(nodes):
    assert nodes.processes()
    nodes.end()
    assert not nodes.processes()
    assert os.getpid() not in nodes.processes()
