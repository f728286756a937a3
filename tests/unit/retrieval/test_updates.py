"""What an update of an index refuses to replace, and what it records although no image is new."""

import pytest

import dear
from dear.errors import OverwriteError
from dear.retrieval.index import INDEX, read_index
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
