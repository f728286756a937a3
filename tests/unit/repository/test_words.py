"""What the prose of source and documentation must not contain, and where its links lead."""

import re
from pathlib import Path

import pytest

from dear.data.catalog import declarations

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.covers("F22")
def test_docs_lead_to_what_there_is():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "Clone this repository" in readme
    assert "docs/reference/api.md" in readme
    roles = (ROOT / "docs" / "how-to" / "find-roles.md").read_text(encoding="utf-8")
    assert 'pip install -e ".[roles]"' in roles
    layouts = (ROOT / "docs" / "how-to" / "add-a-data-set.md").read_text(encoding="utf-8")
    for one in declarations().values():
        assert f"`{one.layout}`" in layouts
    watch = (ROOT / "docs" / "how-to" / "watch-it.md").read_text(encoding="utf-8")
    assert "tensorboard" in watch
    assert "wandb" in watch
    assert "watch-it.md" in (ROOT / "docs" / "how-to" / "train.md").read_text(encoding="utf-8")


NOW = (
    *("without forgetting the classes", "honest and fast", "15 + 11 sets", "what all prompts begin with"),
    *("makes its own environment", "photos a class", "that were not drawn are the test set", "Images a class to learn"),
    *("Images an update", "Rounds through the images", "Decides everything that is random", "So many"),
    *("a line of JSON", "Folder for what the frozen layers make", "Threads that read images", "A choice of the method"),
    *(
        "Go on where",
        "Start again in the same",
        "Check that things are there",
        "Say what is there",
        "Say what images show",
    ),
    *("belongs into the folder", "do without by", "bad surrounding", "Pixels per pixel", "a CLIP that lives in it"),
    *("views an image", "A cell that several of them need"),
)
"""Sentences that a technical writer changed."""


@pytest.mark.covers("F12")
def test_no_sentence_of_the_former_kind_is_left():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "src" / "dear").rglob("*.py"))]
    found = [(str(page), phrase) for page in pages for phrase in NOW if phrase in page.read_text(encoding="utf-8")]
    assert not found


THINGS = "(?:word|grid|size|share|folder|list|number|name|image|text|path|file|run|role)s?|UTF|data"
WORDS = {
    "told": r"\btold\b",
    "anew": r"\banew\b",
    "so many, so much": r"\bso (?:many|much)\b",
    "is no X": rf"(?<!there )\b(?:is|are) no (?:{THINGS})\b",
}
"""Words of another language in English letters; CONTRIBUTING lists what to write instead."""
SOURCE = sorted((ROOT / "src" / "dear").rglob("*.py"))
PROSE = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
AT_MOST = {"told": 0, "anew": 0, "so many, so much": 0, "is no X": 0}
"""Uses left in the source; only ever made smaller."""


def uses(word: str, pages: list[Path]) -> list[str]:
    """Where a word is used: file, line, and the words themselves."""
    found = []
    for page in pages:
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            found += [f"{page.relative_to(ROOT)}:{number}: {one[0]}" for one in re.finditer(WORDS[word], line, re.I)]
    return found


@pytest.mark.parametrize("word", WORDS)
def test_words_that_are_not_used(word):
    found = uses(word, SOURCE)
    assert len(found) <= AT_MOST[word], "\n".join(found)
    assert not uses(word, PROSE)


def test_the_check_sees_words(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "Told so\nmany times anew: this is no folder, so much is no Grid.\nThere is no file; retold foldings.\n"
    )
    counts = {word: len(uses(word, [page])) for word in WORDS}
    assert counts == {"told": 1, "anew": 1, "so many, so much": 1, "is no X": 2}
    assert uses("told", [page]) == ["page.md:1: Told"]


def test_prose_in_source_fits_120_columns():
    """Code that cannot be split because of a `# type: ignore` or an address may be longer."""
    for path in SOURCE:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert len(line) <= 120 or "# type: ignore" in line or "https://" in line, f"{path}:{number}"


def test_no_page_names_an_address_that_does_not_exist():
    others = [ROOT / name for name in ("pyproject.toml", "mkdocs.yml", "CITATION.cff", "CONTRIBUTING.md")]
    for page in (*PROSE, *SOURCE, *others):
        assert "github.com/dear-vlm" not in page.read_text(encoding="utf-8"), page
