"""Every finding of tests/findings.py is named by a test: `@pytest.mark.covers("W4")` or `pytestmark = …covers(…)`."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from findings import FINDINGS

TESTS = Path(__file__).resolve().parents[2]


def ids_in(expression: ast.AST) -> Iterator[str]:
    """The ids of every `covers(…)` in an expression."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "covers":
            yield from (ast.literal_eval(one) for one in node.args)


def covered(source: str) -> set[str]:
    """The ids that a file's tests name; a mark on a helper, which pytest never runs, counts for nothing."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.startswith(("test", "Test")):
            found.update(one for decorator in node.decorator_list for one in ids_in(decorator))
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            found.update(ids_in(node.value))
    return found


def check(findings: Iterable[str], sources: list[str]) -> None:
    """Raise for an id that no test names, and for one that the table does not have."""
    found = {one for source in sources for one in covered(source)}
    assert not (missing := [one for one in findings if one not in found]), f"no test covers {', '.join(missing)}"
    assert not (unknown := sorted(found - set(findings))), f"not in tests/findings.py: {', '.join(unknown)}"


def test_every_finding_is_covered_by_a_test():
    check(FINDINGS, [path.read_text(encoding="utf-8") for path in sorted(TESTS.rglob("test_*.py"))])


SOURCE = """
pytestmark = [pytest.mark.slow, pytest.mark.covers("S1")]

@pytest.mark.covers("W4", "W5")
def test_one(): ...

class TestMore:
    @covers("C7")
    def test_two(self): ...

@pytest.mark.covers("nobody runs this")
def helper(): ...
"""


def test_every_finding_says_what_was_wrong():
    assert all(len(text) > 30 and text.endswith(".") for text in FINDINGS.values())


def test_the_check_can_pass_and_fail():
    assert covered(SOURCE) == {"S1", "W4", "W5", "C7"}
    check(("C7", "S1", "W4", "W5"), [SOURCE])
    with pytest.raises(AssertionError, match="no test covers W6"):
        check(("C7", "S1", "W4", "W5", "W6"), [SOURCE])
    with pytest.raises(AssertionError, match=r"not in tests/findings\.py: W5"):
        check(("C7", "S1", "W4"), [SOURCE])
