"""Everything that the author of a method imports. Only this module and `dear` itself are stable.

from dear.methods.api import Method, Needs, Output, Recipe, Settings, register, unit
"""

from pydantic import Field

from dear.backbone.clip import FrozenClip
from dear.backbone.layers import Layer
from dear.backbone.rows import Rows
from dear.backbone.support import Can
from dear.config import Settings
from dear.data.prompts import DEFAULT_TEMPLATE, ClassList, class_list
from dear.errors import ConfigError
from dear.methods.about import About
from dear.methods.base import Batch, Draw, Method, Needs, Output, Reading, cosine_output, tokens_of, unit
from dear.methods.check import misfits
from dear.methods.recipe import Recipe, Special
from dear.methods.registry import register
from dear.methods.resource import Resource

__all__ = [
    "DEFAULT_TEMPLATE",
    "About",
    "Batch",
    "Can",
    "ClassList",
    "ConfigError",
    "Draw",
    "Field",
    "FrozenClip",
    "Layer",
    "Method",
    "Needs",
    "Output",
    "Reading",
    "Recipe",
    "Resource",
    "Rows",
    "Settings",
    "Special",
    "class_list",
    "cosine_output",
    "misfits",
    "register",
    "tokens_of",
    "unit",
]
