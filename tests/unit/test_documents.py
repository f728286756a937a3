"""Every JSON document of ours is read in one way, and whatever is wrong with it is one sentence."""

import json

import pytest

from dear.errors import DataError, NewerFormatError
from dear.storage import documents

KIND = {"what": "a list of things", "error": DataError}
FORM = {"form": "things", "newest": 2}


def read(tmp_path, text):
    path = tmp_path / "things.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return documents.read(path, **KIND, **FORM)


def test_what_was_written_is_read(tmp_path):
    content = {"format": "things", "format_version": 1, "größe": [1, 2.5, None, {"a": True}]}
    data = documents.to_json(content)
    assert data == documents.to_json(dict(content))
    assert data.endswith(b"\n")
    assert "größe".encode() in data
    assert read(tmp_path, data) == (content, 1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"format": "things", "format": "things"}', r"it is not valid JSON (the key 'format' stands twice)."),
        ('{"format": "things", "x": {"b": 1, "a": 1, "a": 2}}', r"it is not valid JSON (the key 'a' stands twice)."),
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
def test_what_is_no_document_is_one_sentence(tmp_path, text, sentence):
    with pytest.raises(DataError) as error:
        read(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path / 'things.json'} is not a list of things: {sentence}")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300 + len(str(tmp_path))


def test_a_newer_version_says_what_to_do(tmp_path):
    text = '{"format": "things", "format_version": 3}'
    with pytest.raises(DataError, match=r"things\.json has format 3, this version reads up to 2: upgrade dear-vlm\.$"):
        read(tmp_path, text)
    with pytest.raises(NewerFormatError, match="upgrade dear-vlm"):
        documents.check(json.loads(text), where="x", **KIND, **FORM, newer=NewerFormatError)


def test_a_missing_file_is_the_callers_business(tmp_path):
    with pytest.raises(FileNotFoundError):
        documents.read(tmp_path / "none.json", **KIND, **FORM)


def test_numbers_that_json_does_not_know_are_not_written():
    with pytest.raises(ValueError, match="JSON compliant"):
        documents.to_json({"x": float("nan")})


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
