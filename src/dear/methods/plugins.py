"""Extensions of the user: files with methods (`--import`) and catalogues of data sets (`--catalog`).

An imported file is executed with all rights of the user, so import only files that you trust. A config file cannot
import one. Processes of a grid add the same extensions again.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from dear.data.catalog import add_catalog, added_catalogs
from dear.errors import ConfigError, DearError
from dear.methods.base import Method
from dear.methods.registry import register
from dear.storage.files import is_file

_IMPORTED: dict[Path, tuple[str, ...]] = {}


def import_methods(file: str | Path) -> tuple[str, ...]:
    """Execute a Python file once per process, register its methods and return their names.

    The file can import other files of its folder.
    """
    path = Path(file)
    if path.suffix != ".py" or not is_file(path):
        raise ConfigError(f"{path} cannot be imported: give a Python file, such as my_method.py.")
    path = path.resolve()
    if path not in _IMPORTED:
        _IMPORTED[path] = _register_all(_executed(path), path)
    return _IMPORTED[path]


def _executed(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module, before = module_from_spec(spec), sys.modules.get(path.stem)
    if before is not None and getattr(before, "__file__", None) != str(path):
        raise ConfigError(f"{path.name} has the name of a module that is loaded already: give the file another name.")
    sys.modules[path.stem] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except DearError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f" in line {one.lineno}" for one in reversed(frames) if one.filename == str(path)), "")
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}{line}: {error}.") from error
    return module


def _register_all(module: ModuleType, path: Path) -> tuple[str, ...]:
    """Register every named method that a file defines, with or without the decorator."""
    own = [
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, Method) and one.__module__ == module.__name__ and one.name
    ]
    if not own:
        raise ConfigError(f"{path} defines no method: write a subclass of dear.Method with a 'name' in it.")
    return tuple(dict.fromkeys(register(one).name for one in own))


def added() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files and catalogues that were added to this process."""
    return tuple(map(str, _IMPORTED)), tuple(map(str, added_catalogs()))


def add_plugins(files: Sequence[str | Path], catalogs: Sequence[str | Path]) -> None:
    """Execute Python files with methods, and read catalogues of data sets."""
    for file in files:
        import_methods(file)
    for catalog in catalogs:
        add_catalog(catalog)
