"""CLIP stays CLIP: nothing of it trains or changes, and the adapter can be switched off exactly."""

import copy

import torch

import dear
from dear.backbone.clip import content_hash
from dear.methods.base import PURPOSES
from helpers import move_parameters

NAMES = ["cat", "dog", "hot air balloon"]


def test_only_the_adapter_trains(model, images):
    before = content_hash(model.clip.model.state_dict())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    start = {name: p.detach().clone() for name, p in model.trainable().items()}
    model.train()
    labels = torch.tensor([0, 1, 2])
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        terms = model.loss(images, labels)
        terms["total"].backward()
        optimizer.step()
        losses.append(terms["total"].item())
    assert losses[-1] < losses[0]
    assert content_hash(model.clip.model.state_dict()) == before == model.clip.weights_sha256
    assert all(p.grad is None for p in model.clip.parameters())
    assert not any(p.requires_grad for p in model.clip.parameters())
    assert not any(module.training for module in model.clip.modules())
    for name, parameter in model.trainable().items():
        assert not torch.equal(parameter, start[name]), name


def test_trainable_names_and_sizes(model):
    sizes = model.clip.geometry
    assert {name: tuple(p.shape) for name, p in model.trainable().items()} == {
        "vision_tokens": (5, sizes.vision_width),
        "text_tokens": (5, sizes.text_width),
        "attribute_projection": (sizes.vision_width, sizes.embed_dim),
        "fusion_scalars": (6,),
    }


def test_low_rank_projection_starts_as_clips_own(clip, roles, images):
    low_rank = dear.DeAR(clip, roles, projection="low_rank", projection_rank=4).for_classes(NAMES)
    copy = dear.DeAR(clip, roles).for_classes(NAMES)
    expected = copy(images).features
    assert all(torch.allclose(one, expected[name], atol=1e-6) for name, one in low_rank(images).features.items())
    assert sum(p.numel() for p in low_rank.trainable().values()) < sum(p.numel() for p in copy.trainable().values())
    low_rank.loss(images, torch.tensor([0, 1, 2]))["total"].backward()
    assert low_rank.method.projection_up.grad.abs().max() > 0


def test_disabled_is_open_clip_exactly(tiny_clips):
    from helpers import varied_roles

    for clip in tiny_clips.values():
        model = dear.DeAR(clip, varied_roles(clip)).for_classes(NAMES)
        move_parameters(model)
        size = clip.geometry.image_size
        images = torch.randn(2, 3, size, size)
        image_features = clip.model.encode_image(images, normalize=True)
        text_features = clip.model.encode_text(clip.tokenizer([f"a photo of a {n}." for n in NAMES]), normalize=True)
        with model.disabled():
            out = model(images)
            assert torch.equal(out.features["cls"], image_features)
            assert torch.equal(out.classes, text_features)
            assert torch.equal(out.logits, clip.temperature * image_features @ text_features.T)
            assert list(out.features) == ["cls"]
            assert not out.weights
            from_states = model(given=model.states(images))
            assert torch.allclose(from_states.logits, out.logits, atol=1e-4)
        assert not torch.allclose(model(images).features["cls"], image_features, atol=1e-4)


def test_disabled_ends_with_its_context_even_after_an_error(model, images):
    adapted = model(images).logits
    try:
        with model.disabled():
            raise RuntimeError
    except RuntimeError:
        pass
    assert torch.equal(model(images).logits, adapted)


def test_decoupled_uses_the_cls_feature_alone(model, images):
    out = model(images)
    assert list(out.readouts) == ["fusion", "decoupled"]
    assert out.logits is out.readouts["fusion"]
    assert torch.equal(out.readouts["decoupled"], model.clip.temperature * out.features["cls"] @ out.classes.T)
    assert not torch.equal(out.logits, out.readouts["decoupled"])
    assert [model.readout(purpose) for purpose in PURPOSES] == ["fusion", "fusion", "decoupled"]


