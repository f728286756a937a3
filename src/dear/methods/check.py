"""Checks that a class is a complete method before anything runs with it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from dear.config import Settings
from dear.errors import DearError
from dear.methods.about import About
from dear.methods.base import PURPOSES, Method, Needs
from dear.methods.recipe import Recipe

VALUES: dict[str, tuple[Any, str]] = {
    "recipe": (Recipe, "a Recipe"),
    "needs": (Needs, "a Needs"),
    "needs_of_clip": (frozenset, "a frozenset of Can"),
    "about": (About | None, "an About or None"),
    "sized_by_data": (tuple, "a tuple of names"),
    "special": (tuple, "a tuple of Special"),
    "log_probabilities": (bool, "True or False"),
}
"""The type of each class attribute, and its description for messages."""


def functions() -> dict[str, inspect.Signature]:
    """The functions of `Method` that a subclass may override, with their signatures."""
    found = {}
    for name in vars(Method):
        one = inspect.getattr_static(Method, name)
        one = getattr(one, "__func__", one)  # of a class or static method
        if inspect.isfunction(one) and name != "overrides" and (name == "__init__" or not name.startswith("_")):
            found[name] = inspect.signature(one)
    return found


def misfits(method: type) -> list[str]:
    """Everything that is missing or wrong in a class, each as a short sentence without a full stop."""
    if not issubclass(method, Method):
        members = ("name", "Config", *VALUES, "readouts", *functions())
        lacking = [name for name in members if not hasattr(method, name)]
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
        return ["'Config' is not a subclass of dear.methods.api.Settings"]
    try:
        config()
    except DearError as error:
        return [f"'Config' has settings without a default ({error})"]
    return []


def _wrong_functions(method: type) -> list[str]:
    return [
        f"'{name}' cannot be called as {name}{_shown(signature)}"
        for name, signature in functions().items()
        if not _accepts(inspect.getattr_static(method, name, None), signature)
    ]


def _accepts(function: Any, wanted: inspect.Signature) -> bool:
    """Whether a function can be called with the arguments of a signature."""
    one, parameters = getattr(function, "__func__", function), wanted.parameters.values()
    named = {each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}
    try:
        inspect.signature(one).bind(*[None] * (len(parameters) - len(named)), **dict.fromkeys(named))
    except (TypeError, ValueError):
        return False
    return True


def _shown(signature: inspect.Signature) -> str:
    """A signature without types."""
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
