"""The house has floors: imports go down or stay level, packages form no cycle, no import hides in a function."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import dear

SOURCE = Path(dear.__file__).parent
FLOORS = (
    ("errors", "config"),
    ("storage", "progress", "cluster"),
    ("options",),
    ("data", "backbone"),
    ("roles", "methods", "world"),
    ("model",),
    ("engine", "retrieval"),
    ("evaluation",),
    ("reports", "paper"),
    ("app", "workflows"),
    ("cli", "entry", "__main__"),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
NO_ROOM = ""
"""`dear` itself: its names are loaded when first asked for, so importing one hides where it leads."""
LATE: dict[tuple[str, str], str] = {
    ("dear.entry", "cli"): "Ctrl-C while the commands are being loaded is one line",
    ("dear.cluster.nodes", "cluster"): "a function that Ray sends to a node, where dear may be missing",
    ("dear.cluster.tasks", "cluster"): "a function that Ray sends to a node",
    ("dear.cluster.tasks", "errors"): "a function that Ray sends to a node",
}
"""(importing module, imported room) of an import inside a function, and the reason why it has to be there."""


class Import(NamedTuple):
    """One import of a module of ours."""

    module: str
    line: int
    room: str
    late: bool
    """Whether it stands in a function."""

    @property
    def importer(self) -> str:
        """The room it is made from."""
        return self.module.split(".")[1]

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports dear.{self.room}".rstrip(".")


def imports_of(module: str, source: str, *, is_package: bool = False) -> Iterator[Import]:
    """Every import of our own modules, at the top, in functions and under TYPE_CHECKING."""

    def visit(node: ast.AST, late: bool) -> Iterator[Import]:
        for room in dict.fromkeys(_room(name) for name in _named(node, module, is_package)):
            if room is not None:
                yield Import(module, node.lineno, room, late)
        late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, late)

    yield from visit(ast.parse(source), late=False)


def _named(node: ast.AST, module: str, is_package: bool) -> list[str]:
    """Full names that a statement imports, such as dear.data.images.open_image."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        above = module.split(".")[: -node.level + is_package or None] if node.level else []
        return [".".join(filter(None, (*above, node.module, alias.name))) for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
        named = node.args[0]
        return [named.value] if isinstance(named, ast.Constant) and isinstance(named.value, str) else []
    return []


def _room(name: str) -> str | None:
    """The room a full name leads to; None if it is not ours, or only our version."""
    first, _, rest = name.partition(".")
    if first != "dear" or rest == "__version__":
        return None
    room = rest.split(".")[0]
    return room if room in FLOOR or "." in rest else NO_ROOM


def module_name(path: Path) -> str:
    parts = ("dear", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_house() -> list[Import]:
    found: list[Import] = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path != SOURCE / "__init__.py":
            inside = path.name == "__init__.py"
            found += imports_of(module_name(path), path.read_text(encoding="utf-8"), is_package=inside)
    return found


def upward(imports: Iterable[Import]) -> list[str]:
    """Imports that climb, or whose way cannot be told."""
    return [str(one) for one in imports if one.room == NO_ROOM or FLOOR.get(one.room, 99) > FLOOR.get(one.importer, -1)]


def late(imports: Iterable[Import], allowed: Iterable[tuple[str, str]] = ()) -> list[str]:
    """Imports inside functions, which the command line alone may have: there they keep `--help` fast."""
    listed = set(allowed)
    return [str(one) for one in imports if one.late and one.importer != "cli" and (one.module, one.room) not in listed]


def cycles(imports: Iterable[Import]) -> list[tuple[str, ...]]:
    """Groups of rooms of which each leads to every other."""
    leads: dict[str, set[str]] = {}
    for one in imports:
        leads.setdefault(one.importer, set()).add(one.room)

    def reached(room: str) -> set[str]:
        found, waiting = set[str](), [room]
        while waiting:
            new = leads.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found

    reach = {room: reached(room) for room in leads}
    groups = {
        tuple(sorted(other for other in leads if other in reach[room] and room in reach[other])) for room in leads
    }
    return sorted(group for group in groups if len(group) > 1)


HOUSE = read_house()


def test_every_room_has_a_floor():
    rooms = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert rooms - {"__init__"} <= set(FLOOR)
    assert sum(len(rooms) for rooms in FLOORS) == len(FLOOR)


def test_imports_go_down():
    assert not (found := upward(HOUSE)), "\n".join(found)


def test_no_two_rooms_lead_to_each_other():
    assert not (found := cycles(HOUSE)), "\n".join(map(" ".join, found))


def test_no_import_hides_in_a_function():
    assert not (found := late(HOUSE, LATE)), "\n".join(found)
    stale = set(LATE) - {(one.module, one.room) for one in HOUSE if one.late}
    assert not stale, "listed in LATE, but not there any more"
    assert all(LATE.values())


def test_no_public_name_is_also_a_module():
    rooms = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not rooms & set(dear.__all__)


MADE_UP = """
from typing import TYPE_CHECKING
from dear import __version__
from dear.storage.files import sha256
from . import images
from ..errors import DearError
if TYPE_CHECKING:
    from dear.engine.run import Job

def open_late():
    from dear import cli
    import_module("dear.paper.plan")
    return __import__("json")
"""


def test_the_check_sees_every_kind_of_import():
    found = list(imports_of("dear.data.readers", MADE_UP))
    assert [(one.room, one.late) for one in found] == [
        ("storage", False),
        ("data", False),
        ("errors", False),
        ("engine", False),
        ("cli", True),
        ("paper", True),
    ]
    assert upward(found) == [
        "dear.data.readers:8 imports dear.engine",
        "dear.data.readers:11 imports dear.cli",
        "dear.data.readers:12 imports dear.paper",
    ]
    assert late(found, {("dear.data.readers", "cli"): "a reason"}) == ["dear.data.readers:12 imports dear.paper"]
    inside = imports_of("dear.data", "from .images import open_image\nfrom ..files import sha256", is_package=True)
    assert [one.room for one in inside] == ["data", "files"]


@pytest.mark.parametrize("line", ["import dear", "from dear import fit", "from dear import DeAR as Ours"])
def test_lazy_names_are_refused(line):
    assert upward(imports_of("dear.evaluation.grid", line)) == ["dear.evaluation.grid:1 imports dear"]


def test_the_check_sees_cycles():
    there = list(imports_of("dear.roles.derive", "import dear.world.clip"))
    back = list(imports_of("dear.world.data", "from dear.roles.rolemap import RoleMap"))
    assert upward([*there, *back]) == []
    assert cycles(there) == []
    assert cycles([*there, *back]) == [("roles", "world")]


def test_the_architecture_page_lists_these_floors():
    text = (Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    listed: dict[int, set[str]] = {}
    for number, rooms in re.findall(r"^\| (\d+) \| (`[^|]+`) \|", text, re.MULTILINE):
        listed.setdefault(int(number), set()).update(re.findall(r"`(\w+)`", rooms))
    assert listed == {number: set(rooms) - {"__main__"} for number, rooms in enumerate(FLOORS, start=1)}
