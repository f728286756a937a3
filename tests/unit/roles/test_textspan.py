"""Streaming TextSpan against a direct implementation on the stored matrix: same picks, same order, same scores."""

import numpy as np
import pytest

from dear.roles.textspan import RELATIVE_ZERO, Moments, textspan, textspan_all


def direct_textspan(data, texts, *, rank, most):
    """The algorithm as described, on all images at once."""
    data, texts = data.astype(np.float64).copy(), texts.astype(np.float64)
    _, sizes, rows = np.linalg.svd(data, full_matrices=False)
    rank = min(rank, int((sizes > RELATIVE_ZERO * sizes[0]).sum())) if sizes[0] > 0 else 0
    basis = rows[:rank]
    texts = texts @ basis.T @ basis
    nothing = RELATIVE_ZERO * np.sqrt((data**2).sum(1).mean())
    data -= data.mean(0)
    picks, scores = [], []
    for _ in range(most):
        spread = (data @ texts.T).std(0)
        pick = int((spread >= (1 - 1e-9) * spread.max()).argmax())  # of texts that score the same, the first
        if spread[pick] <= nothing:
            break
        direction = texts[pick] / np.linalg.norm(texts[pick])
        data = data - np.outer(data @ direction, direction)
        texts = texts - np.outer(texts @ direction, direction)
        picks.append(pick)
        scores.append(spread[pick])
    return picks, scores


def case(seed):
    """Twenty kinds of heads: ordinary, few images, low rank, repeated texts, far from the origin."""
    random = np.random.default_rng(seed)
    images = [200, 12, 3, 60][seed % 4]
    embed, true_rank = [(32, 32), (24, 6), (16, 16), (40, 10), (8, 3)][seed % 5]
    factors = random.normal(size=(images, true_rank)) * random.uniform(0.2, 3, size=true_rank)
    data = factors @ random.normal(size=(true_rank, embed)) + random.normal(size=embed) * (seed % 3)
    texts = random.normal(size=(random.integers(2, 120), embed))
    if seed % 3 == 0:
        texts = np.concatenate([texts, texts[::-1]])
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    return data, texts, {"rank": [embed, true_rank, 5][seed % 3], "most": 20}


def moments_of(data, batch=7):
    moments = Moments.zeros(1, data.shape[1])
    for start in range(0, len(data), batch):
        moments = moments.update(data[start : start + batch, None])
    return moments


@pytest.mark.parametrize("seed", range(20))
def test_streaming_equals_direct(seed):
    data, texts, sizes = case(seed)
    picks, scores = direct_textspan(data, texts, **sizes)
    span = textspan(moments_of(data), 0, texts, **sizes)
    assert len(picks) >= min(2, len(texts))
    assert list(span.picks) == picks
    assert span.scores == pytest.approx(scores, rel=1e-5, abs=1e-5 * scores[0])
    assert len(set(span.picks)) == len(span.picks)
    assert 0 <= span.explained <= 1 + 1e-9


def test_moments_do_not_depend_on_batches_and_add_up():
    data = np.random.default_rng(0).normal(size=(50, 3, 8))
    whole = Moments.zeros(3, 8).update(data)
    parts = Moments.zeros(3, 8).update(data[:20]) + Moments.zeros(3, 8).update(data[20:])
    assert whole.count == parts.count == 50
    assert np.allclose(whole.outer_MEE, parts.outer_MEE)
    assert np.allclose(whole.outer_MEE[1], data[:, 1].T @ data[:, 1])
    assert [s.picks for s in textspan_all(whole, np.eye(8), rank=8, most=3)] == [
        s.picks for s in textspan_all(parts, np.eye(8), rank=8, most=3)
    ]


def test_a_head_that_never_varies_has_no_phrases():
    constant = np.ones((30, 4))
    span = textspan(moments_of(constant), 0, np.eye(4), rank=4, most=3)
    assert (span.picks, span.explained) == ((), 0.0)


def test_a_head_that_is_always_zero_has_no_phrases():
    assert textspan(moments_of(np.zeros((9, 4))), 0, np.eye(4), rank=4, most=3).picks == ()


def test_picks_name_the_directions_that_made_the_data():
    random = np.random.default_rng(1)
    texts = np.linalg.qr(random.normal(size=(16, 16)))[0]
    strengths = {5: 4.0, 2: 2.0, 9: 1.0}
    data = sum(random.normal(size=(500, 1)) * size * texts[t] for t, size in strengths.items())
    span = textspan(moments_of(data), 0, texts, rank=16, most=10)
    assert list(span.picks) == [5, 2, 9]
    assert span.explained == pytest.approx(1.0)


def test_rounding_is_not_variation():
    head = np.random.default_rng(2).normal(size=16)
    noise = 1e-8 * np.random.default_rng(3).normal(size=(40, 16))
    assert textspan(moments_of(head + noise), 0, np.eye(16), rank=16, most=5).picks == ()
