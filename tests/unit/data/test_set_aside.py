"""Images that are set aside for the test in a data set without a test split."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear.data.dataset import Dataset, Item
from dear.data.splits import few_shot, set_aside, training_shots
from dear.engine.job import make_job
from dear.engine.workspace import notes
from dear.errors import DataError
from dear.evaluation.test_data import items_to_test
from dear.methods.registry import get_method, list_methods

pytestmark = pytest.mark.covers("N3")


def dataset(*sizes, tested=0):
    """A class with each number of training images, and `tested` test images of each."""
    train = tuple(Item(f"c{label}/{i}.jpg", label) for label, size in enumerate(sizes) for i in range(size))
    test = tuple(Item(f"test/c{label}/{i}.jpg", label) for label in range(len(sizes)) for i in range(tested))
    return Dataset("photos", tuple(f"c{i}" for i in range(len(sizes))), "a photo of a {}.", train, (), test, open=None)


@pytest.mark.parametrize(
    ("images", "share", "expected"),
    [
        *[(1, 0.25, 0), (3, 0.25, 0), (4, 0.25, 2), (8, 0.25, 2), (12, 0.25, 3), (20, 0.25, 5), (12, 0.0, 0)],
        *[(4, 0.9, 3), (4, 0.999, 3), (12, 0.5, 6), (12, 0.01, 2), (200, 0.9999999999999999, 199)],
    ],
)
def test_a_quarter_at_least_two_and_none_of_three(images, share, expected):
    assert set_aside(images, share) == expected


@given(st.lists(st.integers(1, 40), min_size=2, max_size=4), st.integers(1, 20), st.integers(0, 3), st.floats(0, 0.99))
def test_a_class_with_enough_images_is_sampled_as_without_a_share(sizes, shots, seed, share):
    data = dataset(*sizes)
    plain, divided = few_shot(data.train, shots, seed), training_shots(data, shots, seed, share)
    assert set(divided) <= set(plain)
    counts = Counter(item.label for item in divided)
    for label, size in enumerate(sizes):
        reserve = set_aside(size, share)
        assert counts[label] == min(shots, size - reserve) >= 1
        if size >= shots + reserve:
            assert [one for one in plain if one.label == label] == [one for one in divided if one.label == label]


def test_with_a_test_split_nothing_is_set_aside():
    data = dataset(12, 3, tested=2)
    assert set(training_shots(data, 16, 1, 0.25)) == set(data.train)
    (note,) = notes(make_job(data, shots=16, seed=1, test_share=0.25))
    assert note == "2 class(es) have fewer than 16 images, such as 'c0': all of them are used."


@pytest.mark.parametrize("half", ["all", "base", "novel"])
@pytest.mark.parametrize("method", list_methods())
def test_every_method_leaves_the_same_images_for_the_test(method, half):
    """What is trained on, and what roles are found from (`job.items`), is never tested, in either half."""
    data = dataset(12, 4, 5, 30)
    job = make_job(data, shots=16, seed=1, half=half, method=method, test_share=0.25)
    sampled = training_shots(data, 16, 1, 0.25)
    tested = {item.id for item in items_to_test(data, "all", trained_items=sampled)}
    assert len(tested) == 3 + 2 + 2 + 14
    assert not tested & {item.id for item in job.items}
    trained, chosen_on = job.held()
    assert {item.id for item in (*trained, *chosen_on)} <= {item.id for item in sampled}
    if half == "all" or get_method(method).needs.unlabelled:
        assert {item.id for item in job.items} == {item.id for item in sampled}


@pytest.mark.parametrize(
    ("sizes", "shots", "expected"),
    [
        ((12, 12), 16, ["12 images per class: 9 for training, 3 set aside for the test; test_share=0 trains on all"]),
        ((4, 40), 16, ["4 to 40 images per class: 2 to 16 for training, 2 to 24 set aside for the test; test_sh"]),
        ((3, 12), 16, ["3 to 12 images per class: 3 to 9 for training, 0 to 3 set", "1 class(es) have no image left"]),
        ((3, 2), 16, ["2 class(es) have no image left for the test, such as 'c0' with 3: add images (of 4 or more, "]),
        ((30, 22), 16, []),
    ],
)
def test_it_is_said_before_training(sizes, shots, expected):
    found = notes(make_job(dataset(*sizes), shots=shots, seed=1, test_share=0.25))
    assert [one[: len(start)] for one, start in zip(found, expected, strict=True)] == expected


def test_if_nothing_is_left_it_says_what_to_do():
    data = dataset(12, 12)
    with pytest.raises(DataError, match=r"at least 4 images per class and without test_share=0, add a test folder, or"):
        items_to_test(data, "all", trained_items=training_shots(data, 16, 1, 0.0))
    with pytest.raises(DataError, match="use fewer shots, or add a val folder"):
        items_to_test(data, "all", trained_items=data.train, validate=True)
