"""Methods on every kind of CLIP: 17 image towers, 6 text towers, through the real loader.

The quick part pairs every image tower with a text tower. `slow` is the whole cross product.
"""

import copy

import pytest
import torch
import torch.nn.functional as F

import dear
from dear.backbone.frozen import shape_of
from dear.backbone.layer_kinds import layer_of
from dear.errors import BackboneError, ConfigError, RoleMapError
from dear.methods.parts.lora import LowRank, with_low_rank
from dear.methods.registry import get_method
from dear.model.explanation import explain_image
from dear.model.load import make_method
from dear.retrieval.encoder import head_encoder
from dear.roles.ablation import check_fits
from dear.roles.capture import contributions
from dear.roles.discover import places_of
from helpers import build, largest, make_photos, move_parameters, plain_images, varied_roles
from plain_towers import plain_clip
from tiny_towers import IMAGES, TEXTS, noisy, tiny_clip

NAMES = ["cat", "dog", "hot air balloon"]
METHODS = ("coop", "maple", "mmrl", "clip_lora", "dear")
PAIRS = [(image, list(TEXTS)[number % len(TEXTS)]) for number, image in enumerate(IMAGES)]
THREE = [("siglip", "siglip"), ("pe", "coca"), ("registers", "mobileclip")]
"""Attention pooling without and with rotary positions, and an average with registers."""
CLOSE = 1e-6
pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """CLIPs by the names of their towers; each is made once."""
    made = {}

    def clip(image, text):
        if (image, text) not in made:
            made[image, text] = tiny_clip(tmp_path_factory.mktemp("clip"), image, text)
        return made[image, text]

    return clip


def error(ours, theirs):
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-12))


def check_method(name, clip):
    """Outputs and gradients of a method equal those on towers without any saving, and CLIP gets no gradient."""
    model = build(name, clip, NAMES)
    move_parameters(model)
    plain = dear.Model(plain_clip(clip), copy.deepcopy(model.method), trained_on=tuple(NAMES)).for_classes(NAMES)
    images, labels = plain_images(clip, 2), torch.tensor([0, 2])
    found = []
    for one in (model, plain):
        outputs = one(images).readouts.values()
        loss = sum(one.loss(images, labels).values())
        gradients = torch.autograd.grad(loss, list(one.trainable().values()), allow_unused=True)
        found.append([*outputs, *(g for g in gradients if g is not None and g.numel())])
    ours, theirs = found
    assert len(ours) == len(theirs)
    scale = max(float(one.abs().max()) for one in theirs)
    pairs = zip(ours, theirs, strict=True)
    wrong = largest(float((a - b).abs().max()) / max(float(b.abs().max()), 1e-2 * scale) for a, b in pairs)
    assert wrong <= 5e-4, wrong
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in clip.model.parameters())


def has_numbers(name, clip):
    """Whether a method has parameters before its training; those of a linear probe have no values yet."""
    return any(one.numel() for one in build(name, clip, NAMES).trainable().values())


@pytest.mark.parametrize(("image", "text"), PAIRS)
def test_methods_on_every_kind_of_tower(clips, image, text):
    for name in METHODS:
        check_method(name, clips(image, text))


@pytest.mark.parametrize("name", dear.list_methods())
def test_every_method_on_a_tower_of_another_kind(clips, name):
    image, text = THREE[dear.list_methods().index(name) % 3]
    if name == "llamp" and not clips(image, text).text.causal:
        image, text = "pe", "coca"
    if has_numbers(name, clips(image, text)):
        check_method(name, clips(image, text))


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("image", IMAGES)
def test_the_whole_cross_product(clips, image, text):
    for name in METHODS:
        check_method(name, clips(image, text))


@pytest.mark.slow
@pytest.mark.parametrize("name", dear.list_methods())
@pytest.mark.parametrize(("image", "text"), THREE)
def test_all_methods_on_three_towers(clips, image, text, name):
    if name != "llamp" and has_numbers(name, clips(image, text)):
        check_method(name, clips(image, text))


