"""What methods say about themselves is true, and said for all of them."""

import re
from pathlib import Path

import pytest

import dear
from dear.methods.registry import OWN
from helpers import build

DOCS = Path(__file__).resolve().parents[3] / "docs"


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
