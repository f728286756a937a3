"""Options of commands around a run: bad values in one sentence, typed or in Python, and defaults that agree."""

import inspect

import pytest

import dear
from dear.errors import ConfigError
from dear.options import commands, tools
from dear.options.fields import as_words
from dear.options.reading import options_of, read

SAME = {
    "evaluate": commands.Evaluate,
    "explain": commands.Explain,
    "report": commands.Report,
    "index_images": commands.IndexImages,
    "search": commands.Search,
    "discover_roles": tools.DiscoverRoles,
    "ablate_roles": tools.AblateRoles,
    "show_roles": tools.ShowRoles,
    "check_data": tools.CheckData,
    "list_datasets": tools.ListData,
    "convert": tools.Convert,
    "sync": tools.Sync,
    "pretrain_world": tools.PretrainWorld,
    "preview_world": tools.PreviewWorld,
    "score_world": tools.ScoreWorld,
}
"""Python functions, and the options of the command that does the same."""
ONLY_TYPED = {"json", "all", "photos", "paths", "name", "clip", "pretrained", "run", "not", "swap", "index"}
"""Options that Python has no need of, or spells another way."""


@pytest.mark.parametrize("name", SAME)
def test_defaults_are_the_same_in_python(name):
    parameters = inspect.signature(getattr(dear, name)).parameters
    for option, one in options_of(SAME[name]).items():
        if option in ONLY_TYPED:
            continue
        assert option in parameters, option
        if not one.field.is_required():
            assert parameters[option].default == one.field.default, option


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("eval", "RUN is missing: give the folder of a run."),
        ("eval run --half bas", "--half is 'bas': give all, base or novel. Did you mean 'base'?"),
        ("eval run --batch-size 0", "--batch-size is 0: give a whole number from 1 on."),
        ("eval run --workers 257", "--workers is 257: give a whole number from 0 to 256."),
        ("predict run", "IMAGE... is missing: give images, or folders of images."),
        ("predict run a.png -k none", "--top-k is 'none': give a whole number from 1 on."),
        ("predict run a.png --link", "--link says how images are put into folders: name one with --sort-into FOLDER."),
        (
            "predict run a.png --classes a --names b",
            "--classes and --names both say which classes there are: choose one of them.",
        ),
        (
            "explain a.png",
            "1 path(s) instead of 2: give 'dear explain RUN IMAGE', or 'dear explain IMAGE --clip NAME --classes "
            "NAME,NAME'.",
        ),
        ("search find index --min-score high", "--min-score is 'high': give a number, or auto for the proposed score."),
        ("search find index a.png --swap color", "--swap is ['color']: give NAME=IMAGE, as in color=other.jpg."),
        ("roles ablate --clip world --roles x --images y --draws 0", "--draws is 0: give a whole number from 1 on."),
        (
            "roles discover --clip world --images x --out y --rule majority --max-images 1",
            "--rule is 'majority': give dominance or quantile. --max-images is 1: give a whole number from 2 on.",
        ),
    ],
)
def test_a_bad_value_is_one_sentence(dear_, words, sentence):
    assert dear_(*words.split()) == (2, "", f"dear: {sentence}\n")


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("evaluate", {"run": "run", "workers": 900}, "workers is 900: give a whole number from 0 to 256."),
        ("evaluate", {"run": "run", "threads": True}, "threads is True: give a whole number from 1 to 1024."),
        ("predict", {"run": "run", "images": "a.png", "top_k": 0}, "top_k is 0: give a whole number from 1 on."),
        ("report", {"run": "run", "workers": -1}, "workers is -1: give a whole number from 0 to 256."),
        ("index_images", {"folder": "x", "batch_size": "8"}, "batch_size is '8': give a whole number from 1 on."),
        ("preview_world", {"out": "x.png", "zoom": 9}, "zoom is 9: give a whole number from 1 to 8."),
        (
            "discover_roles",
            {"clip": "world", "images": "x", "out": "y", "rule": "majority"},
            "rule is 'majority': give dominance or quantile.",
        ),
    ],
)
def test_ranges_hold_in_python(name, arguments, sentence):
    with pytest.raises(ConfigError) as error:
        getattr(dear, name)(**arguments)
    assert str(error.value) == sentence


def test_repeated_options_and_pairs():
    found = read(commands.Search, {"index": "i", "not": ["color", "shape"], "swap": ["color=a,b.png"]})
    assert (found.without, found.swap) == (("color", "shape"), {"color": "a,b.png"})
    assert read(commands.Search, {"index": "i", "min_score": "0.5"}).min_score == 0.5
    assert read(commands.Search, {"index": "i", "min_score": "auto"}).min_score == "auto"
    assert read(commands.Predict, {"run": "r", "images": ["a,b.png"]}).images[0].name == "a,b.png"
    assert as_words("007, cat") == ("007", "cat")


def test_python_predicts_as_the_model_does(model, tmp_path, images):
    from helpers import make_photos

    photos = make_photos(tmp_path / "photos", ["ant", "bee"], 2)
    paths = sorted(photos.rglob("*.png"))
    found = dear.predict(model, photos, ["ant", "bee"], out=tmp_path / "labels.csv", sort_into=tmp_path / "sorted")
    assert found == model.predict(paths, ["ant", "bee"], top_k=3)
    assert (tmp_path / "labels.csv").read_text().count("\n") == 5
    assert len(list((tmp_path / "sorted").rglob("*.png"))) == 4
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    assert dear.predict(model, paths[0], names=tmp_path / "names.txt") == found[:1]
    with pytest.raises(dear.errors.ImageError, match="none"):
        dear.predict(model, [paths[0], tmp_path / "none.png"])
    with pytest.warns(dear.errors.DearWarning, match="1 images are left out"):
        assert len(dear.predict(model, [paths[0], tmp_path / "none.png"], on_error="skip")) == 1
