"""What a test means: the interval and the test against other ways to compute them, the sentence word for word."""

from math import comb

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dear.errors import ConfigError
from dear.evaluation.evaluate import Evaluation
from dear.evaluation.results import PerClass, Scores
from dear.evaluation.statistics import answers_test, share_interval
from dear.evaluation.verdict import balance_sentence, sentence, verdict


def outcome(right, plain, labels=None, *, half="all", new="images"):
    """A test of two classes; `right` and `plain` say which answers are right."""
    labels = torch.tensor([0] * len(right) if labels is None else labels)

    def picked(hits):
        return torch.where(torch.tensor(hits), labels, 1 - labels)

    def scores(hits, name):
        per_class = {}
        for number, title in enumerate(("cat", "owl")):
            own = [hit for hit, label in zip(hits, labels.tolist(), strict=True) if label == number]
            share = 100 * sum(own) / len(own) if own else 0.0
            per_class[title] = PerClass(images=len(own), accuracy={name: share})
        total = {name: 100 * sum(hits) / len(hits)}
        return Scores(data="pets", half=half, images=len(hits), unreadable=0, accuracy=total, per_class=per_class)

    return Evaluation(
        scores(right, "logits"),
        picked(right),
        torch.ones(len(right)),
        {},
        plain=scores(plain, "logits"),
        method="dear",
        labels=labels,
        plain_picks=picked(plain),
        readout="logits",
        new=new,
    )


def answers(right, images):
    return [True] * right + [False] * (images - right)


@pytest.mark.covers("F6")
def test_the_sentence_says_how_good_how_sure_and_whether_it_is_better():
    assert sentence(verdict(outcome(answers(67, 72), answers(59, 72)))) == (
        "93 % of 72 images it was not trained on are named correctly, ± 6 points; plain CLIP 82 %; "
        "better beyond chance: yes."
    )
    assert sentence(verdict(outcome(answers(61, 72), answers(59, 72), new="unknown"))) == (
        "85 % of 72 images are named correctly, ± 8 points; plain CLIP 82 %; better beyond chance: no."
    )
    assert sentence(verdict(outcome(answers(50, 72), answers(60, 72), half="novel"))).endswith(
        "worse beyond chance: yes."
    )
    assert sentence(verdict(outcome(answers(58, 72), answers(60, 72)))).endswith("worse beyond chance: no.")
    ties = outcome([True, False, True], [False, True, True])
    assert sentence(verdict(ties)).endswith("better beyond chance: no.")
    told = sentence(verdict(outcome([True], [False], half="novel", new="classes")))
    assert told.startswith("100 % of 1 image of classes it was not trained on is named correctly")
    told = sentence(verdict(outcome(answers(3, 9), answers(3, 9), half="base", new="images of trained classes")))
    assert told.startswith("33 % of 9 new images of trained classes are named correctly")
    assert sentence(verdict(outcome(answers(764, 1200), answers(704, 1200)))) == (
        "63.7 % of 1,200 images it was not trained on are named correctly, ± 2.7 points; plain CLIP 58.7 %; "
        "better beyond chance: yes."
    )


@pytest.mark.covers("F16")
def test_sentences_say_nothing_empty():
    assert sentence(verdict(outcome(answers(32, 32), answers(30, 32)))) == (
        "100 % of 32 images it was not trained on are named correctly, expect at least 89 %; plain CLIP 94 %; "
        "better beyond chance: no."
    )
    assert sentence(verdict(outcome(answers(0, 32), answers(0, 32)))) == (
        "0 % of 32 images it was not trained on are named correctly, expect at most 11 %; plain CLIP names exactly "
        "the same images correctly."
    )
    with pytest.raises(ConfigError, match="needs plain CLIP's answers"):
        verdict(Evaluation(outcome([True], [True]).scores, torch.zeros(1), torch.ones(1), {}))


def test_unbalanced_classes_get_their_mean():
    labels = [0] * 40 + [1] * 4
    right = [True] * 40 + [False] * 3 + [True]
    plain = [True] * 30 + [False] * 10 + [True] * 2 + [False] * 2
    assert balance_sentence(verdict(outcome(right, plain, labels))) == (
        "Classes have 4 to 40 test images: averaged over classes, 62 % are correct, 62 % with plain CLIP."
    )
    told = str(outcome(right, plain, labels).verdict())
    assert told.startswith("93 % of 44 images")
    assert told.endswith("62 % with plain CLIP.")
    assert balance_sentence(verdict(outcome(right[:8], plain[:8], [0, 1] * 4))) == ""


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_is_wilsons(share):
    right, of = share
    low, high = share_interval(right, of)
    z, p = 1.959963984540054, right / of
    middle = (p + z * z / (2 * of)) / (1 + z * z / of)
    width = z * (p * (1 - p) / of + z * z / (4 * of * of)) ** 0.5 / (1 + z * z / of)
    assert (low, high) == (pytest.approx(middle - width, abs=1e-9), pytest.approx(middle + width, abs=1e-9))
    assert -1e-9 <= low <= p <= high + 1e-9


@pytest.mark.parametrize(("right", "of"), [(-1, 3), (4, 3), (0, 0)])
def test_no_share(right, of):
    with pytest.raises(ConfigError, match="is not a share"):
        share_interval(right, of)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_the_test_is_mcnemars_and_counts_coins(pairs):
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    found = answers_test(first, second)
    some = found.only_first + found.only_second
    tail = sum(comb(some, k) for k in range(min(found.only_first, found.only_second) + 1)) / 2**some
    assert found.p == pytest.approx(min(1.0, 2 * tail))
    back = answers_test(second, first)
    assert (back.only_first, back.only_second, back.p) == (found.only_second, found.only_first, pytest.approx(found.p))
