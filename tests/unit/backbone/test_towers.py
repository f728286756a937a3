"""The towers' loops and the frozen quantities against the stock model, whatever is saved on the way."""

import pytest
import torch
import torch.nn.functional as F

from dear.backbone.frozen import check_names, complete, layer_named, shape_of
from dear.backbone.head_contributions import contributions, name_groups, parse_groups
from dear.backbone.layers import Layer
from dear.backbone.rows import Rows
from dear.errors import ConfigError
from helpers import TINY_CONFIGS, plain_images
from oracle import relative_error

PROMPTS = ["a photo of a cat.", "a photo of a much longer name.", "a photo of x"]
TERMS = "terms:1.0,2.1;2.0"


@pytest.fixture(params=TINY_CONFIGS)
def clip(request, tiny_clips):
    return tiny_clips[request.param]


@pytest.fixture
def images(clip):
    return plain_images(clip, 3)


def stock_rows(clip, images):
    """The input of every layer, 1 to depth + 1, by the stock blocks."""
    visual = clip.model.visual
    found = [visual._embeds(images)]
    for block in visual.transformer.resblocks:
        found.append(block(found[-1]))
    return dict(enumerate(found, start=1))


# The image tower -------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_image_features_are_the_stock_models(clip, images):
    vision = clip.vision
    expected = clip.model.encode_image(images)
    x = vision.norm_in(vision.embed(images))
    assert vision.embed(images).shape == (3, vision.rows, vision.width)
    assert relative_error(vision.read(vision.run(x)[:, 0]), expected) <= 1e-6
    assert relative_error(vision.read(vision.run(x, read=[0])[:, 0]), expected) <= 1e-6


@torch.no_grad()
def test_any_stretch_of_layers(clip, images):
    vision, known = clip.vision, stock_rows(clip, images)
    for first in range(1, vision.depth + 1):
        for last in range(first, vision.depth + 1):
            assert torch.allclose(vision.run(known[first], first, last), known[last + 1], atol=1e-5), (first, last)
    assert torch.equal(vision.run(known[2], 2, 1), known[2])  # no layer at all


@torch.no_grad()
def test_rows_that_are_read_are_rows_of_the_whole(clip, images):
    vision, x = clip.vision, stock_rows(clip, images)[1]
    heads, length = clip.geometry.vision_heads, vision.rows
    generator = torch.Generator().manual_seed(0)
    masks = {
        layer: (torch.rand(1, heads, length, length, generator=generator) > 0.3) | torch.eye(length, dtype=torch.bool)
        for layer in range(1, vision.depth + 1)
    }
    for mask in (None, masks.__getitem__):
        whole = vision.run(x, masks=mask)
        for read in ([0], [0, 3, 1]):
            assert torch.allclose(vision.run(x, masks=mask, read=read), whole[:, read], atol=1e-5)
    assert not torch.allclose(vision.run(x, masks=masks.__getitem__), vision.run(x), atol=1e-3)


@torch.no_grad()
def test_an_edit_changes_the_input_of_a_layer(clip, images):
    vision, known, seen = clip.vision, stock_rows(clip, images), []

    def edit(layer, x):
        seen.append(layer)
        return torch.cat([x, x[:, :1]], dim=1) if layer == vision.depth else x

    found = vision.run(known[1], edit=edit)
    assert seen == list(range(1, vision.depth + 1))
    assert found.shape[1] == vision.rows + 1
    longer = torch.cat([known[vision.depth], known[vision.depth][:, :1]], dim=1)
    assert torch.allclose(found, vision.run(longer, vision.depth), atol=1e-5)


@torch.no_grad()
def test_other_layers_are_run_in_their_place(clip, images):
    vision, known = clip.vision, stock_rows(clip, images)
    layers = list(reversed(vision.layers))
    x = known[1]
    for block in reversed(clip.model.visual.transformer.resblocks):
        x = block(x)
    assert all(isinstance(layer, Layer) for layer in layers)
    assert torch.allclose(vision.run(known[1], layers=layers), x, atol=1e-5)


@torch.no_grad()
def test_read_takes_another_norm_and_projection(clip, images):
    vision = clip.vision
    last = stock_rows(clip, images)[vision.depth + 1]
    norm, projection = torch.nn.LayerNorm(vision.width), torch.randn(vision.width, 5)
    assert torch.allclose(vision.read(last, norm, projection), norm(last) @ projection, atol=1e-5)
    assert torch.allclose(vision.read(last), vision.final_norm(last) @ vision.projection, atol=1e-5)


