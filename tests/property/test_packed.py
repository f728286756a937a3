"""Packed prompts against padded ones: the same features and gradients, whatever lengths and edits."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dear.backbone import packed
from dear.backbone.packed import GROUP_COST, LEAST_SAVED, cuts, packing_of
from dear.backbone.rows import Rows

CLOSE = 1e-12
KINDS = ("none", "shared", "per group", "per prompt", "inserted", "inserted per prompt", "words", "carried")


def padded(tower):
    """The same tower, which packs nothing."""
    plain = copy.copy(tower)
    plain._packing = lambda rows: None
    return plain


@pytest.fixture(scope="module", params=["plain", "odd"])
def tower(request, tiny_clips):
    """A text tower in fp64."""
    return copy.deepcopy(tiny_clips[request.param]).double().text


def an_edit(kind, new):
    """An edit of some kind before layer 2; `new` has one sequence, one per group, or one per prompt."""

    def edit(layer, rows):
        if layer != 2 or kind == "none":
            return rows
        if kind.startswith("inserted"):
            return rows.insert(1, new)
        if kind == "words":
            return rows._replace(words=rows.words * new.mean())
        if kind == "carried":
            return rows.put(1, 0.5 * rows.take(1, 2) + new)
        return rows.put(1, new)

    return edit


def sequences(kind, groups, prompts):
    """How many sequences an edit of a kind brings."""
    return prompts if "per prompt" in kind else groups if kind == "per group" else 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_packed_prompts_give_the_same_features_and_gradients(tower, monkeypatch, data, kind):
    monkeypatch.setattr(packed, "LEAST_SAVED", 1)
    monkeypatch.setattr(packed, "GROUP_COST", data.draw(st.integers(0, 8)))
    groups, each, shared = data.draw(st.integers(1, 2)), data.draw(st.integers(2, 6)), data.draw(st.integers(0, 4))
    ends = [data.draw(st.integers(2, 9)) for _ in range(each)] * groups
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))

    def random(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    end = torch.tensor(ends)
    past, words = random(groups, shared, tower.width), random(len(ends), 10, tower.width)
    new = random(sequences(kind, groups, len(ends)), 2, tower.width)
    wanted = random(len(ends), tower.features(Rows(past, words, end)).shape[1])
    found = {}
    for name, chosen in (("packed", tower), ("padded", padded(tower))):
        leaves = [tensor.clone().requires_grad_() for tensor in (past, words, new)]
        features = chosen.features(Rows(leaves[0], leaves[1], end), edit=an_edit(kind, leaves[2]))
        found[name] = [features, *torch.autograd.grad((features * wanted).sum(), leaves, allow_unused=True)]
    for ours, theirs in zip(found["packed"], found["padded"], strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.allclose(ours, theirs, rtol=CLOSE, atol=CLOSE)


def test_rows_after_a_stretch_of_layers_are_the_same(tower, monkeypatch):
    monkeypatch.setattr(packed, "LEAST_SAVED", 1)
    monkeypatch.setattr(packed, "GROUP_COST", 1)
    ends = torch.tensor([2, 9, 4, 4, 3, 9])
    rows = Rows(torch.randn(1, 3, tower.width).double(), torch.randn(6, 10, tower.width).double(), ends)
    assert tower._packing(rows) is not None
    ours, theirs = tower.run(rows, 2, 4), padded(tower).run(rows, 2, 4)
    assert torch.allclose(ours.past, theirs.past)
    for prompt, end in enumerate(ends.tolist()):
        assert torch.allclose(ours.words[prompt, : end + 1], theirs.words[prompt, : end + 1], rtol=CLOSE, atol=CLOSE)


@given(st.lists(st.integers(1, 76), min_size=1, max_size=400))
def test_a_line_holds_every_row_of_every_prompt_once(ends):
    end, length = torch.tensor(ends), max(ends) + 1
    packing = packing_of(end, length)
    x = torch.arange(1, len(ends) * length + 1).view(len(ends), length, 1)
    if packing is None:
        groups = cuts(sorted(one + 1 for one in ends))
        line = sum((b - a) * (sorted(ends)[b - 1] + 1) for a, b in zip([0, *groups], groups, strict=False))
        assert x.numel() - line < LEAST_SAVED
        return
    line = packing.pack(x)
    assert x.numel() - line.numel() >= LEAST_SAVED
    assert torch.equal(packing.in_order(line[packing.end_B])[:, 0], x[range(len(ends)), ends, 0])
    back = packing.unpack(line)
    real = torch.arange(length) <= end[:, None]
    assert torch.equal(back[real], x[real])
    assert len(set(line.flatten().tolist())) == line.numel()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_the_cuts_cost_least(lengths):
    """Against all ways to cut at a single place, and no cut at all."""
    lengths = sorted(lengths)

    def cost(stops):
        return sum((b - a) * lengths[b - 1] + GROUP_COST for a, b in zip([0, *stops], stops, strict=False))

    found = cuts(lengths)
    assert found[-1] == len(lengths)
    assert found == sorted(set(found))
    others = [[len(lengths)], *([at, len(lengths)] for at in range(1, len(lengths)))]
    assert cost(found) <= min(map(cost, others))


def test_prompts_of_one_length_are_one_group_and_short_lists_stay_as_they_are():
    assert cuts([7] * 500) == [500]
    assert packing_of(torch.full((500,), 6), 7) is None
    assert packing_of(torch.tensor([3, 3, 40]), 41) is None
    found = packing_of(torch.tensor([12, *[3] * 100]), 13)
    assert found is not None
    assert [(one.count, one.length) for one in found.groups] == [(100, 4), (1, 13)]
