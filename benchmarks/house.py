"""Measure the shape of the source: loose modules, argument passing, words, sizes. Prints a table and writes JSON.

    python benchmarks/house.py [ROOT] [--json FILE]

ROOT is a checkout of this project, by default this one; a checkout of an earlier commit gives the numbers before.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOMS = "engine|evaluation|retrieval|reports|roles|methods|backbone|data"
WAY = """
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]) / "src"))
CALLS, DONE = {}, []
BODIES = re.compile(r"_?[A-Z]")
BELOW = re.compile(
    r"dear\\.(methods|model\\.model|model\\.class_cache|kept|predict|artefact|card)\\b"
    r"|dear\\.engine\\.(feed|loop|optim|gradients|ranks|checkpoint|store|states|drawn|feature_\\w+|outcome)\\b"
)
LEAVES = ("errors", "config", "storage", "files", "folders", "documents", "progress", "bars", "backbone", "roles",
          "world", "data", "user_cache")


def room_of(name):
    return (name + "..").split(".")[1] if name.startswith("dear.") else None


def watch(frame, event, argument):
    name, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
    if DONE or event != "call" or room_of(name) is None or function.startswith(("<", "__")):
        return
    if function == "frozen_parts":
        DONE.append(True)
    caller = room_of(frame.f_back.f_globals.get("__name__", "")) if frame.f_back else None
    if BODIES.match(function) or BELOW.match(name):
        return
    if caller not in LEAVES and room_of(name) not in LEAVES and not is_property(frame):
        CALLS.setdefault(f"{name}.{frame.f_code.co_qualname}", None)


def is_property(frame):
    owner = frame.f_locals.get("self")
    return isinstance(getattr(type(owner), frame.f_code.co_name, None), property) if owner is not None else False


from dear.cli import main

out = sys.argv[2]
sys.argv = ["dear", "train", "world-textures", "--out", out, "--shots", "1", "--half", "base", "--epochs", "1"]
sys.argv += ["--workers", "0", "--threads", "1"]
sys.setprofile(watch)
try:
    main()
except SystemExit:
    pass
sys.setprofile(None)
print("\\n".join(CALLS), file=sys.stderr)
print(len(CALLS))
"""
"""Counts the functions that are called between `dear train` and the first tensor operation of the training.

Counted are the functions that lead there: command line, options, workflow, job and run. Not counted are the packages
below (storage, progress, data, backbone, roles, world, methods), the loop itself, class bodies and properties.
"""


def sources(root: Path) -> list[Path]:
    return sorted((root / "src" / "dear").rglob("*.py"))


def count(root: Path, pattern: str) -> int:
    return sum(len(re.findall(pattern, path.read_text(encoding="utf-8"))) for path in sources(root))


def cli_imports(root: Path) -> int:
    """Imports of the lower rooms in cli/, outside `if TYPE_CHECKING`."""
    found = 0
    for path in (root / "src" / "dear" / "cli").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        typing = [
            node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ]
        hidden = {id(inner) for node in typing for inner in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and id(node) not in hidden:
                found += bool(re.match(rf"dear\.({ROOMS})\b", node.module or ""))
    return found


def train_sequences(root: Path) -> int:
    """Functions that both make a job and train it, or prepare a model and train it, one after the other."""
    found = 0
    for path in sources(root):
        text = path.read_text(encoding="utf-8")
        makes = len(re.findall(r"(?<!def )\bmake_job\(", text))
        runs = len(re.findall(r"(?<!def )\brun_job\(", text))
        found += makes if makes and (runs or "def _job(" in text or "def job(" in text) else 0
    return found


def way(root: Path, out: Path) -> int | None:
    """Calls between `dear train` and the first tensor operation, or None if it cannot be run here."""
    words = [sys.executable, "-c", WAY, str(root), str(out)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(root / "src")})
    sys.stderr.write(done.stderr if "-v" in sys.argv else "")
    numbers = [line for line in done.stdout.splitlines() if line.isdecimal()]
    return int(numbers[-1]) if numbers else None


def measure(root: Path) -> dict[str, int | float | None]:
    files = sources(root)
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    methods = root / "src" / "dear" / "methods"
    registry = (methods / "registry.py").read_text(encoding="utf-8")
    named = re.findall(r'"dear\.methods\.([\w.]+):', registry)
    sizes = [lines[methods / f"{name.replace('.', '/')}.py"] for name in named]
    return {
        "loose modules in src/dear": len(list((root / "src" / "dear").glob("*.py"))),
        "how: dict[str, Any] or **how": count(root, r"how: dict\[str, Any\]|\*\*how\b"),
        "copies of the train sequence": train_sequences(root),
        "imports of lower rooms in cli/": cli_imports(root),
        "'told' in source": count(root, r"\btold\b"),
        "source lines": sum(lines.values()),
        "source files": len(files),
        "median file": median(lines.values()),
        "largest file": max(lines.values()),
        "median method file": median(sizes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, nargs="?", default=Path(__file__).resolve().parents[1])
    parser.add_argument("--way", type=Path, metavar="FOLDER", help="Also count the calls of a training into FOLDER.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("-v", action="store_true", help="Also print the functions.")
    asked = parser.parse_args()
    found = measure(asked.root.resolve())
    if asked.way is not None:
        found["calls from 'dear train' to the first tensor operation"] = way(asked.root.resolve(), asked.way)
    for name, value in found.items():
        print(f"| {name} | {value:,} |" if value is not None else f"| {name} | – |")
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
