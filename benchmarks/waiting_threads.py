"""Wall time of `dear quickstart` for ways in which OpenMP's threads wait, alone and beside two busy programs.

The default is `GOMP_SPINCOUNT=10000` on Linux. Settings take turns, so that a slow minute of the machine meets all of
them.

    python benchmarks/waiting_threads.py --repeats 3 --json results/waiting-threads.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from dear.storage.markdown import table

DEAR = (sys.executable, "-c", "from dear.entry import main; main()")
BUSY = (sys.executable, "-c", "while True: pass")
SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "sleep": {"OMP_WAIT_POLICY": "PASSIVE"},
    "spin": {"OMP_WAIT_POLICY": "ACTIVE"},
}


def quickstart(setting: dict[str, str], others: int) -> float:
    """Seconds of one quickstart beside `others` programs that compute all the time."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    busy = [subprocess.Popen(BUSY) for _ in range(others)]
    try:
        time.sleep(1)
        with tempfile.TemporaryDirectory() as place:
            began = time.perf_counter()
            words = (*DEAR, "quickstart", "--out", str(Path(place) / "run"))
            subprocess.run(words, env={**inherited, **setting}, check=True, capture_output=True)
            return time.perf_counter() - began
    finally:
        for one in busy:
            one.kill()
            one.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = options.settings.split(",")
    places = {"alone": 0, "beside two programs": 2}
    seconds: dict[str, dict[str, list[float]]] = {place: {name: [] for name in names} for place in places}
    for _ in range(options.repeats):
        for place, others in places.items():
            for name in names:
                seconds[place][name].append(round(quickstart(SETTINGS[name], others), 2))
                print(place, name, seconds[place][name][-1], flush=True)
    middle = {place: {name: median(times) for name, times in row.items()} for place, row in seconds.items()}
    best = {place: min(row.values()) for place, row in middle.items()}
    rows = [
        (name, *(f"{middle[place][name]:.1f} s, {middle[place][name] / best[place]:.2f}" for place in places))
        for name in names
    ]
    print(table(("waiting threads", *(f"{place}, ÷ best" for place in places)), rows))
    if options.json:
        options.json.write_text(json.dumps({"cores": os.cpu_count(), "seconds": seconds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
