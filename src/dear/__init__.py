"""DeAR: adapt a frozen CLIP from a few photos by decomposing the roles of its attention heads.

The names below are loaded when first used, so that `import dear` stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dear.backbone.clip import FrozenClip
    from dear.backbone.load import load_clip
    from dear.data.catalog import add_catalog
    from dear.datasets import open_dataset
    from dear.diagnosis import doctor
    from dear.engine.fit import fit
    from dear.engine.settings import TrainSettings
    from dear.errors import DearError
    from dear.evaluation.runs import evaluate
    from dear.extensions import import_methods
    from dear.loading import DeAR, load
    from dear.methods.base import Batch, Draw, Method, Needs, Output
    from dear.methods.dear.config import DearConfig
    from dear.methods.recipe import Recipe
    from dear.methods.registry import get_method, list_methods, register
    from dear.model import Model
    from dear.reports.comparing import compare
    from dear.reports.discovering import discover_roles
    from dear.reports.runs import report
    from dear.retrieval.features import attribute_features
    from dear.retrieval.search import search
    from dear.retrieval.update import index_images
    from dear.roles.rolemap import HeadRole, Provenance, Role, RoleMap
    from dear.user_cache import clear_cache, list_cache

__version__ = "0.2.0"

_HOMES = {
    "Batch": "dear.methods.base",
    "DeAR": "dear.loading",
    "DearConfig": "dear.methods.dear.config",
    "DearError": "dear.errors",
    "Draw": "dear.methods.base",
    "FrozenClip": "dear.backbone.clip",
    "HeadRole": "dear.roles.rolemap",
    "Method": "dear.methods.base",
    "Model": "dear.model",
    "Needs": "dear.methods.base",
    "Output": "dear.methods.base",
    "Provenance": "dear.roles.rolemap",
    "Recipe": "dear.methods.recipe",
    "Role": "dear.roles.rolemap",
    "RoleMap": "dear.roles.rolemap",
    "TrainSettings": "dear.engine.settings",
    "add_catalog": "dear.data.catalog",
    "attribute_features": "dear.retrieval.features",
    "clear_cache": "dear.user_cache",
    "compare": "dear.reports.comparing",
    "discover_roles": "dear.reports.discovering",
    "doctor": "dear.diagnosis",
    "evaluate": "dear.evaluation.runs",
    "explain": "dear.reports.explaining",
    "fit": "dear.engine.fit",
    "get_method": "dear.methods.registry",
    "import_methods": "dear.extensions",
    "index_images": "dear.retrieval.update",
    "list_cache": "dear.user_cache",
    "list_methods": "dear.methods.registry",
    "load": "dear.loading",
    "load_clip": "dear.backbone.load",
    "open_dataset": "dear.datasets",
    "register": "dear.methods.registry",
    "report": "dear.reports.runs",
    "search": "dear.retrieval.search",
}

__all__ = [
    "Batch",
    "DeAR",
    "DearConfig",
    "DearError",
    "Draw",
    "FrozenClip",
    "HeadRole",
    "Method",
    "Model",
    "Needs",
    "Output",
    "Provenance",
    "Recipe",
    "Role",
    "RoleMap",
    "TrainSettings",
    "add_catalog",
    "attribute_features",
    "clear_cache",
    "compare",
    "discover_roles",
    "doctor",
    "evaluate",
    "explain",
    "fit",
    "get_method",
    "import_methods",
    "index_images",
    "list_cache",
    "list_methods",
    "load",
    "load_clip",
    "open_dataset",
    "register",
    "report",
    "search",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use."""
    if name == "errors":
        return import_module("dear.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'dear' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, for completion."""
    return [*__all__, "__version__"]
