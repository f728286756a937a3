"""Every kind of image tower, layer by layer, against its own code; each check is shown to notice a mistake."""

from dataclasses import replace

import pytest
import torch
from open_clip.model import CLIPVisionCfg, _build_vision_tower

from dear.backbone.head_contributions import contributions, group_terms
from dear.backbone.image_towers import TimmImage
from dear.backbone.layers import same
from dear.backbone.vision import VisionTower
from tiny_towers import EMBED, IMAGES, noisy

NEW, FIRST = 3, 3  # new rows, and the first layer that sees them
ROLES = (0, 1, "mixed", "generalization")
CLOSE = 1e-6
pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def towers():
    torch.manual_seed(0)
    found = {}
    for name, config in IMAGES.items():
        embed = 64 if "siglip" in name else EMBED
        found[name] = VisionTower(noisy(_build_vision_tower(embed, CLIPVisionCfg(**config))), embed)
    return found


@pytest.fixture(params=IMAGES)
def vision(request, towers):
    return towers[request.param]


@pytest.fixture(scope="module")
def images():
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def error(ours, theirs):
    """The largest difference, relative to the largest value."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


def start(vision, images):
    return vision.norm_in(vision.embed(images))


def mask_of(roles, rows):
    """DeAR's mask: (1, H, L, L)."""
    new = torch.arange(rows + NEW) >= rows
    mask = torch.ones(len(roles), rows + NEW, rows + NEW, dtype=torch.bool)
    for head, role in enumerate(roles):
        if role == "generalization":
            mask[head] = ~(new[:, None] ^ new[None])
        elif role != "mixed":
            mask[head][:, rows:] = torch.arange(NEW)[None] == role
    return mask[None]


def tokens(vision):
    return torch.randn(NEW, vision.width, generator=torch.Generator().manual_seed(2)) * 0.5


def with_tokens(vision, x, roles, layers=None):
    """The rows after the last layer, with new rows that are carried as DeAR's are."""
    rows, new = vision.rows, tokens(vision)

    def edit(layer, x):
        carried = new.expand(len(x), -1, -1) if layer == FIRST else 0.9 * new + 0.1 * x[:, rows:]
        return torch.cat([x[:, :rows], carried], 1)

    mask = mask_of(roles, rows)
    return vision.run(vision.run(x, last=FIRST - 1), FIRST, edit=edit, masks=lambda _: mask, layers=layers)


def stock_with_tokens(vision, x, roles):
    """The same by the blocks' own code, new rows first, where rotary towers do not turn rows."""
    rows, new = vision.rows, tokens(vision)
    order = torch.cat([torch.arange(rows, rows + NEW), torch.arange(rows)])
    mask = mask_of(roles, rows)[:, :, order][:, :, :, order]
    mask = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
    trunk = getattr(vision._visual, "trunk", None)
    turned = {"rope": trunk.rope.get_embed()} if getattr(trunk, "rope", None) is not None else {}
    for number, block in enumerate(vision.blocks, 1):
        if number < FIRST:
            x = block(x, **turned)
            continue
        fresh = new.expand(len(x), -1, -1) if number == FIRST else 0.9 * new + 0.1 * x[:, :NEW]
        x = torch.cat([fresh, x if number == FIRST else x[:, NEW:]], 1)
        if turned:
            block.attn.num_prefix_tokens = vision.prefix + NEW
        each = mask.expand(len(x), -1, -1, -1)
        x = block(x, attn_mask=each.flatten(0, 1) if trunk is None else each, **turned)
        if turned:
            block.attn.num_prefix_tokens = vision.prefix
    return torch.cat([x[:, NEW:], x[:, :NEW]], 1)


@torch.no_grad()
def test_layer_by_layer_is_the_stock_forward(vision, images):
    stock, x = vision.stock(images), start(vision, images)
    assert vision.rows == x.shape[1] == vision.prefix + vision.grid[0] * vision.grid[1]
    assert error(vision.feature(vision.run(x)), stock) <= CLOSE
    assert error(vision.feature(vision.run(x, read=vision.pooled)), stock) <= CLOSE
    assert stock.std(0).max() > 0.01  # images differ


@torch.no_grad()
def test_rows_of_the_last_layer_alone(vision, images):
    x = start(vision, images)
    whole = vision.run(x)
    for rows in ([0], [2, 0, 3], list(range(vision.rows))):
        assert error(vision.run(x, read=rows), whole[:, rows]) <= CLOSE
    if vision.layers[0].turns:  # the place of a query matters
        before = vision.run(x, last=vision.depth - 1)
        assert error(vision.layers[-1].run(before, queries=before[:, [3]], at=[0]), whole[:, [3]]) > 1e-3


@torch.no_grad()
def test_roles_are_the_stock_blocks_with_a_mask(vision, images):
    x = start(vision, images)
    ours, theirs = with_tokens(vision, x, ROLES), stock_with_tokens(vision, x, ROLES)
    assert error(ours, theirs) <= CLOSE
    assert error(with_tokens(vision, x, ROLES[::-1]), theirs) > 1e-3


@torch.no_grad()
def test_shielded_the_feature_is_the_frozen_one(vision, images):
    stock, x = vision.stock(images), start(vision, images)
    shielded = with_tokens(vision, x, ["generalization"] * 4)
    assert error(vision.feature(shielded), stock) <= CLOSE
    assert error(vision.feature(with_tokens(vision, x, ROLES)), stock) > 1e-2  # roles move it
    if vision.pool.kind != "token":
        assert error(vision.pool.read(shielded), stock) > 1e-3  # new rows must not be pooled


