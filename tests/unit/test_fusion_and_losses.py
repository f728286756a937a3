"""Numbers worked out by hand."""

import math

import pytest
import torch
from dear.methods.dear.losses import dear_loss
from dear.methods.dear.tokens import carry

from dear.methods.dear.fusion import fuse, initial_scalars


def test_fusion_starts_where_it_is_told():
    assert initial_scalars(0.7, 5).softmax(0).tolist() == pytest.approx([0.7] + [0.06] * 5)
    assert initial_scalars(1 / 6, 5).softmax(0).tolist() == pytest.approx([1 / 6] * 6)


def test_fuse():
    cls, attr = torch.tensor([[1.0, 2.0]]), torch.tensor([[[10.0, 0.0], [0.0, 100.0]]])
    assert fuse(cls, attr, torch.tensor([0.5, 0.3, 0.2])).tolist() == [pytest.approx([3.5, 21.0])]


def test_carry():
    assert carry(torch.tensor(1.0), torch.tensor(11.0), 0.9).item() == pytest.approx(2.0)


@pytest.mark.parametrize(("form", "value"), [("neg_log", math.log(4)), ("one_minus", 0.75)])
def test_loss_terms(form, value):
    east, north = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    terms = dear_loss(
        logits_BC=torch.tensor([[0.0, 0.0]]),
        labels_B=torch.tensor([1]),
        cls_features_BE=east,
        frozen_cls_features_BE=north,
        class_features_CE=torch.cat([east, north]),
        frozen_class_features_CE=torch.cat([east, east]),
        alpha_cls=torch.tensor(0.25),
        lambda_reg=2.0,
        lambda_fusion=0.5,
        fusion_form=form,
    )
    expected = {"ce": math.log(2), "reg_image": 1.0, "reg_text": 0.5, "fusion": value}
    expected["total"] = expected["ce"] + 2 * 1.5 + 0.5 * value
    assert terms.scalars() == pytest.approx(expected)
