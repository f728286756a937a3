"""Versioned JSON files are read in one way, and whatever is wrong with one is one sentence."""

import json

import pytest

from dear.errors import DataError, ForeignArtefactError, NewerFormatError
from dear.storage import documents
from dear.storage.documents import Document, OpenRecord, Record


class Thing(Record):
    size: int


class Things(Document):
    format = "things"
    version = 3
    oldest = 2
    noun = "list of things"
    error = DataError

    items: list[Thing]
    note: str = ""


class SealedThings(Things):
    sealed = True
    foreign, newer = ForeignArtefactError, NewerFormatError


class OpenThings(Document, OpenRecord):
    format = "things"
    version = 1
    noun = "thing"
    error = DataError


def text(**entries) -> str:
    return json.dumps({"format": "things", "format_version": 3, "items": [], **entries})


def test_what_was_written_is_read(tmp_path):
    things = Things(items=[Thing(size=1), Thing(size=2)], note="größe")
    things.write(tmp_path / "things.json")
    data = (tmp_path / "things.json").read_bytes()
    assert Things.read(tmp_path / "things.json") == things
    assert data.decode() == things.to_json() == Things.from_json(data).to_json()
    assert data.startswith(b'{\n "format": "things",\n "format_version": 3,\n "items": [')
    assert data.endswith(b"}\n")
    assert "größe".encode() in data


def test_names_of_files_need_not_be_utf_8():
    name = b"\xff.png".decode("utf-8", "surrogateescape")
    stored = documents.as_bytes(OpenThings.encode({"name": name}))
    assert OpenThings.entries(stored, where="x") == {"name": name}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"format": "things", "format": "things"}', "it is not valid JSON (the key 'format' occurs twice)."),
        ('{"format": "things", "x": {"b": 1, "a": 1, "a": 2}}', "it is not valid JSON (the key 'a' occurs twice)."),
        ('{"format": "things", "x": NaN}', "it is not valid JSON (NaN is not a number)."),
        ("", "it is not valid JSON ("),
        ("{'format': 'things'}", "it is not valid JSON ("),
        (b"\xff\xfe\x00", "it is not valid JSON ("),
        ("[" * 100_000, "it is not valid JSON ("),
        ("[]", "its 'format' is not 'things'."),
        ("null", "its 'format' is not 'things'."),
        ('{"format": "people", "format_version": 1}', "its 'format' is not 'things'."),
        ('{"format_version": 1}', "its 'format' is not 'things'."),
        ('{"format": "things"}', "its 'format_version' is not a number."),
        ('{"format": "things", "format_version": "1"}', "its 'format_version' is not a number."),
        ('{"format": "things", "format_version": true}', "its 'format_version' is not a number."),
        ('{"format": "things", "format_version": 0}', "its 'format_version' is not a number."),
    ],
)
def test_what_is_not_a_document_is_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "things.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as error:
        Things.read(path)
    assert str(error.value).startswith(f"{path} is not a list of things: {sentence}")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300 + len(str(tmp_path))


def test_all_wrong_entries_are_reported_at_once():
    with pytest.raises(DataError) as error:
        Things.from_json(text(items=[{"size": "1"}, {"size": 1, "x": 2}], note=3), where="x.json")
    assert str(error.value) == (
        "x.json is not a valid list of things. items.0.size is '1': input should be a valid integer. There is no "
        "setting 'items.1.x'. note is 3: input should be a valid string."
    )


def test_versions():
    assert Things.from_json(text(format_version=2)).items == []
    with pytest.raises(DataError, match=r"^x has format 1, which is older than version 0\.2 and no longer read\.$"):
        Things.from_json(text(format_version=1), where="x")
    with pytest.raises(DataError, match=r"^x has format 4, this version reads up to 3: upgrade dear-vlm\.$"):
        Things.from_json(text(format_version=4), where="x")
    with pytest.raises(NewerFormatError, match="upgrade dear-vlm"):
        SealedThings.from_json(text(format_version=4))
    with pytest.raises(ForeignArtefactError, match="its 'format' is not"):
        SealedThings.from_json("{}")


def test_a_missing_file_is_left_to_the_caller(tmp_path):
    with pytest.raises(FileNotFoundError):
        Things.read(tmp_path / "none.json")


def test_only_regular_files_are_read(tmp_path):
    with pytest.raises((DataError, IsADirectoryError)):
        Things.read(tmp_path)


def test_numbers_that_json_does_not_know_are_not_written():
    with pytest.raises(ValueError, match="JSON compliant"):
        OpenThings.encode({"x": float("nan")})


def test_further_entries_of_an_open_document_are_kept():
    found = OpenThings.from_json('{"format": "things", "format_version": 1, "b": [1], "a": null}')
    assert found.model_dump() == {"b": [1], "a": None}
    assert list(json.loads(found.to_json())) == ["format", "format_version", "b", "a"]


def test_a_changed_sealed_document_is_refused():
    whole = SealedThings(items=[Thing(size=1)]).to_json()
    assert SealedThings.from_json(whole).items == [Thing(size=1)]
    for changed in (whole.replace('"size": 1', '"size": 2'), text()):
        with pytest.raises(DataError, match=r"^x is not a valid list of things\. It was changed since"):
            SealedThings.from_json(changed, where="x")


def test_a_seal_covers_everything_but_itself():
    content = {"format": "things", "format_version": 1, "items": [1, 2]}
    signed = documents.sealed(content)
    assert signed[documents.SEAL] == documents.seal(signed) == documents.seal(content)
    assert documents.seal(dict(reversed(content.items()))) == documents.seal(content)
    assert documents.sealed(signed) == signed
    changed = [{**content, "items": [1, 3]}, {**content, "format_version": 2}, {**content, "more": None}]
    changed.append({name: value for name, value in content.items() if name != "items"})
    assert documents.seal(content) not in [documents.seal(one) for one in changed]
    again = json.loads(documents.to_json(signed))
    assert documents.seal(again) == again[documents.SEAL]
