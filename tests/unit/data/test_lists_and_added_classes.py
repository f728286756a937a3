"""Lists with repeated rows, classes that are added from a folder, and shards whose names say a split."""

from pathlib import Path

import pytest
from PIL import Image

import dear
from dear.data.names import with_class
from dear.data.readers import read_list
from dear.data.shards import splits_of
from dear.data.splits import few_shot
from dear.errors import DataError
from helpers import make_photos


def test_an_image_with_several_rows_is_one_shot(tmp_path):
    """A list with a row per object gave the same photo as several shots."""
    rows = [f"{number}.png,{label}" for number, label in enumerate("aaaabbbb") for _ in range(10)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    found = read_list(tmp_path / "list.csv").train
    assert len(found) == len(set(found)) == 8
    assert len(set(few_shot(found, 4, 1))) == 8


def test_an_added_class_never_replaces_images(tmp_path):
    """Images of the same path were taken from the added folder, with the old label."""
    for name, color in (("photos/1.png", "red"), ("photos/2.png", "red"), ("other/photos/1.png", "blue")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), color).save(tmp_path / name)
    (tmp_path / "list.csv").write_text("path,label\nphotos/1.png,ant\nphotos/2.png,bee\n")
    with pytest.raises(DataError, match=r"list.csv already has an image photos/1.png: rename the folder .*photos\.$"):
        dear.open_dataset(tmp_path / "list.csv", add_class=[tmp_path / "other" / "photos"])


def test_an_added_class_has_an_image_to_train_on(tmp_path):
    """One in four images becomes a test image, by chance also the only one."""
    for split in ("train", "test"):
        make_photos(tmp_path / "photos" / split, ("ant", "bee"), 1)
    data = dear.open_dataset(tmp_path / "photos")
    for number in range(20):
        folder = tmp_path / f"cow{number}"
        folder.mkdir()
        Image.new("RGB", (8, 8)).save(folder / f"{number}.png")
        assert [item.label for item in with_class(data, folder).train].count(2) == 1


def test_shards_that_are_called_testing():
    names = ["train-0.tar", "val-0.tar", "testing-0.tar"]
    assert splits_of([Path(name) for name in names]) == ["train", "val", "test"]
