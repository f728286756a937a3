"""What a machine lacks is a failure in CI and a skipped test elsewhere, and no test skips in another way."""

import ast
import sys
from pathlib import Path

import pytest

from needs import needs

TESTS = Path(__file__).resolve().parents[2]
MAY_SKIP = {"needs.py", "conftest.py", "test_devices.py"}
"""`conftest.py` for the development data, which a new machine does not have; `test_devices.py` for others' machines."""


def test_what_is_there_is_named():
    assert needs("pytest").endswith(("pytest", "pytest.exe", "__init__.py"))
    assert needs("no_such_thing", "torch").endswith("__init__.py")
    assert needs(sys.executable) == sys.executable


@pytest.mark.parametrize("name", ["no_such_thing", "no-such-thing", "/no/such/thing"])
def test_what_is_missing(monkeypatch, name):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=name):
        needs(name)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=f"This test needs {name}"):
        needs(name)


def skips(source: str) -> list[str]:
    """Every way of pytest to skip that a file uses."""
    names = (ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
    ways = ("pytest.skip", "pytest.mark.skip", "pytest.mark.skipif", "pytest.importorskip")
    return [name for name in names if name in ways]


def test_no_test_skips_in_another_way():
    assert skips("pytest.importorskip('x')\n@pytest.mark.skipif(True, reason='')\ndef f(): pytest.skip('')") != []
    found = {path.name for path in TESTS.rglob("*.py") if path != Path(__file__) and skips(path.read_text())}
    assert found <= MAY_SKIP
