"""Commands and Python of the README and the docs are run as written, on a tiny CLIP and a few photos.

Only what takes long is made shorter, by options added behind it (`SHORTER`).
"""

import ast
import re
import shlex
import shutil
from pathlib import Path

import pytest

import dear
from helpers import make_photos, varied_roles

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
FEW = "--epochs 1 --shots 1 --seeds 1 --data photos --no-cache"
SHORTER = {
    "quickstart": "--epochs 1 --data many",
    "train": "--epochs 1 --shots 2",
    "bench base-to-novel": FEW,
    "bench few-shot": FEW,
    "bench cross-dataset": f"{FEW} --source NAME",
    "bench domain": f"{FEW} --source NAME",
    "compare": f"{FEW} --clip world",
    "paper": "--plan",
    "roles discover": "--pool pool.txt --examples 2",
    "roles ablate": "--draws 2",
    "world score": "--images 20 --per-class 1 --data world-textures",
    "world pretrain": "--steps 2 --stop-after 1",
}
NOT_HERE = ("pip install", "make ", "python benchmarks/", "torchrun ", "dear app")
RUN_ELSEWHERE = {"docs/how-to/add-a-method.md"}
"""Pages whose Python registers a method, which has a test of its own: here it would be known to all later tests."""


def blocks(text):
    """Every fenced block of a page as (language, content)."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def shell_lines(text):
    """Commands of a page: lines of its shell blocks, and what its tables offer to type."""
    lines = [line for kind, block in blocks(text) if kind == "bash" for line in block.replace("\\\n", " ").splitlines()]
    lines += [one for row in text.splitlines() if row.startswith("|") for one in re.findall(r"`(dear \w+ [^`]+)`", row)]
    wanted = ("dear ", *NOT_HERE)
    return [re.sub(r"\s+#.*", "", line).strip() for line in lines if line.startswith(wanted)]


def python_of(text):
    return "\n".join(block for kind, block in blocks(text) if kind == "python")


def verb_of(words):
    return next((verb for verb in SHORTER if words[: len(verb.split())] == verb.split()), "")


@pytest.fixture
def place(monkeypatch, tmp_path, clip, one_clip):
    """A folder where everything that the pages name exists; any backbone is a tiny one."""
    for name in ("photos", "photos-by-class", "pets", "holiday", "FOLDER", "NAME", "DATA/NAME"):
        make_photos(tmp_path / name, ["border collie", "cat", "owl", "siamese cat"], 4)
    make_photos(tmp_path / "many", ["cat", "owl"], 18)
    photo = tmp_path / "photos" / "cat" / "0.png"
    shutil.copy(photo, tmp_path / "photo.jpg")
    shutil.copy(photo, tmp_path / "holiday" / "1.jpg")
    (tmp_path / "names.txt").write_text("tabby cat\nparrot\n")
    (tmp_path / "another").mkdir()
    varied_roles(clip).save(tmp_path / "another" / "roles.json")
    pool = (f"a {kind} {thing}" for kind in ("red", "striped", "round", "wooden") for thing in ("cat", "house", "hill"))
    (tmp_path / "pool.txt").write_text("\n".join(pool))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_files(place, text):
    """Blocks that begin with a comment such as `# run.yaml` are files of that name."""
    for kind, block in blocks(text):
        if kind == "yaml" and (name := re.match(r"# ([\w.-]+\.yaml)\n", block)):
            (place / name[1]).write_text(block)


@pytest.mark.parametrize("page", PAGES)
def test_commands_work_as_written(dear_, place, page):
    text = (ROOT / page).read_text()
    write_files(place, text)
    for line in shell_lines(text):
        if line.startswith(NOT_HERE):
            continue
        _, *words = shlex.split(line)
        words = [found for word in words for found in (sorted(map(str, place.glob(word))) if "*" in word else [word])]
        code, _, stderr = dear_(*words, *SHORTER.get(verb_of(words), "").split())
        assert code == 0, f"{line}\n{stderr}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/") and page not in RUN_ELSEWHERE])
def test_python_works_as_written(dear_, place, page):
    code = python_of((ROOT / page).read_text())
    if "runs/pets" in code and "dear.fit(" not in code:
        few = ("--epochs", 1, "--shots", 2)
        made = dear_(
            "train", "photos", "--clip", "ViT-B-16-quickgelu", "--pretrained", "openai", "--out", "runs/pets", *few
        )
        assert made[0] == 0, made[2]
    exec(compile(code, page, "exec"), {})


def test_commands_are_found():
    found = {page: shell_lines((ROOT / page).read_text()) for page in PAGES}
    for command in ("make quickstart", "make test", "dear quickstart", "dear eval runs/mine"):
        assert command in found["README.md"]
    pages = ("compare", "config-files", "evaluate", "find-roles", "reproduce-the-paper", "search")
    for page in (*(f"docs/how-to/{name}.md" for name in pages), "docs/explanation/world.md"):
        assert len(found[page]) >= 2, page
    assert len(found["docs/tutorials/your-own-photos.md"]) >= 5


def test_python_is_found():
    for page in ("docs/tutorials/first-adapter.md", "docs/how-to/evaluate.md", "docs/how-to/search.md"):
        assert "import dear" in python_of((ROOT / page).read_text()), page


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_every_page_is_in_the_navigation():
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(page.removeprefix("docs/") for page in PAGES if page.startswith("docs/"))


def test_the_api_page_groups_every_public_name():
    named = re.findall(r"\(#dear\.(\w+)\)", (ROOT / "docs/reference/api.md").read_text())
    assert sorted(named) == sorted(dear.__all__)


def test_every_public_name_is_in_the_api_reference():
    """The reference is generated from the imports under TYPE_CHECKING, since the names themselves are loaded late."""
    tree = ast.parse((ROOT / "src/dear/__init__.py").read_text())
    checked = [one for one in tree.body if isinstance(one, ast.If)]
    imports = [one for one in ast.walk(checked[0]) if isinstance(one, ast.ImportFrom)]
    assert sorted(alias.asname or alias.name for one in imports for alias in one.names) == sorted(dear.__all__)


def test_a_missing_anchor_stops_the_build():
    assert "anchors: warn" in (ROOT / "mkdocs.yml").read_text()
