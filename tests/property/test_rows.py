"""`Rows` against a plain list of prompts: whatever is shared, every operation does the same to every prompt."""

from itertools import count

import torch
from hypothesis import given
from hypothesis import strategies as st

from dear.backbone.rows import Rows

WIDTH = 2


class Prompts:
    """Every prompt written out: its rows, and the place of its end row."""

    def __init__(self, rows, ends):
        self.rows, self.ends = rows, ends

    def put(self, at, new):
        rows = [own[:at] + new[i] + own[at + len(new[i]) :] for i, own in enumerate(self.rows)]
        return Prompts(rows, self.ends)

    def insert(self, at, new):
        rows = [own[:at] + new[i] + own[at:] for i, own in enumerate(self.rows)]
        return Prompts(rows, [end + len(new[i]) if end >= at else end for i, end in enumerate(self.ends)])


def written_out(rows):
    groups, prompts = rows.past.shape[0], rows.words.shape[0]
    past = rows.past.repeat_interleave(prompts // groups, dim=0)
    found = torch.cat([past, rows.words], dim=1)
    return Prompts(found.tolist(), (rows.end + rows.past.shape[1]).tolist())


def check(rows, prompts):
    found = written_out(rows)
    assert found.rows == prompts.rows
    assert found.ends == prompts.ends


def numbers(values, *shape):
    size = torch.Size(shape).numel()
    return torch.tensor([float(next(values)) for _ in range(size)]).view(shape)


@st.composite
def starts(draw):
    """Rows of some groups, the numbers in them all different."""
    groups, each = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    shared, own = draw(st.integers(0, 3)), draw(st.integers(1, 4))
    ends = torch.tensor([draw(st.integers(0, own - 1)) for _ in range(groups * each)])
    values = count()
    rows = Rows(numbers(values, groups, shared, WIDTH), numbers(values, groups * each, own, WIDTH), ends)
    return rows, values


def new_rows(data, rows, values, length):
    """One sequence, one per group, or one per prompt; as a tensor, and written out for every prompt."""
    groups, prompts = rows.past.shape[0], rows.words.shape[0]
    sequences = data.draw(st.sampled_from([1, groups, prompts]))
    new = numbers(values, sequences, length, WIDTH)
    return new, new.repeat_interleave(prompts // sequences, dim=0).tolist()


@given(starts(), st.data())
def test_operations_do_what_they_do_to_a_plain_list(start, data):
    rows, values = start
    prompts = written_out(rows)
    for _ in range(data.draw(st.integers(1, 5))):
        length = rows.past.shape[1] + rows.words.shape[1]
        kind = data.draw(st.sampled_from(["put", "insert", "unshare", "share"]))
        if kind == "put":
            at = data.draw(st.integers(0, length - 1))
            new, written = new_rows(data, rows, values, data.draw(st.integers(1, length - at)))
            rows, prompts = rows.put(at, new), prompts.put(at, written)
        elif kind == "insert":
            at = data.draw(st.integers(0, length))
            new, written = new_rows(data, rows, values, data.draw(st.integers(1, 2)))
            rows, prompts = rows.insert(at, new), prompts.insert(at, written)
        elif kind == "unshare":
            keep = data.draw(st.integers(0, rows.past.shape[1]))
            rows = rows.unshare(keep)
            assert rows.past.shape[1] == keep
        elif rows.past.shape[0] == 1:
            alike = 0
            while alike < min(prompts.ends) and all(own[alike] == prompts.rows[0][alike] for own in prompts.rows):
                alike += 1
            wanted = data.draw(st.integers(0, alike))
            shared = max(wanted, rows.past.shape[1])
            rows = rows.share(wanted)
            assert rows.past.shape[1] == shared
        check(rows, prompts)


@given(starts(), st.data())
def test_take_gives_the_rows_of_a_place(start, data):
    rows, _ = start
    prompts = written_out(rows)
    at = data.draw(st.integers(0, len(prompts.rows[0]) - 1))
    length = data.draw(st.integers(1, len(prompts.rows[0]) - at))
    taken = rows.take(at, length)
    all_shared = at + length <= rows.past.shape[1]
    assert taken.shape[0] == (rows.past.shape[0] if all_shared else rows.words.shape[0])
    each = taken.repeat_interleave(rows.words.shape[0] // taken.shape[0], dim=0)
    assert each.tolist() == [own[at : at + length] for own in prompts.rows]
    put_back = rows.put(at, taken)
    check(put_back, prompts)
    assert put_back.past.shape[1] == (rows.past.shape[1] if all_shared else min(at, rows.past.shape[1]))


@given(starts(), st.data())
def test_chosen_prompts_are_those_prompts(start, data):
    rows, _ = start
    prompts = written_out(rows)
    if rows.past.shape[0] > 1:
        return
    kept = data.draw(st.lists(st.integers(0, len(prompts.rows) - 1), min_size=1, max_size=4))
    some = rows.chosen(torch.tensor(kept))
    check(some, Prompts([prompts.rows[i] for i in kept], [prompts.ends[i] for i in kept]))
    first = data.draw(st.integers(0, len(prompts.rows) - 1))
    check(rows.chosen(slice(first, None)), Prompts(prompts.rows[first:], prompts.ends[first:]))


@given(starts())
def test_a_shared_row_stays_shared_and_new_ones_may_be(start):
    rows, values = start
    one = numbers(values, 1, 1, WIDTH)
    if rows.past.shape[1]:
        assert rows.put(0, one).past.shape == rows.past.shape
        assert rows.insert(1, one).past.shape[1] == rows.past.shape[1] + 1
    assert Rows.of(rows.words, rows.end).past.shape[1] == 0
    half = rows.to(torch.bfloat16)
    assert half.past.dtype == half.words.dtype == torch.bfloat16
    assert half.to(torch.bfloat16) is half
