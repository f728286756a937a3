"""List methods and their settings."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from dear.methods.about import About
from dear.methods.base import Method
from dear.methods.recipe import Recipe
from dear.methods.registry import get_method, list_methods

UNKNOWN = "-"
__all__ = ["MethodEntry", "SettingEntry", "describe_method", "list_settings", "method_table"]


class MethodEntry(NamedTuple):
    """A method in a table of all."""

    name: str
    year: str
    trains: str
    touches: str
    needs: str


class SettingEntry(NamedTuple):
    """A setting of a method."""

    name: str
    default: Any
    meaning: str

    @property
    def shown(self) -> str:
        """The default as it is typed; '-' for none."""
        if self.default is None:
            return UNKNOWN
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)


def method_table() -> list[MethodEntry]:
    """What every method trains, touches and needs."""
    rows = []
    for name in list_methods():
        about = get_method(name).about
        if about is None:
            rows.append(MethodEntry(name, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN))
        else:
            rows.append(MethodEntry(name, str(about.year), _trained(about), about.touches, about.needs))
    return rows


def describe_method(name: str) -> list[tuple[str, str]]:
    """Describe a method: what it trains, touches and needs, its citation and recipe, as pairs of a word and a text.

    Args:
        name: name of a method, see `dear.list_methods`.
    """
    method = get_method(name)
    about, doc = method.about, (method.__doc__ or "").strip().splitlines()
    rows = [("method", method.name), ("what", doc[0] if doc else "")]
    if about is not None:
        rows += [
            ("trains on ViT-B/16", _trained(about)),
            ("touches", about.touches),
            ("needs", about.needs),
            ("year", str(about.year)),
            ("cite", about.citation),
            *([("published code", f"{about.code}, licence: {about.licence}")] if about.code else []),
        ]
    return [*rows, ("own recipe", _recipe(method.recipe)), ("readouts", _readouts(method))]


def list_settings(method: str) -> list[SettingEntry]:
    """List the settings of a method: name, default and meaning.

    Args:
        method: name of a method, see `dear.list_methods`.
    """
    fields: dict[str, FieldInfo] = get_method(method).Config.model_fields
    return [
        SettingEntry(name, one.get_default(call_default_factory=True), " ".join((one.description or "").split()))
        for name, one in fields.items()
    ]


def _trained(about: About) -> str:
    return about.trained if about.parameters is None else f"{about.parameters:,}"


def _readouts(method: type[Method]) -> str:
    return ", ".join(f"{name} ({purpose})" for purpose, name in method.readouts.items())


def _recipe(recipe: Recipe) -> str:
    """How long a method trains by its own recipe."""
    if recipe.steps_per_shot:
        return f"{recipe.optimiser}, {recipe.steps_per_shot} steps per shot"
    plural = "" if recipe.epochs == 1 else "s"
    return f"{recipe.optimiser}, {recipe.epochs} epoch{plural}" if recipe.epochs else "no training"
