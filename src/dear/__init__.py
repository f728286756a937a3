"""DeAR: adapt a frozen CLIP from a few photos by decomposing the roles of its attention heads.

The names below are loaded when first used, so that `import dear` stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dear.backbone.clip import FrozenClip
    from dear.backbone.load import load_clip
    from dear.backbone.names import list_backbones
    from dear.data.catalog import add_catalog
    from dear.data.open import open_dataset
    from dear.engine.settings import TrainSettings
    from dear.errors import DearError
    from dear.methods.base import Batch, Draw, Method, Needs, Output
    from dear.methods.dear.config import DearConfig
    from dear.methods.plugins import import_methods
    from dear.methods.recipe import Recipe
    from dear.methods.registry import get_method, list_methods, register
    from dear.model.load import DeAR, load
    from dear.model.model import Model
    from dear.retrieval.features import attribute_features
    from dear.roles.rolemap import HeadRole, Provenance, Role, RoleMap
    from dear.storage.user_cache import clear_cache, list_cache
    from dear.workflows.app import open_app
    from dear.workflows.bench import bench
    from dear.workflows.calibrate import calibrate
    from dear.workflows.compare import compare
    from dear.workflows.convert import convert
    from dear.workflows.datasets import check_data, describe_dataset, list_datasets
    from dear.workflows.discover import discover_roles
    from dear.workflows.doctor import doctor
    from dear.workflows.evaluate import evaluate
    from dear.workflows.explain import explain
    from dear.workflows.export import export_class_features, export_onnx
    from dear.workflows.index import index_images
    from dear.workflows.listings import describe_method, list_settings
    from dear.workflows.paper import run_paper
    from dear.workflows.predict import predict, predict_each
    from dear.workflows.push import push
    from dear.workflows.quickstart import quickstart
    from dear.workflows.report import report
    from dear.workflows.roles import ablate_roles, compare_roles, show_roles
    from dear.workflows.search import search
    from dear.workflows.search_export import export_index
    from dear.workflows.search_lists import build_search
    from dear.workflows.sync import sync
    from dear.workflows.train import fit
    from dear.workflows.world import pretrain_world, preview_world, score_world

__version__ = "0.3.0"

_HOMES = {
    "Batch": "dear.methods.base",
    "DeAR": "dear.model.load",
    "DearConfig": "dear.methods.dear.config",
    "DearError": "dear.errors",
    "Draw": "dear.methods.base",
    "FrozenClip": "dear.backbone.clip",
    "HeadRole": "dear.roles.rolemap",
    "Method": "dear.methods.base",
    "Model": "dear.model.model",
    "Needs": "dear.methods.base",
    "Output": "dear.methods.base",
    "Provenance": "dear.roles.rolemap",
    "Recipe": "dear.methods.recipe",
    "Role": "dear.roles.rolemap",
    "RoleMap": "dear.roles.rolemap",
    "TrainSettings": "dear.engine.settings",
    "ablate_roles": "dear.workflows.roles",
    "add_catalog": "dear.data.catalog",
    "attribute_features": "dear.retrieval.features",
    "bench": "dear.workflows.bench",
    "build_search": "dear.workflows.search_lists",
    "calibrate": "dear.workflows.calibrate",
    "check_data": "dear.workflows.datasets",
    "clear_cache": "dear.storage.user_cache",
    "compare": "dear.workflows.compare",
    "compare_roles": "dear.workflows.roles",
    "convert": "dear.workflows.convert",
    "describe_dataset": "dear.workflows.datasets",
    "describe_method": "dear.workflows.listings",
    "discover_roles": "dear.workflows.discover",
    "doctor": "dear.workflows.doctor",
    "evaluate": "dear.workflows.evaluate",
    "explain": "dear.workflows.explain",
    "export_class_features": "dear.workflows.export",
    "export_index": "dear.workflows.search_export",
    "export_onnx": "dear.workflows.export",
    "fit": "dear.workflows.train",
    "get_method": "dear.methods.registry",
    "import_methods": "dear.methods.plugins",
    "index_images": "dear.workflows.index",
    "list_backbones": "dear.backbone.names",
    "list_cache": "dear.storage.user_cache",
    "list_datasets": "dear.workflows.datasets",
    "list_methods": "dear.methods.registry",
    "list_settings": "dear.workflows.listings",
    "load": "dear.model.load",
    "load_clip": "dear.backbone.load",
    "open_app": "dear.workflows.app",
    "open_dataset": "dear.data.open",
    "predict": "dear.workflows.predict",
    "predict_each": "dear.workflows.predict",
    "pretrain_world": "dear.workflows.world",
    "preview_world": "dear.workflows.world",
    "push": "dear.workflows.push",
    "quickstart": "dear.workflows.quickstart",
    "register": "dear.methods.registry",
    "report": "dear.workflows.report",
    "run_paper": "dear.workflows.paper",
    "score_world": "dear.workflows.world",
    "search": "dear.workflows.search",
    "show_roles": "dear.workflows.roles",
    "sync": "dear.workflows.sync",
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
    "ablate_roles",
    "add_catalog",
    "attribute_features",
    "bench",
    "build_search",
    "calibrate",
    "check_data",
    "clear_cache",
    "compare",
    "compare_roles",
    "convert",
    "describe_dataset",
    "describe_method",
    "discover_roles",
    "doctor",
    "evaluate",
    "explain",
    "export_class_features",
    "export_index",
    "export_onnx",
    "fit",
    "get_method",
    "import_methods",
    "index_images",
    "list_backbones",
    "list_cache",
    "list_datasets",
    "list_methods",
    "list_settings",
    "load",
    "load_clip",
    "open_app",
    "open_dataset",
    "predict",
    "predict_each",
    "pretrain_world",
    "preview_world",
    "push",
    "quickstart",
    "register",
    "report",
    "run_paper",
    "score_world",
    "search",
    "show_roles",
    "sync",
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
