"""A new thread computes with the number of threads that torch was set to."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from dear.backbone.precision import computing


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
