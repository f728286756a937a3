"""What methods say about themselves is true, and said for all of them."""

import re
from pathlib import Path

import pytest

import dear
import dear.methods.registry as registry
from dear.methods.registry import OWN
from dear.workflows.listings import describe_method
from helpers import build

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def vit_b_16() -> dear.FrozenClip:
    return dear.load_clip("ViT-B-16-quickgelu", "random")


@pytest.mark.parametrize("name", OWN)
def test_trainable_parameters_on_vit_b_16(name, vit_b_16):
    about = dear.get_method(name).about
    assert about is not None
    if about.parameters is None:
        assert about.trained
    else:
        model = build(name, vit_b_16)
        assert sum(p.numel() for p in model.trainable().values()) == about.parameters


@pytest.mark.parametrize("name", OWN)
def test_every_method_is_cited_and_documented(name):
    about = dear.get_method(name).about
    assert str(about.year) in about.citation
    if name in ("dear", "zero_shot"):
        return
    page = (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8")
    assert page.startswith("# ")
    assert re.search(r"^## .*(differs|published)", page, re.MULTILINE | re.IGNORECASE)
    assert f"methods/{name}.md" in (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    if about.code:
        assert about.code.split()[0].split("/")[-1] in page


@pytest.mark.covers("T14")
def test_a_subclass_of_a_published_method_is_not_presented_as_published(monkeypatch):
    class Mine(dear.get_method("coop")):
        """CoOp with an idea of mine."""

        name = "mine"

    monkeypatch.setitem(registry._REGISTERED, "mine", Mine)
    described = dict(describe_method("mine"))
    assert Mine.about is None
    assert described["what"] == "CoOp with an idea of mine."
    assert not {"cite", "published code", "trains on ViT-B/16", "year"} & described.keys()
    assert {"own recipe", "readouts"} <= described.keys()
    assert dear.get_method("coop").about is not None


@pytest.mark.covers("T14")
def test_the_pages_count_the_published_methods_correctly():
    published = [name for name in OWN if dear.get_method(name).about.code and name != "zero_shot"]
    words = {31: "thirty-one", 32: "thirty-two", 33: "thirty-three", 34: "thirty-four"}[len(published)]
    for page in (ROOT / "README.md", DOCS / "index.md"):
        assert re.findall(r"([\w-]+) other published methods", page.read_text(encoding="utf-8")) == [words]
    others = re.findall(r"another of the (\d+) methods", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert others == [str(len(OWN) - 1)]


@pytest.mark.covers("T11")
def test_the_page_of_tcp_has_its_few_shot_recipe():
    page = (DOCS / "methods" / "tcp.md").read_text(encoding="utf-8")
    assert "Only base to novel was published" not in page
    assert re.search(r"few-shot results \(its Table 4, 4 shots", page)
    assert not [one for one in dear.get_method("tcp").special if "few-shot" in one.protocols]
