"""Every third-party package that dear imports is declared in pyproject.toml, and its tested version is pinned."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src/dear"
DISTRIBUTIONS = {
    "PIL": "pillow",
    "faiss": "faiss-cpu",
    "open_clip": "open-clip-torch",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "yaml": "pyyaml",
}
"""Imports whose distribution has another name."""


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def third_party(code: str) -> set[str]:
    """Distributions that a file imports at any level, also inside functions."""
    imported = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported.add(node.module.split(".")[0])
    return {normalised(DISTRIBUTIONS.get(name, name)) for name in imported - sys.stdlib_module_names - {"dear"}}


def requirements() -> dict[str, set[str]]:
    """Normalised distributions of the project ("") and of each of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        name: {normalised(re.match(r"[\w.-]+", one).group()) for one in lines}  # type: ignore[union-attr]
        for name, lines in groups.items()
    }


IMPORTS = {path: third_party(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def test_every_import_is_declared():
    declared = set().union(*requirements().values())
    missing = {str(path.relative_to(ROOT)): names - declared for path, names in IMPORTS.items() if names - declared}
    assert not missing


def test_every_declared_package_is_imported():
    used = set().union(*IMPORTS.values())
    assert requirements()[""] - used == set()


def test_constraints_name_every_declared_package():
    lines = (ROOT / "constraints.txt").read_text().split()
    pinned = {normalised(line.split("==")[0]) for line in lines}
    assert requirements()[""] - pinned == set()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import scipy.stats", {"scipy"}),
        ("from PIL import Image", {"pillow"}),
        ("def f():\n    import yaml", {"pyyaml"}),
        ("import json\nfrom . import sibling\nfrom dear.errors import DearError", set()),
    ],
)
def test_imports_are_recognised(code: str, expected: set[str]):
    assert third_party(code) == expected
