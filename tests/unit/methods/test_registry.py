"""Methods are known by name before anything of them is imported."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

import dear
import dear.methods.registry as registry
from dear.errors import ConfigError

OTHERS = """
import dear


class Mine(dear.Method):
    name = "mine"


@dear.register
class Both(dear.Method):
    name = "both"


not_a_method = 3
"""


@pytest.fixture
def others(monkeypatch, tmp_path):
    """A package of others with entry points."""
    (tmp_path / "others_methods.py").write_text(OTHERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    places = {
        "mine": "others_methods:Mine",
        "both": "others_methods:Both",
        "gone": "others_gone:Gone",
        "lost": "others_methods:Lost",
        "number": "others_methods:not_a_method",
        "dear": "others_methods:Mine",
    }
    points = [EntryPoint(name, value, registry.GROUP) for name, value in places.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "dear.methods" else [])
    yield
    sys.modules.pop("others_methods", None)


def test_nothing_is_imported_until_it_is_asked_for():
    code = (
        "import sys, dear, dear.methods.registry\n"
        "names = dear.list_methods()\n"
        "assert names == dear.methods.registry.list_methods()\n"
        "modules = [place.split(':')[0] for place in dear.methods.registry.OWN.values()]\n"
        "print(*(module for module in modules if module in sys.modules))\n"
        "dear.get_method('dear')\n"
        "print('dear.methods.dear.method' in sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == ["", "True"]


def test_every_own_method_is_at_its_place():
    assert set(registry.OWN) <= set(dear.list_methods())
    for name in registry.OWN:
        assert dear.get_method(name).name == name


def test_entry_points_have_the_same_form(others):
    assert {"mine", "gone"} < set(dear.list_methods())
    assert "others_methods" not in sys.modules
    mine = dear.get_method("mine")
    assert mine.__name__ == "Mine"
    assert issubclass(mine, dear.Method)


def test_a_method_may_be_registered_and_be_an_entry_point(others):
    assert dear.get_method("both").name == "both"


def test_own_names_cannot_be_taken(others):
    assert dear.get_method("dear").__module__ == "dear.methods.dear.method"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("gone", r"The method 'gone' cannot be loaded from others_gone:Gone \(No module named 'others_gone'\)"),
        ("lost", "The method 'lost' cannot be loaded from others_methods:Lost"),
        ("number", r"The method 'number' at others_methods:not_a_method is not a subclass of dear\.Method"),
        ("mien", r"No method is called 'mien'\. Did you mean 'mine'\?"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(others, name, sentence):
    with pytest.raises(ConfigError, match=sentence) as error:
        dear.get_method(name)
    assert "\n" not in str(error.value)


def test_a_taken_name_is_refused(others):
    with pytest.raises(ConfigError, match="The method name 'mine' is taken by others_methods:Mine: choose another"):

        @dear.register
        class Another(dear.Method):
            name = "mine"

    @dear.register
    class New(dear.Method):
        name = "new"

    assert dear.register(New) is New  # twice the same does no harm
    with pytest.raises(ConfigError, match="The method name 'new' is taken by another one"):

        @dear.register
        class Newer(dear.Method):
            name = "new"