def trained(model, steps=4):
    images, labels = plain_images(model.clip, 3, seed=5), torch.tensor([0, 1, 2])
    optimiser = torch.optim.SGD(model.trainable().values(), lr=1e-3)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = model.loss(images, labels)["total"]
        loss.backward()
        optimiser.step()
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize("image", IMAGES)
def test_shielded_dear_has_the_frozen_feature_after_training(clips, image):
    clip = clips(image, dict(PAIRS)[image])
    images = plain_images(clip, 3)
    frozen = F.normalize(clip.stock_feature(images), dim=-1)
    shielded = build("dear", clip, NAMES, mask="all_generalization")
    losses = trained(shielded)
    assert losses[-1] < losses[0]
    mixed = build("dear", clip, NAMES, mask="all_mixed")
    trained(mixed)
    with torch.no_grad():
        assert error(shielded(images).features["cls"], frozen) <= CLOSE
        assert error(mixed(images).features["cls"], frozen) > 1e-4


@torch.no_grad()
@pytest.mark.parametrize("image", IMAGES)
def test_low_rank_terms_are_merged_weights(clips, image):
    vision = clips(image, dict(PAIRS)[image]).vision
    block, layer, width = vision.blocks[1], vision.layers[1], vision.width
    x, generator = torch.randn(2, vision.rows, width), torch.Generator().manual_seed(0)
    terms = {letter: LowRank(width, 2, generator) for letter in "qv"}
    merged = copy.deepcopy(block)
    for letter, term in terms.items():
        term.B.normal_(generator=generator)
        added, attention = 0.5 * term.B @ term.A, merged.attn
        at = "qkv".index(letter) * width
        if getattr(attention, "q_proj", None) is not None:
            getattr(attention, f"{letter}_proj").weight += added
        else:
            weight = attention.in_proj_weight if hasattr(attention, "in_proj_weight") else attention.qkv.weight
            weight[at : at + width] += added
    ours, theirs = with_low_rank(layer, terms, 0.5).run(x), layer_of(merged, layer.turns).run(x)
    assert error(ours, theirs) <= CLOSE
    assert error(layer.run(x), theirs) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("image", IMAGES)
def test_half_precision_is_as_near_as_the_stock_model(tmp_path, image):
    clip = tiny_clip(tmp_path, image, "causal")
    half = dear.load_clip(f"local-dir:{tmp_path}", "random", precision="bf16")
    noisy(half.model, seed=3)
    images = plain_images(clip, 3)
    right = clip.stock_feature(images)
    found = half.frozen(images, ["feature"])["feature"]
    assert error(found, right) <= max(0.03, 3 * error(half.stock_feature(images), right))


@torch.no_grad()
@pytest.mark.parametrize("text", TEXTS)
def test_text_features_are_the_stock_models(clips, text):
    tower = clips("clip", text).text
    prompts = ["a photo of a cat.", "a photo of a much longer name, hot", "a photo of x"]
    tokens = tower.tokenize(prompts)
    stock = tower.stock(tower._tokenizer(prompts, context_length=tower.context))
    assert error(tower.encode(prompts), stock) <= CLOSE
    for shared in {0, tokens.shared}:
        rows = tower.rows(tower.embed(tokens.ids_CT), tokens.end_C, shared)
        for first in range(1, tower.depth + 1):
            assert error(tower.features(tower.run(rows, last=first - 1), first), stock) <= CLOSE
    if not tower.causal and tower._pool != "first":  # a saving that is not exact there
        cut = tower.rows(tower.embed(tokens.ids_CT[:, : int(tokens.end_C.max()) + 1]), tokens.end_C)
        assert error(tower.features(cut), stock) > 1e-2
    assert tower.first == 1
    assert [tower.count(words) for words in ("cat", "hot air balloon")] == [1, 3]


