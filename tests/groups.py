"""Tests that share something expensive run in one worker: their files say `pytestmark = pytest.mark.xdist_group(NAME)`.

pytest-xdist 3.8 does not see the mark under pytest 9.2 (pytest-dev/pytest-xdist#1386), so it is read from the files.
"""

import ast
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadGroupScheduling

ROOT = Path(__file__).resolve().parents[1]


def groups_in(node: ast.AST) -> list[str]:
    """The names in every `xdist_group(…)` of a piece of source."""
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    return [ast.literal_eval(one.args[0]) for one in calls if ast.unparse(one.func).endswith("mark.xdist_group")]


@cache
def group_of_file(file: str) -> str | None:
    """The group of a test file; a file belongs to one as a whole."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    marks = [one for one in tree.body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark"]
    return next((name for mark in marks for name in groups_in(mark)), None)


class GroupsOfFiles(LoadGroupScheduling):
    """As `--dist loadgroup`, with the groups that the files name."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of_file(nodeid.split("::")[0]) or super()._split_scope(nodeid)
