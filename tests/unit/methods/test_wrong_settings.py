"""Wrong settings are refused all at once, in the user's words."""

import pytest
import torch

import dear
from dear.errors import BackboneError, ConfigError, InputError


@pytest.fixture
def model(clip, roles):
    return dear.DeAR(clip, roles).for_classes(["cat", "dog", "hot air balloon"])


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
def test_what_is_not_a_backbone(clip, roles, wrong):
    method = dear.DeAR(clip, roles).method
    for build in (lambda: dear.DeAR(wrong, roles), lambda: dear.Model(wrong, method)):
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
        model.loss(images, labels)


def test_layers_the_tower_does_not_have(clip, roles):
    with pytest.raises(ConfigError, match="text_first_layer is 7, but the tower has 6 layers"):
        dear.DeAR(clip, roles, text_first_layer=7)


def test_unknown_readout(model):
    with pytest.raises(ConfigError, match=r"has no readout 'bth': choose .* or "):
        model.check_readout("bth")
    assert model.check_readout(None) == model.readout()


def test_images_or_states(model):
    with pytest.raises(InputError, match="nothing to classify"):
        model()


def test_one_line_description(model):
    assert repr(model).endswith(", 3 classes, 1,558 parameters beside CLIP's 1,841,633)")
    assert "\n" not in repr(model.clip)


@pytest.mark.parametrize("told", ["7,7", [7, 7], [7, 7, 1, 1]])
def test_a_list_of_another_length_is_shown_one(told):
    with pytest.raises(ConfigError, match=r"search_scale is .*: give a list such as \[7.0, 7.0, 0.5\]\."):
        dear.get_method("ape").Config(search_scale=told)