@torch.no_grad()
@pytest.mark.parametrize("text", ["siglip", "mobileclip"])
def test_deep_tokens_of_bidirectional_towers_may_be_anywhere(clips, text):
    tower = clips("clip", text).text
    tokens = tower.tokenize(["a photo of a cat.", "x"])
    extra = torch.randn(1, 3, tower.width)
    rows = tower.run(tower.rows(tower.embed(tokens.ids_CT), tokens.end_C), last=2)
    first, last = (tower.features(rows.insert(at, extra), 3) for at in (1, tower.context))
    assert error(first, last) <= CLOSE
    assert error(first, tower.features(rows, 3)) > 1e-2


def test_an_adapter_is_saved_and_loaded(clips, tmp_path):
    clip = clips("siglip", "siglip")
    model = build("dear", clip, NAMES)
    move_parameters(model)
    model.save_pretrained(tmp_path / "adapter")
    again = dear.load(tmp_path / "adapter", clip=clip)
    images = plain_images(clip, 2)
    assert torch.equal(again.for_classes(NAMES)(images).logits, model(images).logits)
    assert again.method.attribute_projection.shape == (64, 64)


RESNET = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None, "head_width": 16}


def test_a_tower_without_layers_has_features_and_words(tmp_path, monkeypatch):
    monkeypatch.setitem(IMAGES, "resnet", RESNET)
    clip = tiny_clip(tmp_path, "resnet", "causal")
    assert clip.can == {"features", "words", "text layers", "causal text"}
    assert clip.geometry.pool == ""
    for name in ("zero_shot", "coop", "tcp", "tip_adapter", "clip_adapter"):
        assert build(name, clip, NAMES)(plain_images(clip, 2)).logits.shape == (2, 3)
    with pytest.raises(BackboneError) as said:
        make_method("maple", clip)
    message = str(said.value)
    assert message.startswith("maple needs the layers of the image tower, and those of ")
    assert "a ResNet, cannot be reached. With " in message
    listed = message.rpartition("you can use: ")[2].rstrip(".").split(", ")
    assert {"coop", "tcp", "zero_shot"} <= set(listed)
    assert not {"maple", "dear", "vpt"} & set(listed)


def test_llamp_says_that_it_needs_a_causal_text_tower(clips):
    """Refused with the sentence of all methods, which lists those that work, as `dear ls backbones` does."""
    clip = clips("siglip", "siglip")
    assert clip.can == {"features", "words", "text layers", "image layers"}
    with pytest.raises(BackboneError, match=r"^llamp needs a causal text tower, and that of .* is not\. With ") as said:
        make_method("llamp", clip)
    listed = str(said.value).rpartition("you can use: ")[2].rstrip(".").split(", ")
    assert set(dear.list_methods()) - set(listed) == {"llamp"}


def test_what_needs_heads_says_so_on_a_tower_without_any(tmp_path, monkeypatch):
    monkeypatch.setitem(IMAGES, "resnet", RESNET)
    clip = tiny_clip(tmp_path, "resnet", "causal")
    model = build("zero_shot", clip, NAMES)
    roles = varied_roles(tiny_clip(tmp_path / "other", "clip", "causal"))
    for who, call in (
        ("Finding the roles of heads", lambda: places_of(clip, None)),
        ("Removing heads", lambda: check_fits(clip, roles)),
        ("Search by attribute", lambda: head_encoder(clip, roles)),
        ("An explanation", lambda: explain_image(model, plain_images(clip, 1)[0])),
    ):
        with pytest.raises(BackboneError, match=f"{who} needs the layers of the image tower, and those of .* a ResNet"):
            call()


@torch.no_grad()
@pytest.mark.parametrize("image", IMAGES)
def test_frozen_tensors(clips, image):
    """Every name has its shape, whatever it is computed from, and head features sum to the unit feature."""
    clip = clips(image, dict(PAIRS)[image])
    images, names = plain_images(clip, 2), ["rows@3", "projected", "cls_attention", "terms:5.0,4.1;2.3", "feature"]
    found = clip.frozen(images, names)
    again = clip.complete(clip.frozen(images, ["rows@1"]), names)
    stock = clip.stock_feature(images)
    for name in names:
        assert found[name].shape == (2, *shape_of(clip.vision, name)), name
        assert error(again[name], found[name]) <= CLOSE, name
    assert error(found["feature"], stock) <= CLOSE
    assert error(found["terms:5.0,4.1;2.3"].sum(1), F.normalize(stock, dim=-1)) <= CLOSE


