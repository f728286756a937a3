"""Descriptions of classes: read, refused in one sentence, carried by data sets, class lists, adapters, fingerprints."""

import json
import os
from dataclasses import replace

import pytest

import dear
from dear.data.descriptions import LARGEST, read_descriptions, with_descriptions
from dear.data.prompts import class_list
from dear.engine.job import describe, fingerprint
from dear.engine.run import run_job
from dear.errors import DataError
from helpers import build
from toys import CLASSES, Toy

TOLD = {name: [f"This is a {name}.", f"The {name} stands alone."] for name in CLASSES}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "told.json"
    path.write_text(json.dumps(TOLD), encoding="utf-8")
    return path


def test_read_from_a_file_and_from_a_mapping(file):
    expected = {name: tuple(sentences) for name, sentences in TOLD.items()}
    assert read_descriptions(file) == read_descriptions(TOLD) == expected
    assert read_descriptions({"red_thing": ["It is red."]}) == {"red thing": ("It is red.",)}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[1]", "is not a file of class descriptions"),
        ("{}", "is not a file of class descriptions"),
        ("{", "not valid JSON"),
        ('{"a": ["x"], "a": ["y"]}', "occurs twice"),
        ('{"a b": ["x"], "a_b": ["y"]}', "describes the class 'a b' twice"),
        ('{"a": "x"}', "'a' needs a list"),
        ('{"a": []}', "'a' needs a list of 1 to 1000 sentences"),
        ('{"a": ["x", 3]}', "3, in the list of 'a', is not a sentence"),
        ('{"a": ["  "]}', "is not a sentence"),
        ('{"a": ["<end_of_text>"]}', "is not a sentence"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_refused_in_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "told.json"
    path.write_text(content)
    with pytest.raises(DataError, match=sentence) as error:
        read_descriptions(path)
    assert "\n" not in str(error.value)


def test_files_that_are_none(tmp_path):
    with pytest.raises(DataError, match="There is no file"):
        read_descriptions(tmp_path / "none.json")
    with pytest.raises(DataError, match="cannot be read"):
        read_descriptions(tmp_path)
    huge = tmp_path / "huge.json"
    with huge.open("wb") as out:
        out.truncate(LARGEST + 1)
    with pytest.raises(DataError, match="cannot be read"):
        read_descriptions(huge)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="cannot be read"):
        read_descriptions(tmp_path / "pipe")


def test_all_classes_or_none(file):
    dataset = Toy().dataset
    assert with_descriptions(dataset, None) is dataset
    assert with_descriptions(dataset, file).classes().sentences()[1] == tuple(TOLD["green thing"])
    some = {"red thing": ["It is red."], "grean thing": ["It is green."]}
    with pytest.raises(DataError, match=r"lack 2 of the 3 classes of toy, such as 'green thing'.*'grean thing'"):
        with_descriptions(dataset, some)
    with pytest.raises(DataError, match="lack 3 of the 3"):
        with_descriptions(dataset, {"cat": ["It purrs."]})
    assert with_descriptions(dataset, {"cat": ["It purrs."]}, required=False) is dataset


def test_names_with_underscores_are_described():
    """Caltech101 has classes such as car_side; either spelling in the file describes them."""
    dataset = Toy().dataset
    named = replace(dataset, class_names=tuple(name.replace(" ", "_") for name in dataset.class_names))
    for told in (TOLD, {name.replace(" ", "_"): sentences for name, sentences in TOLD.items()}):
        found = with_descriptions(named, told)
        assert found.descriptions["green_thing"] == tuple(TOLD["green thing"])
        assert found.classes().sentences()[1] == tuple(TOLD["green thing"])


def test_without_any_the_prompt_is_the_sentence():
    assert class_list(["cat", "dog"], "a {}.").sentences() == [("a cat.",), ("a dog.",)]
    told = class_list(["cat", "dog"], "a {}.", descriptions={"cat": ["It purrs."], "cow": ["It moos."]})
    assert told.sentences() == [("It purrs.",), ("a dog.",)]
    assert told.descriptions == {"cat": ("It purrs.",)}


def test_kept_with_the_classes_of_an_adapter(tiny_clips, tmp_path):
    clip = tiny_clips["plain"]
    model = build("zero_shot", clip).for_classes(["cat", "dog"], descriptions={"cat": ["It purrs."]})
    plain = build("zero_shot", clip, ["cat", "dog"])
    assert "descriptions" not in (plain.save_pretrained(tmp_path / "plain") / "adapter_config.json").read_text()
    loaded = dear.load(model.save_pretrained(tmp_path / "a"), clip=clip)
    assert loaded.classes.descriptions == {"cat": ("It purrs.",)}
    assert loaded.for_classes(["cow", "cat"]).classes.descriptions == {"cat": ("It purrs.",)}
    assert loaded.for_classes(["cow"], descriptions={"cow": ["It moos."]}).classes.sentences() == [("It moos.",)]


def test_part_of_the_fingerprint_by_content(tiny_clips, file):
    clip, job = tiny_clips["plain"], Toy().job(method="zero_shot")

    def mark(descriptions):
        told = replace(job, dataset=with_descriptions(job.dataset, descriptions))
        return fingerprint(describe(told, told.build(clip)))

    assert mark(file) == mark(TOLD) != mark(None)
    assert mark({**TOLD, "red thing": ["Another."]}) != mark(TOLD)


def test_a_run_keeps_them(tiny_clips, file, tmp_path):
    job = Toy().job(method="zero_shot")
    run_job(
        replace(job, dataset=with_descriptions(job.dataset, file)), tiny_clips["plain"], tmp_path / "run", workers=0
    )
    assert dear.load(tmp_path / "run", clip=tiny_clips["plain"]).classes.descriptions.keys() == TOLD.keys()
