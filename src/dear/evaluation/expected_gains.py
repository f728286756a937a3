"""What each method gained over plain CLIP in our own tables: what `--method auto` knows before it sees a photo."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.resources import files

from dear.evaluation.choice import Expected


@cache
def all_expected() -> Expected:
    """The gains of all methods as `benchmarks/expected_gains.py` wrote them."""
    return Expected.model_validate_json(files(__package__).joinpath("expected_gains.json").read_text(encoding="utf-8"))


def expected_gains(methods: Collection[str]) -> Expected:
    """The gains of some methods."""
    found = all_expected()
    return found.model_copy(update={"gains": {name: one for name, one in found.gains.items() if name in methods}})
