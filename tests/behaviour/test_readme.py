"""The README's Python is run as written, with random weights in place of a download."""

import re
from pathlib import Path

import pytest
import torch

import dear
from dear.backbone import load
from helpers import varied_roles

ROOT = Path(__file__).resolve().parents[2]


def test_readme_python(monkeypatch, tmp_path, clip, images):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    asked = []
    monkeypatch.setattr(load, "load_clip", lambda *names, **more: asked.append((names, more)) or clip)
    monkeypatch.setattr(dear.RoleMap, "load", lambda name: varied_roles(clip))
    monkeypatch.chdir(tmp_path)
    names = {"images": images, "labels": torch.tensor([0, 1, 1])}
    exec(compile(code, "README.md", "exec"), names)
    assert asked[0] == (("ViT-B-16-quickgelu",), {"pretrained": "openai"})
    assert names["zero_shot"].shape == (3, 2)
    assert names["loss"].total.ndim == 0


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_ci_calls_the_readmes_test_command():
    assert "make test" in (ROOT / "README.md").read_text()
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert commands[-1] == "make test"
