"""Whether a class is a method: everything that is missing or wrong is found before anything is run with it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from dear.config import Settings
from dear.errors import DearError
from dear.methods.about import About
from dear.methods.base import PURPOSES, Method, Needs
from dear.methods.recipe import Recipe

CALLS: dict[str, tuple[int, tuple[str, ...]]] = {
    "__init__": (2, ("seed", "files", "companions")),
    "classes": (2, ()),
    "text": (3, ()),
    "forward": (4, ()),
    "loss": (2, ()),
    "begin": (2, ()),
    "finish": (3, ()),
    "combine": (1, ()),
    "after_step": (1, ()),
    "check_drawn": (0, ()),
    "facts": (0, ()),
    "encode_text": (2, ()),
}
"""With how many arguments in order, and with which by name, each function is called."""
VALUES: dict[str, tuple[Any, str]] = {
    "recipe": (Recipe, "a dear.Recipe"),
    "needs": (Needs, "a dear.Needs"),
    "about": (About | None, "an About or None"),
    "drawn": (tuple, "a tuple of names"),
    "untold": (tuple, "a tuple of names"),
    "special": (tuple, "a tuple of Special"),
}
"""What each class attribute must be."""
SIGNATURES = {
    "__init__": "(self, clip, config, *, seed, files, companions)",
    "classes": "(self, clip, classes)",
    "text": "(self, clip, frozen, batch=None)",
    "forward": "(self, clip, image, text, batch=None)",
    "loss": "(self, out, batch)",
    "begin": "(self, clip, draw)",
    "finish": "(self, clip, draw, held)",
    "combine": "(self, grads)",
    "after_step": "(self, out)",
    "check_drawn": "(self)",
    "facts": "(self)",
    "encode_text": "(self, clip, texts)",
}


def misfits(method: type) -> list[str]:
    """Everything that keeps a class from being a method, each as a short sentence without its full stop."""
    if not issubclass(method, Method):
        lacking = [name for name in ("name", "Config", *VALUES, "readouts", *CALLS) if not hasattr(method, name)]
        return ["it is not a subclass of dear.Method", *([f"it lacks {', '.join(lacking)}"] if lacking else [])]
    return _wrong_values(method) + _wrong_functions(method)


def _wrong_values(method: type) -> list[str]:
    name = getattr(method, "name", None)
    found = []
    if not isinstance(name, str) or not name.strip():
        found.append("the class attribute 'name', the name to type, is missing")
    found += _wrong_config(getattr(method, "Config", None))
    for attribute, (kind, what) in VALUES.items():
        if not isinstance(getattr(method, attribute), kind | property):
            found.append(f"'{attribute}' is not {what}")
    readouts = getattr(method, "readouts", None)
    if not isinstance(readouts, Mapping) or "default" not in readouts or set(readouts) - set(PURPOSES):
        found.append(f"'readouts' does not map 'default' (and perhaps {', '.join(PURPOSES[1:])}) to names in Output")
    return found


def _wrong_config(config: object) -> list[str]:
    if not (isinstance(config, type) and issubclass(config, Settings)):
        return ["'Config' is not a subclass of dear.config.Settings"]
    try:
        config()
    except DearError as error:
        return [f"'Config' has settings without a default ({error})"]
    return []


def _wrong_functions(method: type) -> list[str]:
    found = []
    for name, (count, keywords) in CALLS.items():
        function = inspect.getattr_static(method, name, None)
        if not callable(function) or not _takes(function, count, keywords):
            found.append(f"'{name}' cannot be called as {name}{SIGNATURES[name]}")
    return found


def _takes(function: Any, count: int, keywords: tuple[str, ...]) -> bool:
    try:
        inspect.signature(function).bind(*[None] * (count + 1), **dict.fromkeys(keywords))
    except (TypeError, ValueError):
        return False
    return True
