"""Methods by name. A method is imported only when it is used.

Other packages add methods with entry points of the group `dear.methods`, scripts with `register`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TypeVar

from dear.errors import ConfigError, did_you_mean
from dear.methods.base import Method
from dear.methods.check import misfits

M = TypeVar("M", bound=type[Method])

OWN = {
    "ape": "dear.methods.ape:APE",
    "ape_t": "dear.methods.ape_t:APET",
    "atprompt": "dear.methods.atprompt:ATPrompt",
    "clap": "dear.methods.clap:CLAP",
    "clip_adapter": "dear.methods.clip_adapter:ClipAdapter",
    "clip_lora": "dear.methods.clip_lora:ClipLora",
    "cocoop": "dear.methods.cocoop:CoCoOp",
    "coop": "dear.methods.coop:CoOp",
    "dear": "dear.methods.dear.method:DearMethod",
    "gda": "dear.methods.gda:GDA",
    "ivlp": "dear.methods.ivlp:IVLP",
    "kgcoop": "dear.methods.kgcoop:KgCoOp",
    "linear_probe": "dear.methods.linear_probe:LinearProbe",
    "llamp": "dear.methods.llamp:LLaMP",
    "lppp": "dear.methods.lppp:LPpp",
    "maple": "dear.methods.maple:MaPLe",
    "mm_adapter": "dear.methods.mm_adapter:MMAdapter",
    "mma": "dear.methods.mma:MMA",
    "mmrl": "dear.methods.mmrl:MMRL",
    "mmrlpp": "dear.methods.mmrlpp:MMRLpp",
    "prograd": "dear.methods.prograd:ProGrad",
    "promptkd": "dear.methods.promptkd:PromptKD",
    "promptsrc": "dear.methods.promptsrc:PromptSRC",
    "provp": "dear.methods.provp:ProVP",
    "role_gains": "dear.methods.role_gains:RoleGains",
    "skiptuning": "dear.methods.skiptuning:SkipTuning",
    "tac": "dear.methods.tac:TAC",
    "taskres": "dear.methods.taskres:TaskRes",
    "tcp": "dear.methods.tcp:TCP",
    "textrefiner": "dear.methods.textrefiner:TextRefiner",
    "textrefiner_promptkd": "dear.methods.textrefiner_promptkd:TextRefinerKD",
    "tip_adapter": "dear.methods.tip_adapter:TipAdapter",
    "tip_adapter_f": "dear.methods.tip_adapter_f:TipAdapterF",
    "vpt": "dear.methods.vpt:VPT",
    "zero_shot": "dear.methods.zero_shot:ZeroShot",
}
GROUP = "dear.methods"
_REGISTERED: dict[str, type[Method]] = {}


def register(method: M) -> M:
    """Class decorator that registers a method under its `name`, which must be unique."""
    if not isinstance(method, type):
        raise ConfigError(f"A method is a subclass of dear.Method, but {method!r} is not.")
    _check(method, f"{method.__name__} cannot be registered as a method")
    name = method.name
    taken = _places().get(name)
    itself = taken == f"{method.__module__}:{method.__qualname__}"  # the class is also an entry point
    if _REGISTERED.get(name, method) is not method or (taken and not itself and name not in _REGISTERED):
        raise ConfigError(f"The method name {name!r} is taken by {taken or 'another one'}: choose another name.")
    _REGISTERED[name] = method
    return method


def get_method(name: str) -> type[Method]:
    """Import and return the class of a method."""
    if not isinstance(name, str):
        raise ConfigError(f"The name of a method is a string, but got an object of type {type(name).__name__}.")
    if name in _REGISTERED:
        return _REGISTERED[name]
    places = OWN if name in OWN else _places()  # looking up entry points is slow
    if name not in places:
        known = list_methods()
        raise ConfigError(
            f"No method is called {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}. For one of your "
            f"own, add --import FILE.py (in Python: import it first)."
        )
    module, _, attribute = places[name].partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"The method {name!r} cannot be loaded from {places[name]} ({error}).") from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(f"The method {name!r} at {places[name]} is not a subclass of dear.Method.")
    if name not in OWN:
        _check(found, f"The method {name!r} at {places[name]} cannot be used")
    return found


def _check(method: type, what: str) -> None:
    """Raise a ConfigError that lists everything missing or wrong in a class."""
    if found := misfits(method):
        raise ConfigError(f"{what}: {'; '.join(found)}.")


def list_methods() -> list[str]:
    """Names of all methods."""
    return sorted({*_places(), *_REGISTERED})


def _places() -> dict[str, str]:
    others = {point.name: point.value for point in entry_points(group=GROUP)}
    return {**others, **OWN}
