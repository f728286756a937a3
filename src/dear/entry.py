"""Entry point of the `dear` command: prints a first line before heavy imports, and exits cleanly if stopped there."""

import os
import sys

QUIET = ("-h", "--help", "--version", "--install-completion", "--show-completion")


def main() -> None:
    """Load the command line and run it."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait leave the cores to other programs
    words = first_words(sys.argv[1:])
    if words and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        sys.stderr.write(f"{words} …\r")  # before anything heavy is imported; the next output covers it
        sys.stderr.flush()
    try:
        from dear.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("\ndear: stopped before anything was done.\n")
        sys.exit(130)
    run(words)


def first_words(arguments: list[str]) -> str:
    """The first line of a command; empty for help pages and completion."""
    completes = any(name.endswith("_COMPLETE") for name in os.environ)
    if not arguments or completes or any(word in QUIET for word in arguments):
        return ""
    clip = ""
    for before, word in zip(["", *arguments], arguments, strict=False):
        clip = word if before == "--clip" else word.removeprefix("--clip=") if word.startswith("--clip=") else clip
    return f"loading {clip.rpartition('/')[2]}".strip()
