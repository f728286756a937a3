"""The command line as people expect it: former spellings, help without riddles, tables that fit, parts of a paper."""

import csv
import inspect
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from test_hints import LEAVES

from cells import cell, cross_cell, few_shot_cell, zero_shot_cell
from dear import cli, entry
from dear.cli import app
from dear.cli.aliases import RENAMED
from dear.data.catalog import declarations
from dear.errors import ConfigError
from dear.evaluation.results import CellResult
from dear.evaluation.tables import to_csv, to_markdown, to_text
from dear.paper.figures import few_shot_part
from dear.paper.numbers import verdict
from dear.paper.plan import MINI, Experiment, chosen, plan_paper
from dear.paper.tables import base_to_novel_part
from papers import made_up

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.covers("F25")
def test_help_completion_and_alone(dear_):
    code, alone, err = dear_()
    assert (code, err) == (0, "")
    assert dear_("-h") == (0, alone, "")
    assert "--install-completion" in alone
    command = typer.main.get_command(app)
    env = {**os.environ, "_DEAR_COMPLETE": "complete_bash", "COMP_WORDS": "dear ls se", "COMP_CWORD": "2"}
    code = "from dear.entry import main; import sys; sys.argv = ['dear']; main()"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["settings"]
    assert done.stderr == ""
    assert command.name == "dear"


@pytest.mark.covers("F12")
@pytest.mark.parametrize("path", [path for path in sorted(LEAVES) if not LEAVES[path].hidden], ids=" ".join)
def test_help_shows_values_only_where_there_are_any(dear_, monkeypatch, path):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    text = dear_(*path, "-h")[1]
    assert not re.search(r"<\w+>|\{[A-Za-z.]+\}", text.replace("{}", "")), text
    for parameter in LEAVES[path].params:
        if getattr(parameter, "is_flag", False):
            assert re.search(rf"{parameter.opts[0]}\s{{2,}}[A-Z]", text), parameter.opts
        elif parameter.param_type_name == "argument":
            assert re.search(rf"Usage: .*{re.escape(parameter.metavar)}", text)
            assert parameter.metavar.strip(".").isupper()


@pytest.mark.covers("F13")
def test_one_word_has_one_meaning():
    named: dict[str, set[str]] = {}
    for path, command in LEAVES.items():
        if command.hidden or path[0] == "retrieve":
            continue
        for one in command.params:
            for name in () if getattr(one, "hidden", False) else one.opts:
                named.setdefault(name, set()).add(one.metavar or "")
    assert named["--classes"] == {"NAME,NAME"}
    assert named["--half"] == {"all|base|novel"}
    assert not named.keys() & set(RENAMED)
    assert {"--batch-size", "--top-k", "-k", "--max-images", "--data-root", "--threads"} <= named.keys()


DISCOVER = ["roles", "discover", "--clip", "world", "--images", "no", "--out", "x"]


@pytest.mark.covers("F13")
@pytest.mark.parametrize(
    ("words", "old", "new"),
    [
        (["train", "nowhere", "--out", "run", "--batch", "4"], "--batch", "--batch-size"),
        (["train", "nowhere", "--out", "run", "--classes", "base"], "--classes", "--half"),
        (["eval", "run", "--classes=novel"], "--classes", "--half"),
        (["predict", "run", "image.png", "--top", "2"], "--top", "--top-k"),
        (["data", "list", "nowhere", "--root", "."], "--root", "--data-root"),
        ([*DISCOVER, "--most-images", "9"], "--most-images", "--max-images"),
    ],
)
def test_former_spellings_work_with_a_hint(dear_, monkeypatch, tmp_path, words, old, new):
    monkeypatch.chdir(tmp_path)
    code, _, err = dear_(*words)
    assert code == 2
    note, sentence = err.strip().split("\n", 1)
    assert note == f"note: {old} is now called {new}."
    assert sentence.startswith("dear: ")  # it came as far as what is wrong with the rest
    assert "No such option" not in err


def test_class_names_are_no_former_spelling(dear_, tmp_path):
    assert "note" not in dear_("predict", tmp_path, "a.png", "--classes", "cat,dog")[2]
    assert "note" not in dear_("train", "--", "--batch")[2]