# The text tower --------------------------------------------------------------------------------------------------


def stock_text(clip):
    return clip.model.encode_text(clip.tokenizer(PROMPTS))


@torch.no_grad()
@pytest.mark.parametrize("truncated", [True, False])
@pytest.mark.parametrize("share", [True, False])
def test_text_features_are_the_stock_models(clip, truncated, share):
    text, tokens = clip.text, clip.text.tokenize(PROMPTS)
    ids = tokens.ids_CT if truncated else clip.tokenizer(PROMPTS)
    assert tokens.shared == 4  # start, "a photo of"
    assert tokens.ids_CT.shape[1] == int(tokens.end_C.max()) + 1 < clip.geometry.context_length
    expected = stock_text(clip)
    rows = text.rows(text.embed(ids), tokens.end_C, tokens.shared if share else 0)
    assert rows.past.shape[1] == (4 if share else 0)
    assert relative_error(text.features(rows), expected) <= 1e-6
    for first in range(2, text.depth + 1):
        assert relative_error(text.features(text.run(rows, last=first - 1), first), expected) <= 1e-6
    whole = text.run(rows)
    place = whole.end + whole.past.shape[1]
    at_end = whole.unshare(0).words[torch.arange(3), place]
    assert relative_error(text._project(clip.text._text.ln_final(at_end), None), expected) <= 1e-6


@torch.no_grad()
def test_encode_gives_every_prompt_its_features(clip):
    assert relative_error(clip.text.encode(PROMPTS, batch=2), stock_text(clip)) <= 1e-6


@torch.no_grad()
def test_embeddings_before_and_after_positions(clip):
    text, tokens = clip.text, clip.text.tokenize(PROMPTS)
    stock = clip.text._text
    assert torch.equal(text.embed(tokens.ids_CT), stock.token_embedding(tokens.ids_CT))
    rows = text.rows(text.embed(tokens.ids_CT), tokens.end_C)
    length = tokens.ids_CT.shape[1]
    assert torch.equal(rows.words, stock.token_embedding(tokens.ids_CT) + stock.positional_embedding[:length])


@torch.no_grad()
@pytest.mark.parametrize("share", [True, False])
def test_an_edit_of_the_text_does_not_depend_on_what_is_shared(clip, share):
    text, tokens, seen = clip.text, clip.text.tokenize(PROMPTS), []
    new = torch.randn(1, 2, text.width, generator=torch.Generator().manual_seed(5))
    each = torch.randn(3, 1, text.width, generator=torch.Generator().manual_seed(6))

    def edit(layer, rows):
        seen.append(layer)
        if layer == 2:
            return rows.insert(1, new)
        return rows.put(3, each) if layer == text.depth else rows

    rows = text.rows(text.embed(tokens.ids_CT), tokens.end_C, tokens.shared if share else 0)
    found = text.features(rows, edit=edit)
    assert seen == list(range(1, text.depth + 1))

    x = text.rows(text.embed(tokens.ids_CT), tokens.end_C).words  # the same with the stock blocks
    for number, block in enumerate(clip.text._text.transformer.resblocks, start=1):
        if number == 2:
            x = torch.cat([x[:, :1], new.expand(3, -1, -1), x[:, 1:]], dim=1)
        if number == text.depth:
            x = torch.cat([x[:, :3], each, x[:, 4:]], dim=1)
        x = block(x, attn_mask=torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1))
    end = clip.text._text.ln_final(x[torch.arange(3), tokens.end_C + 2])
    expected = text._project(end, None)
    assert relative_error(found, expected) <= 1e-6
    assert not torch.allclose(found, text.features(rows), atol=1e-3)


@torch.no_grad()
def test_groups_of_prompts_have_pasts_of_their_own(clip):
    """As for prompts that depend on the image: the same words after two beginnings."""
    text, tokens = clip.text, clip.text.tokenize(PROMPTS)
    rows = text.rows(text.embed(tokens.ids_CT), tokens.end_C, tokens.shared)
    other = rows.past + 0.1
    both = Rows(torch.cat([rows.past, other]), rows.words.repeat(2, 1, 1), rows.end.repeat(2))
    expected = [text.features(rows), text.features(rows._replace(past=other))]
    assert torch.allclose(text.features(both), torch.cat(expected), atol=1e-5)


