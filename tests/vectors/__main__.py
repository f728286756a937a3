"""`make vectors [FOLDER=DIR]`: compare every pair of a folder, one line per file; exit 1 if any is out of tolerance."""

import sys
from pathlib import Path

import torch

from helpers import largest
from vectors.compare import compare, read_pair
from vectors.readers import reader_of

OWN = Path(__file__).parent / "data"
KINDS = ("logits", "losses", "gradients", "step1", "step2")


def check(path: Path) -> tuple[bool, str]:
    """Whether a file agrees, and the line about it."""
    try:
        reader = reader_of(read_pair(path)[0])
        if reader is None:
            return False, f"{path.stem:24} FAILED: no method of this name is known"
        differences, unread = compare(path, reader)
    except Exception as error:  # noqa: BLE001 (one file must not hide the others)
        return False, f"{path.stem:24} FAILED: {type(error).__name__}: {error}"
    errors = {kind: [d.error for d in differences if d.kind == kind] for kind in KINDS}
    others = [d.error for d in differences if d.kind not in KINDS]
    worst = "  ".join(f"{kind} {largest(found):.1e}" if found else f"{kind} {'-':7}" for kind, found in errors.items())
    wrong = [d for d in differences if not d.fits]
    line = f"{path.stem:24} {worst}  other {largest(others):.1e}  {len(differences)} compared"
    if again := sum(d.in_double for d in differences):
        line += f", {again} in double precision"
    if unread:
        line += f", not compared: {', '.join(unread)}"
    if wrong:
        line += "  FAILED: " + ", ".join(f"{d.name} {d.error:.1e} > {d.tolerance:.0e}" for d in wrong[:6])
    return not wrong, line


def main() -> int:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1] else OWN
    paths = sorted(path for path in folder.glob("*.safetensors") if path.with_suffix(".json").exists())
    if not paths:
        print(f"{folder} holds no pairs NAME.json + NAME.safetensors.")
        return 1
    failed = 0
    for path in paths:
        fits, line = check(path)
        failed += not fits
        print(line, flush=True)
    print(f"{len(paths) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
