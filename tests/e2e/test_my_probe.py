"""The method of docs/how-to/add-a-method.md goes through every command, with public imports only."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

import dear
import dear.methods.registry as registry
from dear.methods import api
from helpers import make_photos

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "add-a-method.md"
LONGEST = 40
NOT_FOR_METHODS = {"dear.world", "dear.engine.tensorboard"}
"""Further modules that pages about other topics import."""


def code() -> str:
    return next(one for one in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "my_probe.py" in one)


@pytest.fixture
def probe(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    path = tmp_path / "my_probe.py"
    path.write_text(code())
    spec = importlib.util.spec_from_file_location("my_probe", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "my_probe", module)
    spec.loader.exec_module(module)
    return module


def imported(source: str) -> set[str]:
    """Modules of dear that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return {name for name in found if name.split(".")[0] == "dear"}


def sources() -> dict[str, str]:
    """Python of the docs and of the plug-in example, by file and number."""
    found = {str(path): path.read_text() for path in (ROOT / "examples" / "method-plugin").rglob("*.py")}
    for page in (ROOT / "docs").rglob("*.md"):
        blocks = re.findall(r"```(?:python|py)\n(.*?)```", page.read_text(), re.DOTALL)
        found |= {f"{page}:{number}": block for number, block in enumerate(blocks)}
    return found


def test_docs_and_example_import_public_modules_only():
    public = {"dear", "dear.methods.api", *NOT_FOR_METHODS}
    strange = {place: imported(code) - public for place, code in sources().items()}
    assert not {place: modules for place, modules in strange.items() if modules}
    assert imported(code()) == {"dear.methods.api"}
    assert imported("import dear\nfrom dear.methods.base import unit") - public == {"dear.methods.base"}


def test_the_api_exports_what_it_lists():
    assert sorted(api.__all__) == sorted(name for name in vars(api) if not name.startswith("_"))


def test_it_is_short():
    assert len(code().splitlines()) <= LONGEST


def test_the_docs_probe_goes_through_every_command(probe, dear_, tmp_path, monkeypatch, clip, one_clip):
    monkeypatch.chdir(tmp_path)
    photos = make_photos(tmp_path / "photos", ["red thing", "green thing", "blue thing"], 6)
    train = (
        "train",
        photos,
        "--clip",
        "tiny",
        "--method",
        "my_probe",
        "--out",
        "run",
        "--shots",
        4,
        "--set",
        "C=10",
    )
    code, stdout, stderr = dear_(*train)
    assert (code, "my_probe" in stdout) == (0, True), stderr
    assert dear_(*train, "--overwrite")[0] == 0

    model = dear.load("run", clip=clip)
    assert tuple(model.method.weight.shape) == (3, clip.geometry.embed_dim)
    again = dear.load(model.save_pretrained(tmp_path / "copy"), clip=clip)
    image = torch.randn(2, 3, clip.geometry.image_size, clip.geometry.image_size)
    assert torch.equal(model(image).logits, again(image).logits)
    with model.disabled():
        assert model(image).logits.shape == (2, 3)

    code, stdout, stderr = dear_("eval", "run")
    assert (code, "my_probe" in stdout) == (0, True), stderr
    accuracy = float(re.search(r"my_probe\D+([\d.]+) %", stdout)[1])
    assert accuracy == 100.0  # three colours
    code, stdout, stderr = dear_("predict", "run", photos / "red thing" / "0.png", "--json")
    assert (code, '"label": "red thing"' in stdout) == (0, True), stderr
    code, _, stderr = dear_("predict", "run", photos / "red thing" / "0.png", "--classes", "red thing,owl")
    assert (code, "only classes it was trained on" in stderr) == (2, True)
    grid = ("bench", "few-shot", "--data", photos, "--clip", "tiny", "--methods", "zero_shot,my_probe")
    code, stdout, stderr = dear_(*grid, "--seeds", 1, "--shots", "1,4", "--out", "grid", "--no-cache")
    assert (code, "my_probe" in stdout) == (0, True), stderr
    code, _, stderr = dear_("report", "run")
    assert code == 0, stderr
    assert "my_probe on" in Path("run/report.html").read_text()
