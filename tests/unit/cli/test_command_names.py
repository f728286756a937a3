"""Manners of the command line: help, names that have changed, and what is refused before any weight is read."""

import json
import re

import pytest

import dear
from dear.backbone.load import clips_from
from dear.errors import ConfigError
from helpers import make_photos


@pytest.fixture
def _no_weights():
    """Whoever loads a backbone has come too far."""

    def fail(*_, **__):
        raise AssertionError("weights were read")

    with clips_from(fail):
        yield


def test_help_is_where_one_looks_for_it(dear_):
    code, alone, err = dear_()
    assert (code, err) == (0, "")
    assert "Usage: dear" in alone
    for words in (["-h"], ["--help"]):
        assert dear_(*words) == (0, alone, "")
    for words in (["bench"], ["search"], ["roles"], ["data"], ["ls"], ["world"]):
        assert dear_(*words) == dear_(*words, "-h")
        assert dear_(*words)[0] == 0
    assert dear_("train", "-h")[0] == 0
    assert "--install-completion" in alone


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("trian", "'dear' has no command 'trian'. Did you mean 'train'?"),
        ("data show", "'dear data' has no command 'show'."),
        ("retrieve index", "'dear' has no command 'retrieve'."),
        ("ls datasets", "'dear ls' has no command 'datasets'."),
        ("data list --roots .", "'dear data list' has no option --roots. Did you mean '--data-root'?"),
        ("world preview --zoon 2", "'dear world preview' has no option --zoon. Did you mean '--zoom'?"),
        ("world preview --out", "--out needs a value."),
        ("ls settings dear more", "'dear ls settings' takes no further argument, but got 'more'."),
        ("data check", "NAME is missing: give a name."),
        ("world preview", "--out is missing: give a file."),
        (
            "world preview --out a.png --zoom 9",
            "--zoom is 9: give a whole number from 1 to 8.",
        ),
        (
            "world pretrain --out x --steps 0 --seed a",
            "--seed is 'a': give a whole number from 0 on. --steps is 0: give a whole number from 1 on.",
        ),
    ],
)
def test_what_is_typed_wrong_is_one_sentence(dear_, words, sentence):
    assert dear_(*words.split()) == (2, "", f"dear: {sentence}\n")


@pytest.mark.covers("F1")
@pytest.mark.usefixtures("_no_weights")
def test_photographs_need_a_clip_that_is_named(dear_, tmp_path):
    photos = make_photos(tmp_path / "photos", ["ant", "bee"], 2)
    for words in (["train", photos], ["bench", "few-shot", "--data", f"world-blooms,{photos}"]):
        code, _, err = dear_(*words, "--out", tmp_path / "out")
        assert code == 2
        assert "photos needs a CLIP that knows photographs: add --clip ViT-B-16-quickgelu --pretrained openai" in err
        assert err.count("\n") == 1
    with pytest.raises(ConfigError, match="needs a CLIP that knows photographs"):
        dear.fit(photos)
    assert not (tmp_path / "out").exists()


FULL = {"run": ["train", "world-blooms"], "grid": ["bench", "few-shot"], "paper": ["paper", "--mini"]}


@pytest.mark.usefixtures("_no_weights")
@pytest.mark.parametrize("kind", FULL)
def test_a_full_folder_is_refused_before_weights_are_read(dear_, tmp_path, kind):
    (tmp_path / "mine.txt").write_text("keep me")
    code, _, err = dear_(*FULL[kind], "--out", tmp_path)
    assert code == 2
    assert err == f"dear: {tmp_path} already contains other files: choose an empty folder.\n"


def test_lists(dear_):
    out = dear_("ls", "methods")[1].partition("\n\n")[0]
    assert out.splitlines()[0].split() == ["method", "year", "trains", "touches", "needs"]
    assert [line.split()[0] for line in out.splitlines()[1:]] == dear.list_methods()
    out = dear_("ls", "methods", "maple")[1]
    for fact in ("3,555,072", "both towers, layers 1–9", "Khattak et al., MaPLe", "MIT", "sgd, 5 epochs"):
        assert fact in out
    out = dear_("ls", "backbones")[1]
    assert [line.split()[0] for line in out.splitlines()[:2]] == ["backbone", "world"]
    assert any(line.startswith("ViT-B-16-quickgelu ") and "openai" in line for line in out.splitlines())
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert lines["ViT-B-16-SigLIP2-256"].split()[1:] == ["256", "375", "M", "image,", "text", "hf", "webli"]
    assert lines["RN50-quickgelu"].split()[4] == "text"
    out = dear_("ls", "backbones", "rn50-quickgelu")[1]
    assert "features, words, text layers, causal text" in out
    assert re.search(r"methods .*coop.*tip_adapter", out)
    assert "maple" not in out
    assert "llamp" in dear_("ls", "backbones", "ViT-B-16")[1]
    assert "llamp" not in dear_("ls", "backbones", "ViT-B-16-SigLIP")[1]
    (whole, one) = (json.loads(dear_("ls", "backbones", *more, "--json")[1]) for more in ([], ["roberta-ViT-B-32"]))
    assert one in whole
    assert one["can"] == ["features", "words", "image layers"]
    assert one["extra"] == "hf"
    out = dear_("ls", "settings", "dear")[1]
    assert "beta                  0.9      Knowledge anchoring" in out
    assert dear_("ls", "settings", "zero_shot")[1] == "zero_shot has no settings.\n"


def test_every_setting_says_what_it_means():
    for name in dear.list_methods():
        for field in dear.get_method(name).Config.model_fields.values():
            assert field.description
