"""Numbers worked out by hand."""

import math

import pytest
import torch

import dear
from dear.methods.base import Batch
from dear.methods.dear.fusion import fuse, initial_scalars


def test_fusion_starts_where_it_is_told():
    assert initial_scalars(0.7, 5).softmax(0).tolist() == pytest.approx([0.7] + [0.06] * 5)
    assert initial_scalars(1 / 6, 5).softmax(0).tolist() == pytest.approx([1 / 6] * 6)


def test_fuse():
    cls, attr = torch.tensor([[1.0, 2.0]]), torch.tensor([[[10.0, 0.0], [0.0, 100.0]]])
    assert fuse(cls, attr, torch.tensor([0.5, 0.3, 0.2])).tolist() == [pytest.approx([3.5, 21.0])]


def test_carry(clip, roles):
    method = dear.DeAR(clip, roles, beta=0.9).method
    assert method._carry(torch.tensor(1.0), torch.tensor(11.0)).item() == pytest.approx(2.0)


@pytest.mark.parametrize(("form", "value"), [("neg_log", math.log(4)), ("one_minus", 0.75)])
def test_loss_terms(clip, roles, form, value):
    east, north = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    out = dear.Output(
        {"fusion": torch.tensor([[0.0, 0.0]])},
        features={"cls": east},
        weights={"cls": torch.tensor(0.25)},
        classes=torch.cat([east, north]),
        rest={"plain_image": north, "plain_classes": torch.cat([east, east])},
    )
    method = dear.DeAR(clip, roles, lambda_reg=2.0, lambda_fusion=0.5, fusion_loss=form).method
    terms = method.loss(out, Batch(torch.tensor([1])))
    expected = {"ce": math.log(2), "reg_image": 1.0, "reg_text": 0.5, "fusion": value}
    expected["total"] = expected["ce"] + 2 * 1.5 + 0.5 * value
    assert {name: float(term) for name, term in terms.items()} == pytest.approx(expected)
