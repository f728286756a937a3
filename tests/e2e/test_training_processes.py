"""`dear train` as real processes: killed and resumed, and two of them under torchrun."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

import dear
from dear.cli import main
from dear.engine.run_folder import METRICS
from toys import Toy, adapter_hash, log_lines

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Class folders with one damaged image."""
    toy, root = Toy(), tmp_path_factory.mktemp("photos")
    for item in toy.dataset.train:
        folder = root / toy.dataset.class_names[item.label]
        folder.mkdir(exist_ok=True)
        toy.open(item.id).save(folder / f"{item.id[-1]}.png")
    (root / "blue thing" / "1.png").write_bytes(b"damaged")
    return root


@pytest.fixture
def words(photos, tiny_folders):
    def words(out, **options):
        fixed = ["train", photos, "--clip", f"local-dir:{tiny_folders['plain']}", "--pretrained", "random"]
        fixed += ["--set", "mask=all_mixed", "--shots", 3, "--batch-size", 4, "--device", "cpu", "--out", out]
        return [str(word) for word in (*fixed, *(w for name, value in options.items() for w in (f"--{name}", value)))]

    return words


def here(monkeypatch, words):
    monkeypatch.setattr(sys, "argv", ["dear", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code


def test_killed_and_resumed(words, tmp_path, monkeypatch):
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    here(monkeypatch, words(undisturbed, epochs=60))
    process = subprocess.Popen([sys.executable, "-m", "dear", *words(killed, epochs=60)], env=ENVIRONMENT)
    while process.poll() is None and not ((killed / METRICS).exists() and len(log_lines(killed)) > 10):
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "adapter_model.safetensors").exists()
    here(monkeypatch, [*words(killed, epochs=60), "--resume"])
    assert adapter_hash(killed) == adapter_hash(undisturbed)
    assert [json.loads(line)["step"] for line in log_lines(killed)] == list(range(1, 181))


def test_two_processes_are_one_training(words, tmp_path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    here(monkeypatch, words(one, epochs=3))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "dear"]
    subprocess.run([*torchrun, *words(two, epochs=3)], check=True, env=ENVIRONMENT, capture_output=True)
    assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()}
    alone, together = (load_file(folder / "adapter_model.safetensors") for folder in (one, two))
    for name, tensor in alone.items():
        assert float((tensor - together[name]).abs().max()) < 1e-6
    logs = [[json.loads(line) for line in log_lines(folder)] for folder in (one, two)]
    assert len(logs[0]) == len(logs[1]) == 9
    for first, second in zip(*logs, strict=True):
        assert first["total"] == pytest.approx(second["total"], rel=1e-5)
        for fact in ("step", "skipped", "problems", "lr"):
            assert first[fact] == second[fact]
    assert logs[0][-1]["skipped"] == 3
    assert dear.load(two).classes.names == ("blue thing", "green thing", "red thing")
