"""Batches are a function of seed and step: workers, resuming and the number of processes change nothing."""

from collections import Counter

import pytest
import torch

from dear.engine.feed import Feed, epoch_order
from dear.engine.ranks import Ranks
from dear.errors import DataError, ImageError

COUNT, BATCH = 11, 4
LABELS = [index % 3 for index in range(COUNT)]


def read(index, epoch):
    return torch.tensor([index, epoch])


def feed(read=read, labels=LABELS, batch=BATCH, seed=1, workers=0, ranks=None):
    return Feed(read, labels, batch=batch, seed=seed, workers=workers, ranks=ranks)


def seen(batches):
    return [(b.inputs.tolist() if b.inputs is not None else [], b.labels.tolist(), b.problems) for b in batches]


def test_every_epoch_sees_every_item_once_in_an_order_of_its_own():
    one = feed()
    assert one.steps_per_epoch == 3
    epochs = [[index for step in range(3 * e, 3 * e + 3) for index in one.indices(step)] for e in range(4)]
    assert all(sorted(order) == list(range(COUNT)) for order in epochs)
    assert len({tuple(order) for order in epochs}) == 4
    assert epochs[0] == list(epoch_order(COUNT, 1, 0))
    assert epoch_order(COUNT, 2, 0) != epoch_order(COUNT, 1, 0)
    assert [len(one.indices(step)) for step in range(3)] == [4, 4, 3]


def test_views_are_those_of_the_epoch_and_labels_belong_to_them():
    for step, batch in enumerate(feed().batches(0, 9)):
        assert batch.inputs[:, 1].tolist() == [step // 3] * len(batch.labels)
        assert batch.labels.tolist() == [LABELS[index] for index in batch.inputs[:, 0].tolist()]
        assert batch.labels.dtype == torch.int64


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_neither_workers_nor_resuming_change_anything(workers):
    whole = seen(feed().batches(0, 7))
    for first in range(8):
        assert seen(feed(workers=workers).batches(first, 7)) == whole[first:]


@pytest.mark.parametrize("world", [2, 3, 8])
def test_processes_share_each_batch_exactly(world):
    whole = feed()
    parts = [feed(ranks=Ranks(rank, world)) for rank in range(world)]
    for step in range(6):
        shares = [part.indices(step) for part in parts]
        assert Counter(index for share in shares for index in share) == Counter(whole.indices(step))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    (batch,) = feed(ranks=Ranks(7, 8)).batches(0, 1)  # more processes than images in the batch
    assert batch.inputs is None


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_left_out_and_reported(workers):
    def sometimes(index, epoch):
        if index % 2:
            raise ImageError(f"{index}.jpg cannot be read")
        return read(index, epoch)

    one = feed(sometimes, workers=workers)
    for step, batch in enumerate(one.batches(0, 3)):
        good = [index for index in one.indices(step) if index % 2 == 0]
        assert batch.inputs[:, 0].tolist() == good
        assert batch.labels.tolist() == [LABELS[index] for index in good]
        assert batch.problems == tuple(f"{index}.jpg cannot be read" for index in one.indices(step) if index % 2)


def test_a_batch_of_bad_images_is_empty():
    def never(index, epoch):
        raise ImageError("no")

    (batch,) = feed(never).batches(0, 1)
    assert batch.inputs is None
    assert batch.labels.tolist() == []
    assert batch.problems == ("no",) * BATCH


@pytest.mark.parametrize("workers", [0, 2])
def test_other_errors_are_not_hidden(workers):
    def broken(index, epoch):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(feed(broken, workers=workers).batches(0, 1))


def test_nothing_to_train_on():
    with pytest.raises(DataError, match="the list of training images is empty"):
        feed(labels=[])
