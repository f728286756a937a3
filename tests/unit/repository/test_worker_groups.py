"""What shares an expensive fixture is sent to one worker, whatever pytest and pytest-xdist make of the mark."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from groups import ROOT, GroupsOfFiles, group_of_file, groups_in

FILES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))


def test_tests_of_a_group_stay_together():
    scope = object.__new__(GroupsOfFiles)._split_scope
    full_size = [file for file in FILES if "/full_size/" in file]
    assert {scope(f"{file}::test_one[a@b]") for file in full_size} == {"full_size"}
    alone = "tests/unit/repository/test_worker_groups.py::test_tests_of_a_group_stay_together"
    assert scope(alone) == alone


@pytest.mark.parametrize("file", [file for file in FILES if "mark.xdist_group(" in (ROOT / file).read_text()])
def test_groups_are_of_whole_files(file):
    """A mark on a single test would be overlooked."""
    if file != "tests/unit/repository/test_worker_groups.py":
        assert groups_in(ast.parse((ROOT / file).read_text())) == [group_of_file(file)]


def test_the_check_sees_a_mark_on_a_test():
    source = "@pytest.mark.xdist_group('late')\ndef test_one(): ...\n"
    assert groups_in(ast.parse(source)) == ["late"]
    assert group_of_file(Path(__file__).relative_to(ROOT).as_posix()) is None


def test_a_worker_that_dies_ends_the_run(tmp_path):
    """pytest-xdist would wait for ever for what it takes up again (pytest-dev/pytest-xdist#1327)."""
    (tmp_path / "test_dies.py").write_text(
        "import os\n\n\ndef test_dies():\n    os._exit(3)\n\n\ndef test_later(): ...\n"
    )
    (tmp_path / "test_lives.py").write_text("def test_lives(): ...\n\n\ndef test_lives_too(): ...\n")
    told = re.search(r"^PYTEST := \$\(BIN\)/python (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    ended = subprocess.run(
        [sys.executable, *told[1].split()], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 1
    assert "crashed while running 'test_dies.py::test_dies'" in ended.stdout
