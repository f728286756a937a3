"""The built wheel in an environment of its own: nothing of this folder is needed, and nothing is missing in it."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import dear
from needs import needs

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
pytestmark = pytest.mark.xdist_group("wheel")  # built once
OUTSIDE = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(*words, cwd=None):
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, cwd=cwd, env=OUTSIDE, check=False)
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    needs("build")
    needs("hatchling")
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Programs of a new environment with the wheel; libraries are borrowed from this one, which takes no download."""
    place = tmp_path_factory.mktemp("clean") / "venv"
    run(sys.executable, "-m", "venv", "--system-site-packages", place)
    python = place / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")  # a venv's own venv does not see them
    return python.parent


def test_everything_is_in_the_wheel(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    files = {path for path in (SOURCE / "dear").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path.relative_to(SOURCE).as_posix() for path in files} <= inside
    assert any(name.startswith("dear/assets/") for name in inside)
    assert wheel.name.startswith(f"dear_vlm-{dear.__version__}-")


def test_commands_work_from_the_wheel(installed, tmp_path):
    where = run(installed / "python", "-c", "import dear; print(dear.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(installed.parent)
    assert run(installed / "dear", "--version", cwd=tmp_path).strip() == f"dear {dear.__version__}"
    assert "zero_shot" in run(installed / "dear", "ls", "methods", cwd=tmp_path)
    code = "import dear; print(dear.load_clip('world').geometry.image_size, dear.RoleMap.load('world').provenance)"
    assert run(installed / "python", "-c", code, cwd=tmp_path).startswith("64 ")


@pytest.mark.slow
def test_a_clean_environment_installs_the_wheel_and_runs_the_quickstart(wheel, tmp_path):
    """Nothing is borrowed: all that is needed is downloaded, in the tested versions."""
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    words = run(python.parent / "dear", "quickstart", "--epochs", "1", "--out", tmp_path / "run", cwd=tmp_path)
    assert "plain CLIP" in words
    assert (tmp_path / "run" / "report.html").is_file()
