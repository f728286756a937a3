"""What a test cannot do without: if it is missing, the test fails in CI and is skipped with a reason elsewhere."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest


def needs(*names: str) -> str:
    """Where the first of these is that this machine has: a package, a program on the PATH, or a file by its path."""
    for name in names:
        if place := _find(name):
            return place
    raise _missing(f"This test needs {' or '.join(names)}: run 'make install browser'.")


def needs_posix() -> None:
    """For tests that send signals."""
    if os.name != "posix":
        raise _missing("This test needs a POSIX system, as it sends signals.")


def _find(name: str) -> str | None:
    if "/" in name:
        return name if Path(name).exists() else None
    if program := shutil.which(name):
        return program
    found = find_spec(name) if name.isidentifier() else None
    return str(found.origin) if found else None


def _missing(sentence: str) -> BaseException:
    if os.environ.get("CI"):
        return pytest.fail.Exception(sentence, pytrace=False)
    return pytest.skip.Exception(sentence)
