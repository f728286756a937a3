"""What a query means: an image, words, or a mistake that is reported instead of searched for."""

from pathlib import Path

import pytest

import dear
from dear.errors import ConfigError, DataError
from dear.retrieval.search import asked
from helpers import make_photos


@pytest.fixture
def index(clip, roles, tmp_path):
    photos = make_photos(tmp_path / "photos", ["ant"], 4)
    return dear.index_images(photos, tmp_path / "index", clip=clip, roles=roles)


@pytest.mark.parametrize("query", ["gone/photo.heic", "gone/photo.CR2", "gone/photo.jpg", Path("gone/photo")])
def test_a_missing_image_is_not_searched_for_as_words(query):
    with pytest.raises(ConfigError, match=r"^There is no image gone/photo.*: check the path"):
        asked(query)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_is_not_searched_for_as_words(tmp_path, monkeypatch, kind):
    (tmp_path / "ant").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^ant is a folder: give one of its images, or .* with text='ant'\.$"):
        asked(kind("ant"))
    assert asked(None, text="ant").text == "ant"
    assert asked("an ant").text == "an ant"
    with pytest.raises(ConfigError, match="The text to look for is empty"):
        asked("")


def test_a_part_that_is_named_twice_is_left_out_once(clip, index):
    found = [
        dear.search(clip, index.folder / "ant" / "0.png", index=index.out, without=names)
        for names in (["color"], ["color", "color"])
    ]
    assert found[0] == found[1]


def test_an_index_without_images_is_one_sentence(clip, roles, index, tmp_path):
    query = (index.folder / "ant" / "0.png").rename(tmp_path / "query.png")
    for path in (index.folder / "ant").iterdir():
        path.write_bytes(b"not an image")
    with pytest.raises(DataError, match="None of the images"):
        dear.index_images(index.folder, index.out, clip=clip, roles=roles)
    for how in ({"query": query}, {"query": query, "by": "color"}, {"query": "red", "by": "color"}):
        with pytest.raises(DataError, match=r"has no images: add some to .*photos, and index it again\.$"):
            dear.search(clip, index=index.out, **how)