def test_roles_are_found_and_searched_by(clips):
    clip = clips("siglip", "siglip")
    images = plain_images(clip, 3)
    roles = varied_roles(clip)
    assert places_of(clip, None) == [(layer, head) for layer in range(2, 6) for head in range(4)]
    encoder = head_encoder(clip, roles)
    parts = encoder.encode(images)
    assert parts.shape == (3, len(encoder.kinds), clip.geometry.embed_dim)
    assert error(parts[:, 0], F.normalize(clip.stock_feature(images), dim=-1)) <= CLOSE


def test_whole_images_are_searched_without_a_role_map(tmp_path, monkeypatch):
    monkeypatch.setitem(IMAGES, "resnet", RESNET)
    clip, photos = tiny_clip(tmp_path / "clip", "resnet", "causal"), make_photos(tmp_path / "photos", ["ant", "bee"], 3)
    index = dear.index_images(photos, tmp_path / "index", clip=clip, kinds=["cls"])
    asked = photos / "ant" / "0.png"
    found = dear.search(clip, asked, index=index.out, top_k=6)
    assert len(found) == 6
    assert {hit.by for hit in found} == {"cls"}
    with pytest.raises(ConfigError, match="color"):
        dear.search(clip, asked, index=index.out, by="color")
    images = plain_images(clip, 2)
    whole = head_encoder(clip, kinds=["cls"]).encode(images)
    assert error(whole[:, 0], F.normalize(clip.stock_feature(images), dim=-1)) <= CLOSE
    other = tiny_clip(tmp_path / "other", "clip", "causal")
    with pytest.raises(RoleMapError, match=r"search by attribute is not available: .*, with kinds='cls'"):
        dear.index_images(photos, tmp_path / "more", clip=other)


def test_every_method_names_what_it_needs(clips, tmp_path, monkeypatch):
    """A method that declares too little would fail in the middle on a tower without layers."""
    monkeypatch.setitem(IMAGES, "resnet", RESNET)
    clip = tiny_clip(tmp_path, "resnet", "causal")
    for name in dear.list_methods():
        if "image layers" in get_method(name).needs_of_clip:
            with pytest.raises(BackboneError, match=r"needs .*the layers of the image tower"):
                build(name, clip, NAMES)
        else:
            assert build(name, clip, NAMES)(plain_images(clip, 2)).logits.shape == (2, 3), name


@pytest.mark.parametrize("image", IMAGES)
def test_explanations_sum_to_the_logits_and_agree_with_the_split(clips, image):
    """Two independent computations of each head's part: by slopes of rows, and by sums of rows."""
    clip = clips(image, dict(PAIRS)[image])
    images = plain_images(clip, 1)
    for name in ("zero_shot", "dear", "vpt", "clip_lora", "role_gains"):
        model = build(name, clip, NAMES)
        move_parameters(model)
        found = explain_image(model, images[0])
        scale = max(map(abs, found.logits))
        assert found.sums() == pytest.approx(list(found.logits), abs=1e-5 * scale), name
        assert float(found.parts[-1].values_C.abs().max()) <= 1e-4 * scale, name
        assert found.heat().shape == (3, *clip.vision.grid)
    found = explain_image(build("zero_shot", clip, NAMES), images[0])
    classes = clip.encode_text([f"a photo of a {name}." for name in found.classes])
    heads = contributions(clip, images).heads_BLHE[0] @ classes.T * clip.temperature
    for part in (part for part in found.parts if part.kind == "head"):
        expected = heads[part.layer - 1, part.head]
        assert torch.allclose(part.values_C[:-1].float(), expected, atol=1e-4 * clip.temperature), part.name
