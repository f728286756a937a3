"""A new thread computes with the number of threads that torch was set to; threads that load or export take turns."""

import ctypes
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import torch

import dear
from dear.backbone.precision import computing
from dear.model.onnx_file import _quiet


def test_set_num_threads_holds_in_new_threads():
    """OpenMP's own count stayed at all cores until a thread asked torch for its number of threads."""
    openmp = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("lib*omp[-.]*"))))

    def counts():
        openmp.omp_set_num_threads(7)  # what a new thread has on a machine of seven cores
        before = openmp.omp_get_max_threads()
        with computing(torch.device("cpu")):
            return before, openmp.omp_get_max_threads()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(counts).result() == (7, torch.get_num_threads())


def test_threads_that_load_do_not_disturb_each_other(tiny_folders):
    """Random numbers and logging are of the whole process: weights were mixed, and logging stayed off."""
    name = f"local-dir:{tiny_folders['shallow']}"
    expected = [dear.load_clip(name, "random", seed=seed).weights_sha256 for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            loaded = pool.map(lambda seed: dear.load_clip(name, "random", seed=seed), range(4))
            assert [one.weights_sha256 for one in loaded] == expected
    assert not logging.root.manager.disable


def test_threads_that_export_give_the_standard_output_back():
    before, entered, left = sys.stdout, Event(), Event()

    def export():
        with _quiet():
            entered.set()
            left.wait()

    with ThreadPoolExecutor(1) as pool:
        with _quiet():
            other = pool.submit(export)
            entered.wait(0.2)
        left.set()
        other.result()
    assert sys.stdout is before
    assert not logging.root.manager.disable
