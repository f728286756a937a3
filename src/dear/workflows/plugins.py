"""Add methods and data sets of others, as the options --import and --catalog do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dear.data.catalog import add_catalog
from dear.methods.plugins import import_methods


def add_plugins(files: Sequence[str | Path] = (), catalogs: Sequence[str | Path] = ()) -> None:
    """Execute Python files with methods, and read catalogues of data sets."""
    for file in files:
        import_methods(file)
    for catalog in catalogs:
        add_catalog(catalog)