@pytest.mark.covers("F4")
def test_waiting_threads_leave_the_cores_to_others(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(cli, "main", lambda words: None)
    entry.main()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    entry.main()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    heavy = {"torch", "open_clip", "rich", "typer"}
    assert not heavy & set(re.findall(r"^(?:import|from) (\w+)", inspect.getsource(entry), re.MULTILINE))


@pytest.mark.covers("F4")
def test_threads_can_be_told_wherever_is_computed():
    light = {
        ("data",),
        ("ls",),
        ("roles", "show"),
        ("roles", "compare"),
        ("world", "preview"),
        ("doctor",),
        ("cache",),
        ("retrieve",),
    }
    for path, command in LEAVES.items():
        if path[:1] in light or path in light:
            continue
        assert any("--threads" in one.opts for one in command.params), path


@pytest.mark.covers("F11")
def test_every_data_set_has_its_page(dear_):
    for name, one in declarations().items():
        assert one.url.startswith("https://")
        code, out, err = dear_("data", "list", name)
        assert (code, err) == (0, "")
        for fact in (one.url, one.licence, one.citation, one.folder, one.title):
            assert fact in out
        if one.layout == "split file":
            assert "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md" in out
            assert one.split_file in out
    assert "stands for DTD" in dear_("data", "list", "world-textures")[1]
    code, _, err = dear_("data", "list", "caltec101")
    assert code == 2
    assert err == "dear: No data set is called 'caltec101'. Did you mean 'caltech101'?\n"


@pytest.mark.covers("F11")
def test_a_missing_data_set_is_told_with_its_page(dear_, tmp_path):
    err = dear_("data", "check", "dtd", "--data-root", tmp_path)[2]
    assert "Its page: https://www.robots.ox.ac.uk/~vgg/data/dtd/" in err
    assert "DATASETS.md" in err


@pytest.mark.covers("F20")
def test_settings_can_be_looked_up_and_recipes_changed(dear_):
    out = dear_("ls", "settings", "dear")[1]
    for name in ("mask", "threshold", "roles", "beta", "attributes"):
        assert re.search(rf"^{name} +\S+ +\S", out, re.MULTILINE)
    options = {name for one in LEAVES["train",].params for name in one.opts}
    assert {"--decay", "--warmup-epochs", "--config"} <= options
    _, _, err = dear_("bench", "few-shot", "--out", "nowhere", "--data", "world-blooms", "--set", "maskk=1")
    assert "Did you mean 'mask'" in err


@pytest.mark.covers("F21")
def test_the_csv_says_what_cells_are_made_of():
    made = {"settings": {"mask": "all_mixed"}, "files": {"roles.json": "d" * 64}}
    rows = list(csv.DictReader(io.StringIO(to_csv([cell(**made), cell(seed=2)]))))
    assert rows[0]["backbone"] == "ViT-B-16-quickgelu"
    assert (rows[0]["pretrained"], rows[0]["weights"], rows[0]["role_map"]) == ("openai", "a" * 12, "d" * 12)
    assert (rows[0]["settings"], rows[0]["recipe"]) == ('{"mask": "all_mixed"}', "own")
    assert (rows[1]["settings"], rows[1]["role_map"]) == ("", "")


@pytest.mark.covers("F21")
def test_a_cell_of_an_earlier_version_still_loads():
    text = cell().to_json()
    old = re.sub(r' "settings": \{\},\n "files": \{\},\n', "", text)
    assert old != text
    assert CellResult.from_json(old, where="old") == cell()


@pytest.mark.covers("F21")
@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_in_the_terminal_fits(width):
    wide = {f"target{number}": (50.0, 40.0) for number in range(9)}
    results = [
        *(cell(data, seed, (80.0 + seed, 70.0)) for data in ("dtd", "caltech101") for seed in (1, 2, 3)),
        *(zero_shot_cell(data) for data in ("dtd", "caltech101")),
        *(few_shot_cell(shots=shots) for shots in (1, 2, 4, 8, 16)),
        cross_cell(targets=wide),
    ]
    text = to_text(results, width)
    assert max(map(len, text.splitlines())) <= width
    assert "|" not in text
    if width >= 80:
        assert re.search(r"^data +method +base +novel +HM$", text, re.MULTILINE)
        assert re.search(r"^dtd +dear +82\.0 ± 1\.0 +60\.0 ± 0\.0 +69\.\d ± 0\.\d$", text, re.MULTILINE)
    assert "| data" in to_markdown(results)


@pytest.mark.covers("F15")
def test_a_part_of_the_paper_by_itself():
    whole = plan_paper(MINI)
    assert chosen(whole, None) == whole
    assert [one.key for one in chosen(whole, ["figure-5", "table-2"])] == ["table-2", "figure-4"]
    with pytest.raises(ConfigError, match=r"has no 'table2'\. Did you mean 'table-2'"):
        chosen(whole, ["table2"])


@pytest.mark.covers("F15")
def test_the_plan_of_a_part(dear_, tmp_path):
    code, out, _ = dear_("paper", "--mini", "--out", tmp_path / "p", "--only", "table-4", "--seeds", "1", "--plan")
    assert code == 0
    assert out.startswith("Table 4: domain generalisation (table-4): 0 of 2 cells done")
    assert "Table 2" not in out
    assert dear_("paper", "--mini", "--out", tmp_path / "p", "--only", "table-9", "--plan")[0] == 2


@pytest.mark.covers("F16")
def test_nothing_is_concluded_from_one_seed_or_one_point():
    plan = {one.key: one for one in plan_paper(MINI)}
    one_seed = [cell for cell in plan["table-2"].cells if cell.seed == 1]
    part = base_to_novel_part(Experiment("table-2", "Table 2", tuple(one_seed)), [made_up(one) for one in one_seed])
    text = " ".join((*part.says, *part.notes))
    assert "one seed: no spread is known" in text
    assert "over seeds" not in text
    point = [cell for cell in plan["figure-4"].cells if cell.shots == 16 and cell.seed == 1]
    part = few_shot_part(Experiment("figure-4", "Figure 4", tuple(point)), [made_up(one) for one in point])
    assert "at every step" not in " ".join(part.says)
    whole = few_shot_part(plan["figure-4"], [made_up(one) for one in plan["figure-4"].cells])
    assert "at every step" in " ".join(whole.says)
    assert "of one seed: no spread is known" in to_markdown([cell()])
    assert "standard deviation over seeds" in to_markdown([cell(), cell(seed=2)])


def test_equal_numbers_of_one_seed_are_within_no_spread():
    from dear.evaluation.statistics import Stat

    alone = {name: Stat(80.0, None, 1) for name in ("A", "B")}
    spread = {name: Stat(80.0, 1.0, 3) for name in ("A", "B")}
    assert "Within the spread" not in verdict("x", alone, {"A": 2.0, "B": 1.0})
    assert "Within the spread" in verdict("x", spread, {"A": 2.0, "B": 1.0})


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