# Frozen quantities -----------------------------------------------------------------------------------------------


def direct(clip, images):
    """Every name of the closed list, each computed on its own from stock modules."""
    visual, known = clip.model.visual, stock_rows(clip, images)
    depth = clip.vision.depth
    block = visual.transformer.resblocks[-1]
    normed = block.ln_1(known[depth])
    _, weights = block.attn(normed, normed, normed, need_weights=True, average_attn_weights=False)
    terms = contributions(clip.vision, known[1])
    groups = [[(1, 0), (2, 1)], [(2, 0)]]
    sums = [sum(terms.heads_BLHE[:, layer - 1, head] for layer, head in group) for group in groups]
    whole = F.normalize(clip.model.encode_image(images), dim=-1)
    found = {f"rows@{layer}": known[layer] for layer in range(1, depth + 1)}
    return found | {
        "rows@0": clip.vision.embed(images),
        "feature": clip.model.encode_image(images),
        "projected": visual.ln_post(known[depth + 1]) @ visual.proj,
        "cls_attention": weights[:, :, 0].mean(1),
        TERMS: torch.stack([*sums, whole - sums[0] - sums[1]], dim=1),
    }


@torch.no_grad()
def test_every_frozen_quantity_is_what_its_name_says(clip, images):
    expected = direct(clip, images)
    together = clip.frozen(images, list(expected))
    assert list(together) == list(expected)
    for name, value in expected.items():
        alone = clip.frozen(images, [name])
        assert list(alone) == [name]
        for found in (alone[name], together[name]):
            assert found.shape == value.shape == (3, *shape_of(clip.vision, name)), name
            assert torch.allclose(found, value, atol=1e-5), name
        assert not alone[name].requires_grad
    assert torch.allclose(together["cls_attention"].sum(-1), torch.ones(3), atol=1e-5)


@torch.no_grad()
def test_the_rest_is_completed_from_any_rows(clip, images):
    expected = direct(clip, images)
    for start in range(clip.vision.depth + 1):
        known = {f"rows@{start}": expected[f"rows@{start}"]}
        names = [
            name
            for name in expected
            if ((layer := layer_named(name)) is None and not name.startswith("terms:"))
            or (layer is not None and layer >= start)
            or (name.startswith("terms:") and start <= 1)
        ]
        for chosen in (names, *([name] for name in names)):
            for name, value in clip.complete(known, chosen).items():
                assert torch.allclose(value, expected[name], atol=1e-5), (start, name)


@torch.no_grad()
def test_what_is_known_is_not_computed(clip, images):
    marked = torch.full((3, *shape_of(clip.vision, "feature")), 7.0)
    found = complete(clip.vision, {"feature": marked, "rows@1": clip.frozen(images, ["rows@1"])["rows@1"]}, ["feature"])
    assert found["feature"] is marked


@pytest.mark.parametrize("known", [{}, {"feature": None}, {"rows@2": None}])
def test_what_cannot_be_computed_is_one_sentence(clip, known):
    with pytest.raises(ConfigError, match=r"^The input of image layer 1 cannot be computed from .*\.$"):
        clip.complete(known, ["rows@1"])


@pytest.mark.parametrize("name", ["rows@99", "rows@-1", "rows@", "features", "", "terms", "plain:feature"])
def test_an_unknown_quantity_is_one_sentence(clip, images, name):
    with pytest.raises(ConfigError, match=r"^An image tower of \d+ layers has no tensor '.*'\.$"):
        clip.frozen(images, [name])


@pytest.mark.parametrize("groups", ["", "1", "1.x", "1.0;", "0.0", "99.0", "1.99", "1.-1"])
def test_heads_that_do_not_exist_are_one_sentence(clip, images, groups):
    with pytest.raises(ConfigError) as error:
        clip.frozen(images, [f"terms:{groups}"])
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError):
        check_names(clip.vision, [f"terms:{groups}"])


def test_groups_of_heads_have_names():
    groups = [[(9, 0), (9, 3)], [(10, 1)]]
    assert name_groups(groups) == "9.0,9.3;10.1"
    assert parse_groups(name_groups(groups)) == groups
