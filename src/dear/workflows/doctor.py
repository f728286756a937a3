"""What a bug report needs, and what one looks at first when something is slow or missing."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from dear import __version__
from dear.backbone.download import check_cached_weights
from dear.backbone.hub import without_password
from dear.storage.user_cache import cache_home, list_cache, readable

PACKAGES = ("torch", "torchvision", "open_clip_torch", "safetensors", "huggingface_hub", "pydantic", "pillow", "numpy")
EXTRAS = {
    "roles": ("sentence_transformers", "umap", "hdbscan"),
    "hf": ("transformers",),
    "heic": ("pillow_heif",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "data": ("pyarrow",),
    "search": ("faiss",),
    "ray": ("ray",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "app": ("gradio",),
}
"""What each extra brings, by the names that are imported."""
VARIABLES = (
    *("DEAR_CACHE", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"),
    *("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "CUDA_VISIBLE_DEVICES"),
)
NEVER_RUN = ("cuda", "mps", "windows")
"""What this version was never run on by its authors: it should work, and nobody has seen it."""


def doctor() -> dict[str, Any]:
    """Versions, device, threads, memory, caches and extras as plain values, and whether downloaded weights are intact.

    Of all files, only damaged weights are named.
    """
    weights = check_cached_weights()
    damaged = [_home(str(path)) for path, intact in weights.items() if not intact]
    return {
        "dear": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "extras": {name: all(map(_is_there, needed)) for name, needed in EXTRAS.items()},
        "device": _device(),
        "threads": _threads(),
        "memory": _memory(),
        "caches": _caches(checked=len(weights), damaged=damaged),
        "environment": {name: without_password(_home(os.environ[name])) for name in VARIABLES if name in os.environ},
        "remarks": [*_remarks(), *map(_damage, damaged)],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _is_there(module: str) -> bool:
    with suppress(ImportError, ValueError):
        return find_spec(module) is not None
    return False


def _device() -> dict[str, Any]:
    import torch

    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    mps = torch.backends.mps.is_available()
    chosen = "cuda" if torch.cuda.is_available() else "cpu"
    return {"chosen": chosen, "cuda": names, "cuda_version": torch.version.cuda, "mps": mps}


def _threads() -> dict[str, Any]:
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    return {"torch": torch.get_num_threads(), "cores": os.cpu_count(), "usable": usable, "load": load}


def _memory() -> dict[str, Any]:
    """Bytes of the machine, and those that are free; None where the system does not say."""
    found: dict[str, Any] = {"total": None, "available": None}
    with suppress(OSError, ValueError, AttributeError):
        found["total"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        entry = next((line for line in lines if line.startswith("MemAvailable:")), "")
        found["available"] = 1024 * int(entry.split()[1])
    return found


def _caches(*, checked: int, damaged: list[str]) -> dict[str, Any]:
    home, hub = cache_home(), Path(constants.HF_HUB_CACHE)
    models = len(list(hub.glob("models--*"))) if hub.is_dir() else 0
    return {
        "dear": {"folder": _home(str(home)), "bytes": sum(one.bytes for one in list_cache())},
        "weights": {"folder": _home(str(hub)), "models": models, "checked": checked, "damaged": damaged},
    }


def _damage(path: str) -> str:
    return f"{path} is damaged: delete it, and the next command that needs it downloads it again."


def _home(path: str) -> str:
    """A path without the user's name, as a bug report is public."""
    with suppress(RuntimeError):
        home = str(Path.home())
        return path.replace(home, "~", 1) if len(home) > 1 and path.startswith(home) else path
    return path


def _remarks() -> list[str]:
    """What is worth a look."""
    device, threads, memory = _device(), _threads(), _memory()
    found = []
    if device["chosen"] == "cpu" and device["mps"]:
        found.append("There is an Apple GPU: --device mps uses it. Nobody of us has run it.")
    if threads["load"] and threads["usable"] and threads["load"] > 1.5 * threads["usable"]:
        found.append(
            f"Other programs are busy (load {threads['load']} on {threads['usable']} cores): it will be slower."
        )
    if memory["available"] is not None and memory["available"] < 3e9:
        found.append(f"Only {readable(memory['available'])} of memory are free; ViT-B/16 needs about 3 GB to train.")
    if device["chosen"] in NEVER_RUN or sys.platform == "win32":
        what = "Windows" if sys.platform == "win32" else device["chosen"].upper()
        found.append(f"This version was never run on {what} by its authors: please report what fails.")
    return found
