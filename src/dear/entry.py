"""The `dear` command's door: stopping it is one line even while it is still being loaded."""

import sys


def main() -> None:
    """Load the command line and run it."""
    try:
        from dear.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("\ndear: stopped before anything was done.\n")
        sys.exit(130)
    run()
