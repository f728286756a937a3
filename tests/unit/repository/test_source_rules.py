"""Rules of the house that no reader should have to enforce: light import, imports in one place, short files."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
HEAVY = {"open_clip", "sentence_transformers", "torch", "torchvision", "transformers", "hdbscan", "umap", "sklearn"}
PUBLIC = [
    "Batch",
    "DeAR",
    "DearConfig",
    "DearError",
    "Draw",
    "FrozenClip",
    "HeadRole",
    "Method",
    "Model",
    "Needs",
    "Output",
    "Provenance",
    "Recipe",
    "Role",
    "RoleMap",
    "TrainSettings",
    "ablate_roles",
    "add_catalog",
    "attribute_features",
    "bench",
    "build_search",
    "calibrate",
    "check_data",
    "clear_cache",
    "compare",
    "compare_roles",
    "convert",
    "describe_dataset",
    "describe_method",
    "discover_roles",
    "doctor",
    "evaluate",
    "explain",
    "export_class_features",
    "export_index",
    "export_onnx",
    "fit",
    "get_method",
    "import_methods",
    "index_images",
    "list_backbones",
    "list_cache",
    "list_datasets",
    "list_methods",
    "list_settings",
    "load",
    "load_clip",
    "open_app",
    "open_dataset",
    "predict",
    "predict_each",
    "pretrain_world",
    "preview_world",
    "push",
    "quickstart",
    "register",
    "report",
    "run_paper",
    "score_world",
    "search",
    "show_roles",
    "sync",
]
"""Pinned: removing one breaks programs of others, and adding one is a promise."""
ONLY_IN = {
    "open_clip": {
        "src/dear/backbone/built.py",
        "src/dear/backbone/foreign.py",
        "src/dear/backbone/foreign_inputs.py",
        "src/dear/backbone/load.py",
        "src/dear/backbone/names.py",
        "src/dear/backbone/safety.py",
        "src/dear/backbone/tokenizer.py",
        "src/dear/world/clip.py",
    },
    "sentence_transformers": {"src/dear/roles/concepts.py"},
    "hdbscan": {"src/dear/roles/concepts.py"},
    "umap": {"src/dear/roles/concepts.py"},
}


def imported_modules(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.split(".")[0] for name in names}


def test_import_dear_is_light():
    code = "import dear, sys; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "dear" in loaded
    assert not loaded & HEAVY


def test_every_public_name_exists():
    import dear

    assert sorted(dear.__all__) == PUBLIC, "a public name came or went: see docs/reference/stability.md"
    for name in dear.__all__:
        assert getattr(dear, name).__doc__
    with pytest.raises(AttributeError):
        _ = dear.no_such_name


def test_no_public_name_is_that_of_a_module():
    """After `import dear.x`, `dear.x` is the module, whatever it was before."""
    import dear

    modules = {path.stem for path in (ROOT / "src" / "dear").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not modules & set(dear.__all__)


def test_the_version_is_written_once():
    """In `dear/__init__.py`, from where the package takes it; how to cite has to agree."""
    import dear

    told = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert told == [dear.__version__]
    assert not re.search(r"^version\s*=", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)


@pytest.mark.parametrize("module", ONLY_IN)
def test_heavy_libraries_are_imported_in_one_place(module):
    places = {str(path.relative_to(ROOT)) for path in SOURCES if module in imported_modules(path)}
    assert places <= ONLY_IN[module]


def test_files_and_functions_are_short():
    for path in SOURCES:
        text = path.read_text()
        assert len(text.splitlines()) <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"


def test_no_pickle_even_where_lint_is_switched_off():
    for path in SOURCES:
        assert not re.search(
            r"\bpickle\b|torch\.(load|save)\(", re.sub("no pickle", "", path.read_text(), flags=re.I)
        ), path


def test_lint_refuses_pickle(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("import pickle\nimport torch\n\ntorch.load('x')\n")
    command = [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), "--select", "TID251"]
    result = subprocess.run([*command, str(bad)], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "`pickle` is banned" in result.stdout
    assert "`torch.load` is banned" in result.stdout
