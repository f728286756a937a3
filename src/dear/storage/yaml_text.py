"""YAML of others as plain values: without aliases, by which a short text stands for a huge one, and of limited size."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import yaml

LARGEST_YAML = 1 << 18
"""Bytes of the largest text that is parsed; the parser takes about ten seconds per megabyte."""
MOST_BITS = 1024
"""Of a whole number; Python cannot print much larger ones."""


class PlainLoader(yaml.SafeLoader):
    """Safe loading that refuses aliases, notes repeated keys and reads 1e-3 as a number."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self.repeated: list[str] = []

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As usual; an alias is an error."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "an alias is not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """As usual; repeated keys are noted."""
        keys = Counter(str(self.construct_object(key, deep=True)) for key, _ in node.value)
        self.repeated += [key for key, count in keys.items() if count > 1]
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return found

    def construct_yaml_int(self, node: Any) -> int:
        """As usual; huge numbers are an error."""
        value = int(super().construct_yaml_int(node))
        if value.bit_length() > MOST_BITS:
            raise yaml.constructor.ConstructorError(None, None, "a number is far too large", node.start_mark)
        return value


PlainLoader.add_constructor("tag:yaml.org,2002:int", PlainLoader.construct_yaml_int)
PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


class YamlError(ValueError):
    """A text is not YAML, or not as plain as it has to be."""

    def __init__(self, line: int | None = None) -> None:
        super().__init__(line)
        self.line = line
        """Where; None if unknown."""


def parse_yaml(text: str | bytes) -> tuple[Any, list[str]]:
    """The content of a text, and the keys that occur twice in a mapping; anything else raises `YamlError`."""
    if len(text) > LARGEST_YAML:
        raise YamlError
    try:
        loader = PlainLoader(text)
        return loader.get_single_data(), loader.repeated
    except (yaml.YAMLError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise YamlError(mark.line + 1 if mark else None) from None