def test_shapes(model, images):
    out = model(images)
    embed = model.clip.geometry.embed_dim
    names = ("cls", *model.method.roles.attributes)
    assert {name: tuple(one.shape) for name, one in out.readouts.items()} == {"fusion": (3, 3), "decoupled": (3, 3)}
    assert {name: tuple(one.shape) for name, one in out.features.items()} == dict.fromkeys(names, (3, embed))
    assert {name: tuple(one.shape) for name, one in out.weights.items()} == dict.fromkeys(names, ())
    assert out.classes.shape == (3, embed)
    for features in (*out.features.values(), out.classes):
        assert torch.allclose(features.norm(dim=-1), torch.ones(features.shape[:-1]), atol=1e-6)


def test_under_autocast(model, images):
    """Mixed precision as on a GPU: features stay near, gradients stay finite and in fp32."""
    full = model(images)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(images)
        terms = model.loss(images, torch.tensor([0, 1, 2]))
    terms["total"].backward()
    cls = out.features["cls"]
    assert out.logits.dtype == cls.dtype == torch.float32
    exact = model.clip.temperature * cls @ out.classes.T
    assert torch.allclose(out.readouts["decoupled"], exact, atol=1e-5)  # a cosine times τ is never computed in bf16
    assert not torch.equal(cls, full.features["cls"])
    assert ((cls * full.features["cls"]).sum(-1) > 0.999).all()
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in model.trainable().values())


def test_nothing_is_kept_from_autocast(model, images):
    with torch.no_grad():
        expected = model(images).logits
        with torch.autocast("cpu", torch.bfloat16):
            assert not torch.equal(model(images).logits, expected)
        assert torch.equal(model(images).logits, expected)
        trained = model.for_classes(model.classes)  # as in training, whose first step is under autocast
        with torch.autocast("cpu", torch.bfloat16):
            trained.frozen_parts()
            assert not torch.equal(trained(images).logits, expected)
        assert torch.equal(trained(images).logits, expected)


def test_clip_cannot_be_unfrozen(model, images):
    model.requires_grad_(True).train()
    model.clip.requires_grad_(True)
    model.loss(images, torch.tensor([0, 1, 2]))["total"].backward()
    with_gradients = {name for name, p in model.named_parameters() if p.grad is not None}
    assert with_gradients == {f"method.{name}" for name in model.trainable()}
    model.requires_grad_(False)
    assert not any(p.requires_grad for p in model.parameters())


def test_disabled_follows_the_classes(model, images):
    with model.disabled():
        assert model(images).logits.shape == (3, 3)
        view = model.for_classes(["fish", "bird"])
        prompts = ["a photo of a fish.", "a photo of a bird."]
        assert torch.equal(view(images).classes, model.clip.encode_text(prompts))
        assert torch.equal(view.class_features(), model.clip.encode_text(prompts))
    assert not torch.equal(view(images).classes, model.clip.encode_text(prompts))


def test_start_of_a_random_projection(clip, roles):
    projection = dear.DeAR(clip, roles, projection="random").method.attribute_projection
    assert abs(projection.std().item() * clip.geometry.vision_width**0.5 - 1) < 0.1
    assert torch.equal(dear.DeAR(clip, roles).method.attribute_projection, clip.vision.projection)


def test_half_precision_of_everything(model, images):
    low = copy.deepcopy(model).bfloat16()  # a copy: the backbone is shared by all tests
    cosine = (low(images).features["cls"] * model(images).features["cls"]).sum(-1)
    assert cosine.min() > 0.99


def test_same_seed_same_start(clip, roles):
    first, again, other = (dear.DeAR(clip, roles, seed=seed) for seed in (3, 3, 4))
    for name, parameter in first.trainable().items():
        assert torch.equal(parameter, again.trainable()[name])
    assert not torch.equal(first.method.vision_tokens, other.method.vision_tokens)
    assert abs(dear.DeAR(clip, roles).method.vision_tokens.std().item() - 0.02) < 0.004
