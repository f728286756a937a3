"""What an update of an index refuses to replace, and what it records although no image is new."""

import json
import os

import pytest

import dear
from dear.errors import NewerFormatError, OverwriteError
from dear.retrieval.index import INDEX, Writer, read_index
from helpers import make_photos
from shards import class_folders, files_of, tar_of, webdataset


@pytest.fixture
def by_clip(clip, roles):
    """Index images by the whole embedding of the tiny CLIP."""
    return lambda source, out, **how: dear.index_images(source, out, clip=clip, roles=roles, kinds=["cls"], **how)


@pytest.fixture
def shards(tmp_path):
    """Three tar files of six photos each."""
    (tmp_path / "shards").mkdir()
    webdataset(class_folders(tmp_path / "photos"), f"{tmp_path}/shards/{{}}.tar", 3)
    return tmp_path / "shards"


@pytest.mark.covers("D5")
def test_shards_do_not_silently_replace_others_of_the_same_folder(shards, by_clip, tmp_path):
    out = tmp_path / "index"
    by_clip(shards / "{0,1}.tar", out)
    before = (out / INDEX).read_bytes()
    with pytest.raises(OverwriteError, match=r"is the index of 1\.tar in .*: name all shards together.*overwrite=True"):
        by_clip(shards / "2.tar", out)
    assert (out / INDEX).read_bytes() == before
    index = by_clip(shards / "{0,1,2}.tar", out)
    assert (len(index), index.encoded) == (18, 6)
    index = by_clip(shards / "{1,2}.tar", out)
    assert (len(index), index.encoded) == (12, 0)
    with pytest.raises(OverwriteError, match="name all shards together"):
        by_clip(shards / "0.tar", out)  # which the index once had
    assert len(by_clip(shards / "0.tar", out, overwrite=True)) == 6


def test_a_retrained_adapter_does_not_replace_other_shards_either(shards, model, clip, roles, tmp_path):
    dear.index_images(shards / "0.tar", tmp_path / "index", run=model)
    with pytest.raises(OverwriteError, match="name all shards together"):
        dear.index_images(shards / "1.tar", tmp_path / "index", run=dear.DeAR(clip, roles.all_mixed()))


def test_a_folder_and_a_shard_in_it_do_not_replace_each_other(by_clip, tmp_path):
    photos = class_folders(tmp_path / "photos")
    by_clip(photos, tmp_path / "index")
    tar_of(photos / "ant", photos / "ant.tar")
    with pytest.raises(OverwriteError, match="but not in its shards, and none of its images is listed"):
        by_clip(photos / "ant.tar", tmp_path / "index")
    by_clip(photos / "ant.tar", tmp_path / "other")
    with pytest.raises(OverwriteError, match=r"is the index of ant\.tar"):
        by_clip(photos, tmp_path / "other")
    for file in files_of(photos / "ant"):
        file.unlink()
    assert len(by_clip(photos, tmp_path / "index")) == 12


def test_a_moved_run_is_recorded_although_no_image_is_new(model, tmp_path):
    photos = make_photos(tmp_path / "photos", ["ant"], 3)
    run, moved, out = tmp_path / "run", tmp_path / "moved", tmp_path / "index"
    model.save_pretrained(run)
    dear.index_images(photos, out, run=run)
    run.rename(moved)
    index = dear.index_images(photos, out, run=moved)
    assert index.encoded == 0
    assert index.manifest.made_by == read_index(out).manifest.made_by == {"run": str(moved.resolve())}
    assert len(dear.search(out, photos / "ant" / "0.png")) == 3
    written = (out / INDEX).stat().st_mtime_ns
    dear.index_images(photos, out, run=moved)
    assert (out / INDEX).stat().st_mtime_ns == written


def test_a_run_does_not_replace_the_index_of_a_clip(model, by_clip, tmp_path):
    """The index by heads was gone without a word; the other way round it was refused."""
    photos = make_photos(tmp_path / "photos", ["ant"], 3)
    by_clip(photos, tmp_path / "index")
    with pytest.raises(OverwriteError, match="was made by another CLIP"):
        dear.index_images(photos, tmp_path / "index", run=model)
    assert dear.index_images(photos, tmp_path / "index", run=model, overwrite=True).encoded == 3


def test_an_index_of_a_newer_version_is_not_called_damaged(by_clip, tmp_path):
    """The advice was to make it again, which takes hours."""
    by_clip(make_photos(tmp_path / "photos", ["ant"], 3), tmp_path / "index")
    file = tmp_path / "index" / INDEX
    file.write_text(json.dumps({**json.loads(file.read_text()), "format_version": 99}))
    with pytest.raises(NewerFormatError, match="format 99"):
        read_index(tmp_path / "index")


def test_touched_photos_are_taken_over_a_few_at_a_time(by_clip, tmp_path, monkeypatch):
    """All of a million photos at once took tens of gigabytes, and nothing was saved until the end."""
    photos = make_photos(tmp_path / "photos", ["ant"], 7)
    before = by_clip(photos, tmp_path / "index")
    for number, file in enumerate(files_of(photos)):
        os.utime(file, (number + 9, number + 9))
    monkeypatch.setattr("dear.retrieval.update.WRITE_EVERY", 2)
    rows, append = [], Writer.append
    monkeypatch.setattr(Writer, "append", lambda writer, *parts: (rows.append(len(parts[1])), append(writer, *parts)))
    after = by_clip(photos, tmp_path / "index")
    assert (after.encoded, rows) == (0, [2, 2, 2, 1])
    assert len(after) == len(before) == 7
    assert dear.search(tmp_path / "index", photos / "ant" / "3.png")[0].path.name == "3.png"
