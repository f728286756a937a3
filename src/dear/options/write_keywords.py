"""The source of `keywords.py`: option names and types for type checkers and editors, made from the classes.

`make options` writes the file; a test compares it with the classes.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, get_args, get_origin

from dear.options.commands import Predict
from dear.options.fields import Options
from dear.options.parts import Bench, Compare, Fit, Paper
from dear.options.reading import Option, options_of
from dear.storage.files import write_atomic

TARGET = Path(__file__).with_name("keywords.py")
HEAD = '''"""Keywords of public functions such as `dear.fit` and `dear.predict`, made by `make options`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict
'''
MODELS: tuple[tuple[str, str, type[Options], tuple[str, ...]], ...] = (
    ("FitOptions", "fit", Fit, ("data", "clip")),
    ("BenchOptions", "bench", Bench, ("data", "clip")),
    ("CompareOptions", "compare", Compare, ("data", "clip", "epochs")),
    ("PaperOptions", "run_paper", Paper, ()),
    ("PredictOptions", "predict", Predict, ("run", "images", "classes", "json")),
)
"""Name of the type, the function, the class of options, and the options that the function names itself."""


def source() -> str:
    """The whole file."""
    documented: set[str] = set()
    return HEAD + "".join(_typed_dict(*one, documented) for one in MODELS)


def _typed_dict(name: str, function: str, model: type[Options], left_out: tuple[str, ...], documented: set[str]) -> str:
    """One type; an option is documented where it appears first."""
    lines = [f"class {name}(TypedDict, total=False):", f'    """Keywords of `dear.{function}`."""\n']
    for one in options_of(model).values():
        if one.name in left_out:
            continue
        lines.append(f"    {one.name}: {_hint(one)}")
        if one.text not in documented:
            text = f'"""{one.text}"""'
            lines.append(textwrap.fill(text, 120, initial_indent="    ", subsequent_indent="    "))
            documented.add(one.text)
    return "\n\n" + "\n".join(lines) + "\n"


def _hint(option: Option) -> str:
    """What Python may pass: one value or several, a path or its text."""
    kind: Any = option.kind
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        name = getattr(inner, "__origin__", inner).__name__
        text = f"{name} | Sequence[{name}]"
    elif get_origin(kind) is dict:
        text = "Mapping[str, Any]"
    elif option.choices:
        text = "Literal[" + ", ".join(f'"{one}"' for one in option.choices) + "]"
    elif kind is Path:
        text = "str | Path"
    else:
        text = str(kind.__name__)
    if option.name in ("names", "descriptions"):
        text += " | Mapping[str, Any]"
    if option.name == "roles":
        text = "Any"
    return f"{text} | None" if option.field.default is None and text != "Any" else text


if __name__ == "__main__":
    write_atomic(TARGET, source().encode())
