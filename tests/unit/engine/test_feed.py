"""Batches are a function of seed and step: workers, resuming and the number of processes change nothing."""

from collections import Counter

import pytest
import torch

from dear.engine.feed import Feed, epoch_order, one_class_order
from dear.engine.ranks import Ranks
from dear.errors import DataError, ImageError

COUNT, BATCH = 11, 4
LABELS = [index % 3 for index in range(COUNT)]


def read(index, epoch):
    return {"images": torch.tensor([[index, epoch]])}


def feed(read=read, labels=LABELS, batch_size=BATCH, seed=1, workers=0, **more):
    return Feed(read, labels, batch_size=batch_size, seed=seed, workers=workers, **more)


def seen(batches):
    return [(shown(b), b.labels.tolist(), b.rows.tolist(), b.size, b.problems) for b in batches]


def shown(batch):
    return batch.inputs["images"].tolist() if batch.inputs else []


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
        assert batch.inputs["images"][:, 1].tolist() == [step // 3] * len(batch.labels)
        assert batch.labels.tolist() == [LABELS[index] for index in batch.inputs["images"][:, 0].tolist()]
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
        shares = [next(part.batches(step, step + 1)) for part in parts]
        (all_of_it,) = whole.batches(step, step + 1)
        read_by = [row[0] for share in shares for row in shown(share)]
        assert Counter(read_by) == Counter(whole.indices(step))
        assert max(len(share.labels) for share in shares) - min(len(share.labels) for share in shares) <= 1
        places = {place: row for share in shares for place, row in zip(share.rows.tolist(), shown(share), strict=True)}
        assert [places[place] for place in range(len(places))] == shown(all_of_it)
        assert {share.size for share in shares} == {all_of_it.size}
    (batch,) = feed(ranks=Ranks(7, 8)).batches(0, 1)  # more processes than images in the batch
    assert batch.inputs == {}
    assert batch.rows.tolist() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_left_out_and_reported(workers):
    def sometimes(index, epoch):
        if index % 2:
            raise ImageError(f"{index}.jpg cannot be read")
        return read(index, epoch)

    one = feed(sometimes, workers=workers)
    for step, batch in enumerate(one.batches(0, 3)):
        good = [index for index in one.indices(step) if index % 2 == 0]
        assert [row[0] for row in shown(batch)] == good
        assert batch.rows.tolist() == [place for place, index in enumerate(one.indices(step)) if index % 2 == 0]
        assert batch.labels.tolist() == [LABELS[index] for index in good]
        assert batch.problems == tuple(f"{index}.jpg cannot be read" for index in one.indices(step) if index % 2)


def test_a_batch_of_bad_images_is_empty():
    def never(index, epoch):
        raise ImageError("no")

    (batch,) = feed(never).batches(0, 1)
    assert batch.inputs == {}
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


def test_a_last_smaller_batch_can_be_left_out():
    one = feed(drop_last=True)
    assert one.steps_per_epoch == 2
    assert [len(batch.labels) for batch in one.batches(0, 4)] == [4, 4, 4, 4]
    assert [shown(batch)[0][1] for batch in one.batches(0, 4)] == [0, 0, 1, 1]
    assert feed(drop_last=True, batch_size=20).steps_per_epoch == 1  # never nothing at all


def test_views_are_view_major_and_plain_ones_are_not_repeated():
    def two_views(index, epoch):
        views = torch.tensor([[index, 1], [index, 2]])
        return {"images": views, "plain:images": torch.tensor([index, 0])}

    one = feed(two_views)
    (batch,) = one.batches(0, 1)
    indices = list(one.indices(0))
    assert shown(batch) == [[i, 1] for i in indices] + [[i, 2] for i in indices]
    assert batch.inputs["plain:images"].tolist() == [[i, 0] for i in indices]
    assert batch.labels.tolist() == [LABELS[i] for i in indices] * 2
    assert batch.rows.tolist() == list(range(8))
    assert batch.size == 8
    shares = [next(feed(two_views, ranks=Ranks(rank, 2)).batches(0, 1)) for rank in range(2)]
    assert [share.rows.tolist() for share in shares] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    for share in shares:
        assert shown(share) == [shown(batch)[place] for place in share.rows.tolist()]


def test_a_part_keeps_its_places():
    (batch,) = feed().batches(0, 1)
    part = batch.part(1, 3)
    assert shown(part) == shown(batch)[1:3]
    assert (part.rows.tolist(), part.size, part.problems) == ([1, 2], 4, ())


CLASSES = [0, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 1]  # six images of class 0, seven of class 1


def test_batches_of_one_class():
    one = feed(labels=CLASSES, batch_size=3, one_class=True)
    assert (one.steps_per_epoch, one.count) == (4, 12)
    epochs = [[one.indices(step) for step in range(4 * epoch, 4 * epoch + 4)] for epoch in range(6)]
    for batches in epochs:
        assert all(len({CLASSES[index] for index in batch}) == 1 for batch in batches)
        seen = [index for batch in batches for index in batch]
        assert len(seen) == len(set(seen)) == 12
    assert len({tuple(batches) for batches in epochs}) == 6
    assert len({tuple(CLASSES[batch[0]] for batch in batches) for batches in epochs}) > 1
    assert one_class_order(tuple(CLASSES), 3, 1, 0) != one_class_order(tuple(CLASSES), 3, 2, 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_changes_no_batch_of_one_class(workers):
    whole = seen(feed(labels=CLASSES, batch_size=3, one_class=True).batches(0, 9))
    for first in range(9):
        again = feed(labels=CLASSES, batch_size=3, one_class=True, workers=workers)
        assert seen(again.batches(first, 9)) == whole[first:]


def test_a_class_too_small_for_a_batch_makes_all_batches_mixed():
    few = [*CLASSES, 2, 2]
    mixed, usual = (feed(labels=few, batch_size=3, one_class=value, drop_last=True) for value in (True, False))
    assert [mixed.indices(step) for step in range(5)] == [usual.indices(step) for step in range(5)]


def test_images_per_epoch_are_those_that_are_shown():
    assert feed().count == COUNT
    assert feed(drop_last=True).count == 8
    assert feed(drop_last=True, batch_size=20).count == COUNT
