"""The README's Python is run as written, with random weights in place of a download."""

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]


def test_readme_python(monkeypatch, tmp_path, one_clip, images):
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate(
        ["photos/cat/1.png", "photos/cat/2.png", "photos/dog/1.png", "photos/dog/2.png", "photo.jpg"]
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (50 * i, 90, 200 - 40 * i)).save(tmp_path / name)
    names = {"images": images, "labels": torch.tensor([0, 1, 1])}
    exec(compile(code, "README.md", "exec"), names)
    assert ("ViT-B-16-quickgelu", "openai") in one_clip
    assert names["model"].classes.names == ("cat", "dog")
    assert names["loss"]["total"].ndim == 0


def test_ci_calls_the_readmes_test_command():
    assert "make test" in (ROOT / "README.md").read_text()
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert commands[-1] == "make test"


@pytest.mark.parametrize("page", ["README.md", "docs/tutorials/first-adapter.md"])
def test_the_quickstarts_numbers_are_those_of_the_last_run(page):
    """`make readme` writes all of them."""
    printed = json.loads((ROOT / "results" / "quickstart.json").read_text(encoding="utf-8"))["printed"]
    assert "```text\n" + "\n".join(printed) + "\n```" in (ROOT / page).read_text(encoding="utf-8")
    assert (ROOT / "docs" / "images" / "before-after.png").is_file()
