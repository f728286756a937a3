"""Images in memory as data sets: pairs, mappings, columns, and what torchvision and datasets look like."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from dear.data.open import open_dataset
from dear.errors import DataError, ImageError
from dear.options.parts import Fit
from dear.workflows.train import train_run

COLORS = ("red", "green", "blue", "white")


def picture(number: int) -> Image.Image:
    return Image.new("RGB", (8, 8), COLORS[number % 4])


class Torchvision:
    """A map-style data set with `classes` and `targets`, whose images are decoded when asked for."""

    classes = ("ant", "bee")
    targets = (0, 1, 1, 0)

    def __init__(self):
        self.decoded = []

    def __len__(self):
        return 4

    def __getitem__(self, number):
        self.decoded.append(number)
        return picture(number), self.targets[number]


class Datasets:
    """As a data set of `datasets`: columns, features with names, rows as mappings."""

    column_names = ("image", "label")
    features = {"image": None, "label": SimpleNamespace(names=["ant", "bee"])}  # noqa: RUF012

    def __len__(self):
        return 4

    def __getitem__(self, key):
        return [0, 1, 1, 0] if key == "label" else {"image": picture(key), "label": (0, 1, 1, 0)[key]}


@pytest.mark.parametrize(
    "data",
    [
        [(picture(n), label) for n, label in enumerate(("ant", "bee", "bee", "ant"))],
        [{"image": picture(n), "label": label} for n, label in enumerate(("ant", "bee", "bee", "ant"))],
        {"image": [picture(n) for n in range(4)], "label": ["ant", "bee", "bee", "ant"]},
        Torchvision(),
        Datasets(),
    ],
    ids=["pairs", "mappings", "columns", "torchvision", "datasets"],
)
def test_all_kinds_are_the_same_data_set(data):
    found = open_dataset(data)
    assert found.class_names == ("ant", "bee")
    assert [tuple(item) for item in found.train] == [("train/0", 0), ("train/3", 0), ("train/1", 1), ("train/2", 1)]
    assert found.open("train/2").getpixel((0, 0)) == (0, 0, 255)
    assert found.content_of("train/1") != found.content_of("train/2")
    assert (found.val, found.test, found.source) == ((), (), "")


def test_labels_are_listed_without_decoding_and_splits_have_names():
    data = Torchvision()
    found = open_dataset({"train": data, "test": Torchvision()})
    assert (len(found.train), len(found.test), data.decoded) == (4, 4, [])
    found.open("train/3")
    assert data.decoded == [3]


def test_numbers_without_names_and_other_kinds_of_images():
    pixels = np.zeros((4, 4, 3), np.uint8)
    found = open_dataset([(pixels, np.int64(10)), (torch.zeros(3, 4, 4), torch.tensor(2)), ({"bytes": b"x"}, 2)])
    assert found.class_names == ("2", "10")
    assert found.open("train/0").size == found.open("train/1").size == (4, 4)
    with pytest.raises(ImageError, match="damaged or not an image"):
        found.open("train/2")
    assert open_dataset([(pixels, 0), (pixels, 1)], names={"0": "ant", "1": "bee"}).class_names == ("ant", "bee")


def test_a_path_in_a_sequence_is_never_opened(tmp_path):
    picture(0).save(tmp_path / "a.png")
    found = open_dataset([(str(tmp_path / "a.png"), "a"), (tmp_path / "a.png", "b"), ({"path": "a.png"}, "b")])
    for item in found.train:
        with pytest.raises(ImageError, match=r"is a path, which is never opened|is of type NoneType"):
            found.open(item.id)
        assert found.content_of(item.id) == "missing"


class Damaged(Torchvision):
    """A data set of which one image cannot be decoded."""

    targets = (0, 0, 0, 1, 1, 1)
    error: Exception = OSError("image file is truncated")

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, number):
        if number == 1:
            raise self.error
        return super().__getitem__(number)


@pytest.mark.parametrize("error", [OSError("image file\nis truncated"), SyntaxError("broken PNG file"), KeyError(1)])
def test_a_damaged_image_is_an_image_error(error):
    data = Damaged()
    data.error = error
    found = open_dataset(data)
    with pytest.raises(ImageError, match=rf"^train/1 cannot be read \({type(error).__name__}: .*\)\.$"):
        found.open("train/1")
    assert found.content_of("train/1") == "missing"
    assert found.open("train/2").size == (8, 8)


def test_training_leaves_a_damaged_image_out_and_reports_it(clip, tmp_path):
    """It ended in an OSError."""
    options = Fit(
        data="images", method="tip_adapter", out=tmp_path / "run", shots=3, test_share=0, cached_views=2, threads=1
    )
    trained = train_run(options, data=open_dataset(Damaged()), clip=clip)
    assert trained.problems == ("train/1 cannot be read (OSError: image file is truncated).",)
    assert trained.model.required_classes().names == ("ant", "bee")


def test_an_unreadable_row_without_labels_elsewhere_is_one_sentence():
    with pytest.raises(DataError, match=r"label of number 1 .*\(OSError: image file is truncated\): leave it out"):
        open_dataset({"train": Pairs(Damaged())})


class Pairs:
    """A data set without `targets`."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, number):
        return self.data[number]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], "The sequence is empty"),
        (7, "The data set is of type int"),
        (iter([]), "The data set is of type list_iterator"),
        ([picture(0)], "Number 0 of the sequence is of type Image: give pairs"),
        ([(picture(0), 0.5), (picture(1), 1)], "Label 0 is of type float"),
        ([(picture(0), "a"), (picture(1), 1)], "Some labels are names and others are numbers"),
        ([(picture(0), "a")], "images of 1 class"),
        ([(picture(0), np.array([0, 1]))], "Label 0 is of type ndarray and not a single number: give the number"),
        ([(picture(0), 0), (picture(1), torch.tensor([0, 1]))], "Label 1 is of type Tensor and not a single number"),
        ({"image": iter([1]), "label": [1]}, "The column 'image' is of type list_iterator: give it as a list"),
        ({"image": [1], "label": iter([1])}, "The column 'label' is of type list_iterator: give it as a list"),
        ({"image": [1], "label": [1, 2]}, "There are 1 images, but 2 labels"),
        ({"image": [1]}, "The mapping has no 'image' and 'label'"),
        ([(picture(0), "a"), (picture(1), "A")], "The labels 'a' and 'A'|The labels 'A' and 'a'"),
    ],
)
def test_what_is_wrong_is_one_sentence(data, sentence):
    with pytest.raises(DataError, match=sentence):
        open_dataset(data)
