"""The learning rate of every epoch."""

import pytest

from dear.engine.optim import learning_rates

PAPER = [1e-5, 1e-3, 9.76e-4, 9.05e-4, 7.94e-4, 6.55e-4, 5.00e-4, 3.45e-4, 2.06e-4, 9.55e-5]


def test_the_papers_ten_rates():
    rates = learning_rates(10, lr=1e-3)
    assert [float(f"{rate:.3g}") for rate in rates] == PAPER


@pytest.mark.parametrize(
    ("epochs", "warmup", "expected"),
    [(1, 1, [1e-5]), (2, 1, [1e-5, 1e-3]), (2, 5, [1e-5, 1e-5]), (2, 0, [1e-3, 5e-4]), (1, 0, [1e-3])],
)
def test_short_trainings(epochs, warmup, expected):
    assert learning_rates(epochs, lr=1e-3, warmup_epochs=warmup) == pytest.approx(expected)
