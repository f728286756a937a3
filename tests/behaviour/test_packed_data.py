"""Training, testing, predicting and searching in tar and Parquet files gives what a folder gives."""

import csv
import os
from pathlib import Path

import pytest
import torch
from PIL import Image

import dear
from dear.retrieval.update import update_index
from dear.roles.sources import images_from, tasks_from
from dear.storage.files import sha256
from needs import needs
from shards import class_folders, files_of, parquet_of, tar_of, webdataset

SMALL = {"method": "linear_probe", "shots": 3, "epochs": 2, "workers": 0}


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> dict[str, Path]:
    needs("pyarrow")
    place = tmp_path_factory.mktemp("sources")
    folder = class_folders(place / "photos")
    return {
        "folder": folder,
        "tar": tar_of(folder, place / "photos.tar"),
        "parquet": parquet_of(folder, place / "photos.parquet"),
    }


def test_a_run_from_a_tar_or_parquet_file_is_the_run_from_the_folder(sources, clip, tmp_path):
    adapters, scores, shots = [], [], []
    for kind, source in sources.items():
        dear.fit(source, clip, out=tmp_path / kind, **SMALL)
        adapters.append(sha256((tmp_path / kind / "adapter_model.safetensors").read_bytes()))
        shots.append((tmp_path / kind / "shots.json").read_text())
        scores.append(dear.evaluate(dear.load(tmp_path / kind, clip=clip), source).scores.accuracy)
    assert len(set(adapters)) == len(set(shots)) == 1
    assert scores[0] == scores[1] == scores[2]


def test_pairs_in_memory_train(sources, clip):
    pairs = [(Image.open(file).convert("RGB"), file.parent.name) for file in files_of(sources["folder"])]
    model = dear.fit(pairs, clip, **SMALL)
    assert list(model.classes.names) == ["ant", "bee", "cat"]


def test_predictions_name_images_in_their_file_and_sort_copies_of_them(sources, clip, tmp_path):
    model = dear.fit(sources["folder"], clip, **SMALL)
    found = {kind: dear.predict(model, source) for kind, source in sources.items()}
    assert len({tuple(one.label for one in some) for some in found.values()}) == 1
    assert found["parquet"][0].image == str(sources["parquet"] / "0" / "000.png")
    again = dear.predict(model, found["tar"][3].image)
    assert again[0].label == found["tar"][3].label
    dear.predict(model, sources["tar"], sort_into=tmp_path / "sorted", out=tmp_path / "labels.csv")
    contents = {file.read_bytes() for file in files_of(tmp_path / "sorted")}
    assert contents == {file.read_bytes() for file in files_of(sources["folder"])}
    assert len(list(csv.reader((tmp_path / "labels.csv").open()))) == 19
    with pytest.raises(dear.DearError, match="can be copied, but not linked"):
        dear.predict(model, sources["tar"], sort_into=tmp_path / "links", link=True)


def test_an_index_of_shards_finds_the_same_and_encodes_nothing_twice(sources, model, tmp_path):
    shards = tmp_path / "shards"
    shards.mkdir()
    first, second = webdataset(sources["folder"], f"{shards}/{{:03d}}.tar", 2)
    of_folder, _ = update_index(model, sources["folder"], tmp_path / "a")
    index, encoded = update_index(model, first, tmp_path / "b")
    assert encoded == 9
    index, encoded = update_index(model, f"{shards}/{{000..001}}.tar", tmp_path / "b")
    assert (encoded, len(index)) == (9, 18)
    assert update_index(model, shards, tmp_path / "b")[1] == 0
    by_name = {"/".join(stamp.path.split("/")[-2:]): row for row, stamp in enumerate(index.images)}
    order = [by_name[stamp.path] for stamp in of_folder.images]
    for kind in index.kinds:
        assert torch.allclose(index.features(kind)[order], of_folder.features(kind), atol=1e-3)
    os.utime(second)  # touched: hashed, not encoded
    assert update_index(model, shards, tmp_path / "b")[1] == 0
    hits = dear.search(model, index.path(0), index=tmp_path / "b", top_k=3)
    assert hits[0].path == index.path(0)
    assert hits[0].path.parent.parent.name == "000.tar"
    second.unlink()
    assert len(update_index(model, shards, tmp_path / "b")[0]) == 9


def test_an_index_of_parquet_rows(sources, model, tmp_path):
    index, encoded = update_index(model, sources["parquet"], tmp_path / "a")
    assert (encoded, index.path(5)) == (18, sources["parquet"].resolve() / "5" / "005.png")
    assert update_index(model, sources["parquet"], tmp_path / "a")[1] == 0
    dear.search(model, index.path(5), index=tmp_path / "a", sheet=tmp_path / "sheet.png")
    assert Image.open(tmp_path / "sheet.png").width > 100


def test_roles_are_looked_for_in_training_shards_only(sources, tmp_path):
    folder = sources["folder"]
    parquet_of(folder, tmp_path / "train-0.parquet", files=files_of(folder)[::2])
    parquet_of(folder, tmp_path / "test-0.parquet", files=files_of(folder)[1::2])
    assert {name.split("/")[0] for name in images_from(str(tmp_path)).names} == {"train-0.parquet"}
    images, (task,) = tasks_from(str(sources["tar"]), "a {}.", 9)
    assert (len(images), task.labels_N.tolist()) == (9, [0, 0, 0, 1, 1, 1, 2, 2, 2])


def test_data_check_reports_damaged_images_in_shards(sources, tmp_path):
    folder = class_folders(tmp_path / "photos")
    files_of(folder)[4].write_bytes(b"no image")
    found = dear.check_data(parquet_of(folder, tmp_path / "p.parquet"))
    assert (found.classes, found.counts["train"]) == (3, 18)
    assert "004.png cannot be read: it is damaged or not an image" in found.problems[0]
