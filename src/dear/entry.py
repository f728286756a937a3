"""Entry point of the `dear` command: prints a first line before heavy imports, and exits cleanly if stopped there."""

import io
import os
import sys

QUIET = ("-h", "--help", "--version", "--install-completion", "--show-completion")


def main() -> None:
    """Load the command line and run it; Ctrl-C is at most one line at every moment."""
    try:
        words = begin()
        from dear.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("\ndear: stopped before anything was done.\n")
        sys.exit(130)
    try:
        run(words)
    except KeyboardInterrupt:  # once more, while the command was ending
        sys.exit(130)
    finally:
        end_at_once_if_interrupted()


def begin() -> str:
    """Prepare the process; the first line of the command, which is shown before anything heavy is imported."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ.update(waiting(sys.platform))
    open_streams()
    check_place()
    words = first_words(sys.argv[1:])
    if words and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        sys.stderr.write(f"{words} …\r")  # the next output covers it
        sys.stderr.flush()
    return words


def end_at_once_if_interrupted() -> None:
    """Let Ctrl-C end the process without a word from here on: Python would print tracebacks while it shuts down."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def waiting(platform: str) -> dict[str, str]:
    """How OpenMP's threads wait: on Linux a moment with their core (GNU's library), elsewhere without one."""
    return {"GOMP_SPINCOUNT": "10000"} if platform == "linux" else {"OMP_WAIT_POLICY": "PASSIVE"}


def open_streams() -> None:
    """Open what the caller has closed, so that no file of ours gets its number; print whatever the locale allows."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="replace", closefd=False))  # noqa: SIM115
        elif mode == "w" and isinstance(getattr(sys, name), io.TextIOWrapper):
            getattr(sys, name).reconfigure(errors="backslashreplace")  # names of files need not fit the locale


def check_place() -> None:
    """Refuse a working folder that was deleted: libraries would end the process with messages of their own."""
    try:
        os.getcwd()  # noqa: PTH109
    except OSError:
        sys.stderr.write("dear: the working folder does not exist any more: change to another one.\n")
        sys.exit(2)


def first_words(arguments: list[str]) -> str:
    """The first line of a command; empty for help pages and completion."""
    completes = any(name.endswith("_COMPLETE") for name in os.environ)
    if not arguments or completes or any(word in QUIET for word in arguments):
        return ""
    clip = ""
    for before, word in zip(["", *arguments], arguments, strict=False):
        clip = word if before == "--clip" else word.removeprefix("--clip=") if word.startswith("--clip=") else clip
    return f"loading {clip.rpartition('/')[2]}".strip()
