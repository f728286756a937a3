"""`routing` under its former name: files, commands and fingerprints of before keep working."""

import json
import shutil
import warnings
from pathlib import Path

import pytest

import dear
from dear.cli import main
from dear.config import named_first, named_now
from dear.data.dataset import Dataset
from dear.engine.job import Job, describe, fingerprint
from dear.errors import ConfigError, DearWarning
from dear.evaluation.cells import make_cells
from dear.model.artefact import identity
from dear.model.load import load
from dear.storage import documents

GOLDEN = Path(__file__).parents[2] / "golden" / "v0_2"


@pytest.mark.parametrize(("before", "now"), [(True, "strict"), (False, "open")])
def test_the_former_name_is_understood_with_a_hint(clip, roles, before, now):
    with pytest.warns(DearWarning, match=f"strict_routing={before} is now called routing={now}"):
        model = dear.DeAR(clip, roles, strict_routing=before)
    assert model.config.routing == now


def test_the_readings_mask_differently(clip, roles):
    """Under the strict one, tokens read less of the image; a token that reads nothing else still sees itself."""
    rows = clip.vision.rows
    opened, strict = (dear.DeAR(clip, roles, routing=one).method.mask_4[..., :rows] for one in ("open", "strict"))
    assert (strict <= opened).all()
    assert (strict < opened)[..., rows:, :].any()


@pytest.mark.parametrize("wrong", [{"strict_routing": 1}, {"strict_routing": []}, {"routing": "closed"}], ids=str)
def test_what_never_was_a_value_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        dear.DearConfig(**wrong)


def test_both_names_at_once_are_refused():
    with pytest.raises(ConfigError, match="no setting 'strict_routing'"):
        dear.DearConfig(routing="open", strict_routing=True)


def test_names_then_and_now_are_inverse():
    for value in (True, False):
        assert named_first(dear.DearConfig, named_now(dear.DearConfig, {"strict_routing": value, "beta": 0.5})) == {
            "strict_routing": value,
            "beta": 0.5,
        }


def test_an_adapter_with_the_former_name_loads_without_a_hint(tmp_path):
    """A person can do nothing about what a file says."""
    folder = shutil.copytree(GOLDEN / "run", tmp_path / "run")
    content = json.loads((folder / "adapter_config.json").read_text())
    content["settings"]["strict_routing"] = content["settings"].pop("routing") == "strict"
    (folder / "adapter_config.json").write_text(documents.to_json(documents.sealed(content)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(folder).config.routing == "open"


def job(**config) -> Job:
    return Job(Dataset("toy", ("a", "b"), "a {}.", (), (), (), lambda _: None), (), ("a", "b"), 1, config=config)


def test_fingerprints_are_those_of_before(clip, roles):
    """A description that a former version wrote counts like today's, and so does what a teacher was."""
    for before, now in ((False, "open"), (True, "strict")):
        one = job(roles=roles, routing=now)
        model = one.build(clip)
        told = describe(one, model)
        settings = {name: value for name, value in told["settings"].items() if name != "routing"}
        old = {**told, "settings": {**settings, "strict_routing": before}}
        assert fingerprint(old) == fingerprint(told)
        assert model.config.first_named()["strict_routing"] is before
        assert "routing" not in model.config.first_named()
    kinds = [dear.DeAR(clip, roles, routing=routing, seed=1) for routing in ("open", "strict")]
    assert identity(kinds[0])["state_sha256"] != identity(kinds[1])["state_sha256"]


def test_cells_are_named_as_now():
    what = {"methods": ["zero_shot", "dear"], "seeds": [1], "shots": [16]}
    with pytest.warns(DearWarning, match="is now called routing="):
        cells = make_cells("few-shot", ["world-blooms"], **what, choices={"strict_routing": [False, True]})
    assert [cell.variant for cell in cells] == ["", "", "routing=strict"]
    assert cells[2].choices == (("routing", "strict"),)


def test_the_command_line_says_what_it_is_called_now(monkeypatch, capsys, tmp_path):
    """The hint is one line, without a place in the code."""
    words = ["dear", "train", "world-blooms", "--out", str(tmp_path / "run"), "--set", "strict_routing=true"]
    monkeypatch.setattr("sys.argv", [*words, "--set", "first_layer=99"])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = warnings._showwarning_orig
        with pytest.raises(SystemExit):
            main()
    told = capsys.readouterr().err.splitlines()
    assert "note: strict_routing=True is now called routing=strict." in told
    assert "first_layer is 99" in told[-1]
