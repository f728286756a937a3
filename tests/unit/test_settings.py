"""Wrong settings are refused all at once, in the user's words."""

import pytest
import torch

import dear
from dear.errors import BackboneError, ConfigError, InputError


def test_all_problems_at_once(clip, roles):
    with pytest.raises(ConfigError) as caught:
        dear.DeAR(clip, roles, beta=1.5, text_token=3, alpha_cls=0)
    message = str(caught.value)
    assert "beta is 1.5: input should be less than or equal to 1" in message
    assert "alpha_cls is 0: input should be greater than or equal to 0.001" in message
    assert "There is no setting 'text_token'. Did you mean 'text_tokens'?" in message


@pytest.mark.parametrize(
    "choice", [{"text_tokens": "5"}, {"text_tokens": True}, {"beta": "0.5"}, {"seed": 2**80}], ids=str
)
def test_settings_are_strict(clip, roles, choice):
    with pytest.raises(ConfigError, match=next(iter(choice))):
        dear.DeAR(clip, roles, **choice)


def test_a_config_may_come_from_elsewhere(clip, roles):
    model = dear.DeAR(clip, roles, config=dear.DearConfig(beta=0.5, text_tokens=2), text_tokens=3)
    assert (model.config.beta, model.config.text_tokens) == (0.5, 3)
    with pytest.raises(ConfigError, match="beta is 3: input should be less"):
        dear.DearConfig(beta=3)


@pytest.mark.parametrize("wrong", [None, "ViT-B-16", torch.nn.Identity()], ids=str)
def test_what_is_not_a_backbone(roles, wrong):
    for build in (lambda: dear.DeAR(wrong, roles), lambda: dear.ZeroShot(wrong)):
        with pytest.raises(BackboneError, match=r"adapts a backbone from dear\.load_clip"):
            build()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "are NoneType"),
        ([0, 1, 2], "are list"),
        (torch.tensor([0.0, 1.0, 2.0]), "are torch.float32"),
        (torch.tensor([[0], [1], [2]]), r"\(3, 1\)"),
        (torch.tensor([0, 1]), r"must be an int64 tensor of shape \(3,\)"),
        (torch.tensor([0, 1, 3]), "Labels go from 0 to 3, but the 3 classes are numbered from 0"),
        (torch.tensor([0, -100, 1]), "Labels go from -100"),
    ],
    ids=str,
)
def test_labels_that_cannot_be(model, images, labels, message):
    with pytest.raises(InputError, match=message):
        model.loss(model(images), labels, images=images)


def test_outputs_that_cannot_be(model, images):
    labels = torch.tensor([0, 1, 2])
    out = model(images)
    for wrong in (None, out.logits):
        with pytest.raises(InputError, match="The loss takes what the model returned"):
            model.loss(wrong, labels)
    model.set_classes(["a", "b", "c"])
    with pytest.raises(InputError, match="classes were changed after this output"):
        model.loss(out, labels)
    for prefix in (None, images, torch.zeros(1, 2, 3)):
        with pytest.raises(InputError, match="take it from image_prefix"):
            model.from_prefix(prefix)


def test_layers_the_tower_does_not_have(clip, roles):
    with pytest.raises(ConfigError, match="text_first_layer is 7, but the tower has 6 layers"):
        dear.DeAR(clip, roles, text_first_layer=7)


def test_unknown_strategy(model, images):
    zero_shot = dear.ZeroShot(model.clip)
    zero_shot.set_classes(["cat"])
    for method in (model, zero_shot):
        with pytest.raises(ConfigError, match="strategy is 'both', but can be 'fusion' or 'decoupled'"):
            method(images, strategy="both")
    with model.disabled(), pytest.raises(ConfigError, match="strategy is 'both'"):
        model(images, strategy="both")


def test_loss_needs_images_where_no_prefix_was_kept(model, images):
    with torch.no_grad():
        out = model(images)
        with pytest.raises(InputError, match="give the batch's images"):
            model.loss(out, torch.tensor([0, 1, 2]))


def test_one_line_description(model):
    assert repr(model).endswith("5 attributes, 1,558 of 1,843,191 parameters trainable)")
    assert "\n" not in repr(model.clip)
