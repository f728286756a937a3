"""What the prose of source and documentation must not contain, and where its links lead."""

from pathlib import Path

import pytest

from dear.data.catalog import declarations

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.covers("F22")
def test_docs_lead_to_what_there_is():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "Clone this repository" in readme
    assert "github.com/dear-vlm" not in readme
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
