"""Write an index to a file that other programs read."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dear.errors import ConfigError
from dear.options.commands import ExportIndex
from dear.options.reading import check_values
from dear.retrieval.export import write_parquet
from dear.workflows.search import opened


def export_index(index: str | Path, out: str | Path, *, to: Literal["parquet"] = "parquet") -> int:
    """Write the paths and features of an index to a Parquet file, for a vector database; returns the number of images.

    Args:
        index: folder of an index, or of a run that has one.
        out: file to write, which must not exist.
        to: format; only "parquet".
    """
    check_values(ExportIndex, to=to, out=out)
    path = Path(out)
    if path.suffix.lower() != ".parquet":
        raise ConfigError(f"The file is {out}: give a name that ends in .parquet.")
    return write_parquet(opened(index)[0], path)
