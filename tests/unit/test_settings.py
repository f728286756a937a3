"""Wrong settings are refused all at once, in the user's words."""

import pytest
import torch

import dear
from dear.errors import ConfigError


def test_all_problems_at_once(clip, roles):
    with pytest.raises(ConfigError) as caught:
        dear.DeAR(clip, roles, beta=1.5, text_token=3, alpha_cls=0)
    message = str(caught.value)
    assert "beta is 1.5: input should be less than or equal to 1" in message
    assert "alpha_cls is 0: input should be greater than 0" in message
    assert "There is no setting 'text_token'. Did you mean 'text_tokens'?" in message


def test_layers_the_tower_does_not_have(clip, roles):
    with pytest.raises(ConfigError, match="text_first_layer is 7, but the tower has 6 layers"):
        dear.DeAR(clip, roles, text_first_layer=7)


def test_unknown_strategy(model, images):
    with pytest.raises(ConfigError, match="strategy is 'both', but can be 'fusion' or 'decoupled'"):
        model(images, strategy="both")


def test_loss_needs_images_where_no_prefix_was_kept(model, images):
    with torch.no_grad():
        out = model(images)
        with pytest.raises(ConfigError, match="give the batch's images"):
            model.loss(out, torch.tensor([0, 1, 2]))


def test_one_line_description(model):
    assert repr(model).endswith("5 attributes, 1,558 of 1,843,191 parameters trainable)")
    assert "\n" not in repr(model.clip)
