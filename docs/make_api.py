"""Write docs/api.md from the signatures and docstrings of everything that `import dear` offers.

python docs/make_api.py
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import dear

PAGE = Path(__file__).with_name("api.md")
GROUPS = {
    "Adapt, load, test": ["fit", "load", "evaluate", "open_dataset", "TrainSettings"],
    "Models": ["load_clip", "FrozenClip", "DeAR", "DearConfig", "ZeroShot", "Output"],
    "Roles": ["RoleMap", "HeadRole", "Role", "Provenance"],
    "Methods of your own": ["Method", "register", "get_method", "list_methods"],
    "Errors": ["DearError"],
}
TASKS = {
    "dear.predict": ["predict", "try_predict", "Prediction"],
    "dear.retrieval": ["update_index", "read_index", "search"],
    "dear.roles.discover": ["discover"],
}
INTRO = """# API

Everything that `import dear` offers, then functions for single tasks. `python docs/make_api.py` writes it.
"""


def definition(one: object) -> ast.FunctionDef | ast.ClassDef:
    """The syntax tree of a function or class."""
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(one)))  # type: ignore[arg-type]
    found = tree.body[0]
    assert isinstance(found, ast.FunctionDef | ast.ClassDef)
    return found


def signature(name: str, node: ast.FunctionDef) -> str:
    """As one would write it; long ones with an argument a line."""
    args = ast.unparse(node.args).removeprefix("self, ").removeprefix("cls, ")
    args = "" if args in ("self", "cls") else ", ".join(map(spaced, split_arguments(args)))
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{name}({args}){result}"
    if len(line) <= 100:
        return line
    pieces = split_arguments(args)
    return f"{name}(\n" + "".join(f"    {piece},\n" for piece in pieces) + f"){result}"


def spaced(argument: str) -> str:
    """An annotated argument with room around its default."""
    name, colon, rest = argument.partition(": ")
    return name + colon + re.sub(r"(?<![=!<>])=(?!=)", " = ", rest, count=1)


def split_arguments(args: str) -> list[str]:
    """Arguments apart, at commas that are in no bracket."""
    pieces, depth, start = [], 0, 0
    for place, letter in enumerate(args):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            pieces.append(args[start:place].strip())
            start = place + 1
    return [*pieces, args[start:].strip()]


def text_of(node: ast.FunctionDef | ast.ClassDef) -> str:
    """A docstring as Markdown: its list of arguments becomes a list."""
    lines, in_args = [], False
    for line in (ast.get_docstring(node) or "").splitlines():
        if line == "Args:":
            in_args = True
            continue
        if in_args and line.startswith("    "):
            deeper = line.startswith("        ")
            name, _, rest = line.strip().partition(": ")
            lines.append(f"  {line.strip()}" if deeper or not rest else f"- `{name}`: {rest}")
        else:
            lines.append(line)
    return "\n".join(lines)


def fields_of(node: ast.ClassDef) -> list[str]:
    """Public attributes with what is said below them."""
    rows = []
    for one, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant):
            rows.append(f"- `{ast.unparse(one)}`")
        if not isinstance(one, ast.AnnAssign) or ast.unparse(one.target).startswith("_"):
            continue
        said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        start = f" = {value}" if (value := default_of(one.value)) else ""
        meaning = f": {' '.join(str(said).split())}" if said else ""
        rows.append(f"- `{ast.unparse(one.target)}: {ast.unparse(one.annotation)}{start}`{meaning}")
    return rows


def default_of(value: ast.expr | None) -> str:
    """What an attribute is when nothing is said; pydantic's and dataclasses' `Field` may hold it."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("Field", "field"):
        value = next((word.value for word in value.keywords if word.arg == "default"), None)
    return ast.unparse(value) if value is not None else ""


def entry(name: str, one: object) -> str:
    """A public name with all there is to know."""
    node = definition(one)
    if isinstance(node, ast.FunctionDef):
        return f"### {name}\n```py\n{signature(name, node)}\n```\n{text_of(node)}\n"
    start = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
    parts = [f"### {name}"]
    if start is not None:
        parts.append(f"```py\n{signature(name, start)}\n```")
    parts.append(text_of(node) + "\n")
    if start is not None and ast.get_docstring(start):
        parts.append(text_of(start) + "\n")
    if rows := fields_of(node):
        parts.append("\n".join(rows) + "\n")
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_") and ast.get_docstring(item):
            told = signature(f".{item.name}", item)
            if any(ast.unparse(mark) == "property" for mark in item.decorator_list):
                told = f".{item.name}" + (f": {ast.unparse(item.returns)}" if item.returns else "")
            first = text_of(item).split("\n\n")[0].replace("\n", " ")
            line = re.sub(r",? ?\)( ->|$)", r")\1", " ".join(told.split()).replace("( ", "("))
            parts.append(f"- `{line}`: {first}")
    return "\n".join(parts) + "\n"


def page() -> str:
    """The whole page."""
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(dear.__all__), set(listed) ^ set(dear.__all__)
    parts = [INTRO]
    for title, names in GROUPS.items():
        parts += [f"## {title}", *(entry(f"dear.{name}", getattr(dear, name)) for name in names)]
    parts.append("## Single tasks")
    for module, names in TASKS.items():
        home = importlib.import_module(module)
        parts += [entry(f"{module}.{name}", getattr(home, name)) for name in names]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
