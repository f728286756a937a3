"""The methods by name. Register a class once; ask for it by the name it bears."""

from __future__ import annotations

from importlib import import_module
from typing import TypeVar

from dear.errors import ConfigError, did_you_mean
from dear.methods.base import Method

M = TypeVar("M", bound=type)
_METHODS: dict[str, type[Method]] = {}


def register(method: M) -> M:
    """Class decorator: make a method known by its `name`; a name can be taken only once."""
    name = getattr(method, "name", None)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"The method {method.__name__} needs a class attribute 'name' to be registered by.")
    taken = _METHODS.get(name)
    if taken is not None and taken is not method:
        raise ConfigError(f"The method name {name!r} is taken by {taken.__module__}: choose another name.")
    _METHODS[name] = method
    return method


def get_method(name: str) -> type[Method]:
    """The class registered under a name."""
    _import_own_methods()
    if name not in _METHODS:
        raise ConfigError(
            f"No method is called {name!r}.{did_you_mean(name, _METHODS)} Known: {', '.join(list_methods())}."
        )
    return _METHODS[name]


def list_methods() -> list[str]:
    """Names of all registered methods."""
    _import_own_methods()
    return sorted(_METHODS)


def _import_own_methods() -> None:
    for module in ("dear.methods.dear.method", "dear.methods.zero_shot"):
        import_module(module)
