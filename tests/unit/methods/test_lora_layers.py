"""Terms inside layers: which layers, what is left out below them, masks."""

import pytest
import torch

from dear.errors import ConfigError, DearError
from dear.methods.clip_lora import blocks
from dear.methods.parts.published_layers import of_twelve
from helpers import build, move_parameters, plain_images

NAMES = ["cat", "a rather long name of a class", "dog"]


def test_blocks_of_positions():
    """The published lists for twelve blocks, and the halves for 24."""
    published = {
        "all": (0, 12),
        "bottom": (0, 4),
        "mid": (4, 8),
        "up": (8, 12),
        "half-bottom": (0, 6),
        "half-up": (6, 12),
        "top3": (9, 12),
    }
    for position, (first, last) in published.items():
        assert blocks(position, 12) == list(range(first, last))
        for depth in (1, 2, 3, 5):
            found = blocks(position, depth)
            assert found
            assert set(found) <= set(range(depth))
    assert blocks("half-up", 24) == list(range(12, 24))
    assert blocks("half-bottom", 24) == list(range(12))


def test_layers_of_twelve():
    assert of_twelve(12, 5, 12) == {layer: layer for layer in range(5, 13)}
    assert of_twelve(24, 5, 12) == {layer: layer + 12 for layer in range(5, 13)}
    assert of_twelve(6, 5, 12) == {7: 1, 8: 2, 9: 3, 10: 4, 11: 5, 12: 6}
    assert of_twelve(2, 5, 8) == {8: 1}


@pytest.mark.parametrize("encoder", ["both", "vision", "text"])
@pytest.mark.parametrize("position", ["top3", "mid", "half-bottom"])
def test_what_is_left_out_below_changes_nothing(tiny_clips, encoder, position):
    """Chosen blocks of chosen towers equal all blocks of both with zeros elsewhere, in training too."""
    clip = tiny_clips["odd"]
    some = build("clip_lora", clip, NAMES, encoder=encoder, position=position, matrices="qvo", dropout=0.5)
    whole = build("clip_lora", clip, NAMES, matrices="qvo", dropout=0.5)
    move_parameters(some)
    state = {name: torch.zeros_like(tensor) for name, tensor in whole.state_dict().items()}
    whole.load_state_dict({**state, **some.state_dict()})
    shown, labels = plain_images(clip, 3), torch.tensor([0, 2, 1])
    with torch.no_grad():
        assert torch.allclose(some(shown).logits, whole(shown).logits, atol=1e-4)
        assert not torch.allclose(some(shown).logits, some.plain()(shown).logits, atol=1e-2)
    for step in (1, 2):
        assert torch.allclose(
            some.loss(shown, labels, step=step)["total"], whole.loss(shown, labels, step=step)["total"], atol=1e-4
        )
    assert some.loss(shown, labels, step=1)["total"] != some.loss(shown, labels, step=2)["total"]


def test_impossible_settings_are_one_sentence(clip):
    with pytest.raises(ConfigError, match="matrices is 'x'"):
        build("clip_lora", clip, matrices="x")
    with pytest.raises(DearError, match=r"must contain '\{\}' exactly once"):
        build("clip_lora", clip, template="nothing")
    with pytest.raises(ConfigError, match="the first layer must not be behind the last"):
        build("mma", clip, first=9, last=8)