@torch.no_grad()
def test_a_new_row_starts_as_the_pool_of_a_sequence_of_one_row(vision, images):
    x, pool = with_tokens(vision, start(vision, images), ROLES), replace(vision.pool, first=0)
    each = torch.stack([pool.read(x[:, vision.rows + at :][:, :1]) for at in range(NEW)], 1)
    assert error(vision.read(x[:, vision.rows :]), each) <= CLOSE
    assert error(vision.read(x[:, vision.rows :], projection=vision.projection * 1.01), each) > 1e-3
    assert vision.projection.shape == (vision.width, vision.width if pool.kind == "map" else vision.embed_dim)


@torch.no_grad()
def test_the_pool_is_a_weighted_sum_of_rows(vision, images):
    x = vision.run(start(vision, images))
    weights, pool = vision.pool.rows(x), vision.pool
    assert torch.allclose(weights.sum(-1), torch.ones(weights.shape[:2]), atol=1e-5)
    assert weights.shape == (3, pool.attention.num_heads if pool.kind == "map" else 1, vision.rows)
    unread = weights.amax((0, 1)) == 0
    x[:, unread] += 1
    assert error(vision.feature(x), vision.stock(images)) <= CLOSE


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("custom", {"q_norm": same}),
        ("registers", {"k_norm": same}),
        ("eva02", {"inner": same}),
        ("clip-scales", {"post1": same}),
        ("gap", {"post2": same}),
        ("eva02-e", {"post1": same}),
        ("eva02", {"turns": None}),
        ("pe", {"turns": None}),
        ("pe-g", {"halves": True}),
    ],
)
def test_a_part_that_is_left_out_is_noticed(towers, images, name, part):
    vision = towers[name]
    layers = [replace(one, **part) for one in vision.layers]
    assert error(vision.feature(vision.run(start(vision, images), layers=layers)), vision.stock(images)) > 1e-3


@torch.no_grad()
def test_values_without_their_bias_are_noticed(vision, images):
    layers = [replace(one, project=no_value_bias(one)) for one in vision.layers]
    assert error(vision.feature(vision.run(start(vision, images), layers=layers)), vision.stock(images)) > 1e-3


def no_value_bias(layer):
    def project(x, which):
        zero = layer.project(torch.zeros_like(x), which)
        plain = layer.project(x, which)
        return tuple(y - b if letter == "v" else y for letter, y, b in zip(which, plain, zero, strict=True))

    return project


@torch.no_grad()
@pytest.mark.parametrize("name", ["eva02", "pe", "pe-g"])
def test_new_rows_that_are_turned_are_noticed(towers, images, name, monkeypatch):
    vision, right = towers[name], TimmImage._turns
    x = start(vision, images)
    theirs = stock_with_tokens(vision, x, ROLES)
    monkeypatch.setattr(
        TimmImage, "_turns", lambda self, rows: right(self, self.prefix + 16)[-rows:].repeat(2, 1)[:rows]
    )
    assert error(with_tokens(vision, x, ROLES), theirs) > 1e-3


@torch.no_grad()
def test_attention_to_patches_is_a_share(vision, images):
    x = vision.run(start(vision, images), last=vision.depth - 1)
    after = vision.run(x, vision.depth)
    found, local = vision.attention(x, after), vision.local(after)
    patches = vision.grid[0] * vision.grid[1]
    assert found.shape == (3, 1 + patches)
    assert float(found.min()) >= 0
    assert float(found.sum(-1).max()) <= 1 + 1e-5
    assert local.shape == (3, 1 + patches, vision.embed_dim)
    assert error(local[:, 0], vision.stock(images)) <= CLOSE


GROUPS = [[(4, 0), (5, 3), (1, 2)], [(5, 0)]]


@torch.no_grad()
@pytest.mark.parametrize("through", [True, False])
def test_terms_of_heads_sum_to_the_feature(vision, images, through):
    stock = torch.nn.functional.normalize(vision.stock(images), dim=-1)
    found = contributions(vision, start(vision, images), through=through)
    assert error(found.total(), stock) <= CLOSE
    assert found.heads_BLHE.shape == (3, 5, 4, vision.embed_dim)
    assert (found.pool_BE is not None) == (vision.pool.kind == "map" and not through)
    assert error(found.total() - found.heads_BLHE[:, 2, 1], stock) > 1e-3  # a head that is left out
    if through:
        terms = group_terms(vision, start(vision, images), GROUPS)
        assert error(terms, found.grouped(GROUPS)) <= 2 * CLOSE


def test_other_towers_have_no_layers():
    resnet = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None, "head_width": 16}
    tower = _build_vision_tower(EMBED, CLIPVisionCfg(**resnet))
    assert not VisionTower(tower).has_layers
    pooler = _build_vision_tower(EMBED, CLIPVisionCfg(**IMAGES["clip"], attentional_pool=True))
    assert not VisionTower(pooler).has_layers
    cosine = _build_vision_tower(EMBED, CLIPVisionCfg(**IMAGES["clip"], scaled_cosine_attn=True))
    assert not VisionTower(cosine).has_layers
