"""Commands and Python of the README and the docs are run as written, on a tiny CLIP and a few photos.

Only what takes long is made shorter, by options added behind it (`SHORTER`).
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from helpers import make_photos, varied_roles

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
FEW = "--epochs 1 --shots 1 --seeds 1 --data photos --no-cache"
SHORTER = {
    "quickstart": "--epochs 1 --data many",
    "train": "--epochs 1 --shots 2",
    "bench base-to-novel": FEW,
    "bench few-shot": FEW,
    "bench cross-dataset": f"{FEW} --source NAME",
    "bench domain": f"{FEW} --source NAME",
    "paper": "--plan",
    "roles discover": "--pool pool.txt --examples 2",
    "roles ablate": "--draws 2",
    "world score": "--images 20 --per-class 1 --data world-textures",
    "world pretrain": "--steps 2 --stop-after 1",
}
NOT_HERE = ("pip install", "make ", "python benchmarks/", "torchrun ")


def shell_lines(text):
    """Commands of a page: lines of its shell blocks, and what its tables offer to type."""
    blocks = re.findall(r"```(?:bash)?\n(.*?)```", re.sub(r"```python\n.*?```", "", text, flags=re.DOTALL), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += [one for row in text.splitlines() if row.startswith("|") for one in re.findall(r"`(dear \w+ [^`]+)`", row)]
    wanted = ("dear ", *NOT_HERE)
    return [re.sub(r"\s+#.*", "", line).strip() for line in lines if line.startswith(wanted)]


def verb_of(words):
    return next((verb for verb in SHORTER if words[: len(verb.split())] == verb.split()), "")


@pytest.fixture
def place(monkeypatch, tmp_path, clip):
    """A folder where everything that the pages name exists; any backbone is a tiny one."""
    for module in ("dear.backbone.load", "dear.engine.fit", "dear.evaluation.grid", "dear.paper.run"):
        monkeypatch.setattr(f"{module}.load_clip", lambda *_, **__: clip)
    monkeypatch.setattr("dear.methods.dear.roles.shipped_roles", varied_roles)
    for name in ("photos", "photos-by-class", "pets", "holiday", "FOLDER", "NAME", "DATA/NAME"):
        make_photos(tmp_path / name, ["border collie", "cat", "owl", "siamese cat"], 4)
    make_photos(tmp_path / "many", ["cat", "owl"], 18)
    photo = tmp_path / "photos" / "cat" / "0.png"
    shutil.copy(photo, tmp_path / "photo.jpg")
    shutil.copy(photo, tmp_path / "holiday" / "1.jpg")
    (tmp_path / "another").mkdir()
    varied_roles(clip).save(tmp_path / "another" / "roles.json")
    pool = (f"a {kind} {thing}" for kind in ("red", "striped", "round", "wooden") for thing in ("cat", "house", "hill"))
    (tmp_path / "pool.txt").write_text("\n".join(pool))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_commands_work_as_written(dear_, place, page):
    text = (ROOT / page).read_text()
    for line in shell_lines(text):
        if line.startswith(NOT_HERE):
            continue
        _, *words = shlex.split(line)
        words = [found for word in words for found in (sorted(map(str, place.glob(word))) if "*" in word else [word])]
        code, _, stderr = dear_(*words, *SHORTER.get(verb_of(words), "").split())
        assert code == 0, f"{line}\n{stderr}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_python_works_as_written(dear_, place, page):
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))
    if "dear.load(" in code:
        assert dear_("train", "photos", "--out", "runs/pets", "--epochs", 1, "--shots", 2)[0] == 0
    exec(compile(code, page, "exec"), {})


def test_commands_are_found():
    found = {page: shell_lines((ROOT / page).read_text()) for page in PAGES}
    assert "dear quickstart" in found["README.md"]
    assert "dear eval runs/mine" in found["README.md"]
    assert len(found["docs/training.md"]) >= 8
    for page in ("docs/roles.md", "docs/search.md", "docs/world.md", "docs/paper.md"):
        assert len(found[page]) >= 2, page


def test_the_api_page_is_up_to_date(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import make_api

    assert make_api.page() == make_api.PAGE.read_text(), "run: python docs/make_api.py"
