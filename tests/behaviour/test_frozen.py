"""CLIP stays CLIP: nothing of it trains or changes, and the adapter can be switched off exactly."""

import copy

import torch

import dear
from dear.backbone.clip import content_hash
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
        terms = model.loss(model(images), labels, images=images)
        terms.total.backward()
        optimizer.step()
        losses.append(terms.total.item())
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
    low_rank = dear.DeAR(clip, roles, projection="low_rank", projection_rank=4)
    copy = dear.DeAR(clip, roles)
    for model in (low_rank, copy):
        model.set_classes(NAMES)
    assert torch.allclose(low_rank(images).attr_features, copy(images).attr_features, atol=1e-6)
    assert sum(p.numel() for p in low_rank.trainable().values()) < sum(p.numel() for p in copy.trainable().values())
    low_rank.loss(low_rank(images), torch.tensor([0, 1, 2])).total.backward()
    assert low_rank.projection_up.grad.abs().max() > 0


def test_disabled_is_open_clip_exactly(tiny_clips):
    from helpers import varied_roles

    for clip in tiny_clips.values():
        model = dear.DeAR(clip, varied_roles(clip))
        move_parameters(model)
        model.set_classes(NAMES)
        size = clip.geometry.image_size
        images = torch.randn(2, 3, size, size)
        image_features = clip.model.encode_image(images, normalize=True)
        text_features = clip.model.encode_text(clip.tokenizer([f"a photo of a {n}." for n in NAMES]), normalize=True)
        with model.disabled():
            out = model(images)
            assert torch.equal(out.cls_features, image_features)
            assert torch.equal(out.class_features, text_features)
            assert torch.equal(out.logits, clip.temperature * image_features @ text_features.T)
            assert out.attr_logits.shape == (2, 0, 3)
            assert out.alpha.tolist() == [1.0]
            from_prefix = model.from_prefix(model.image_prefix(images))
            assert torch.allclose(from_prefix.logits, out.logits, atol=1e-4)
        assert not torch.allclose(model(images).cls_features, image_features, atol=1e-4)


def test_disabled_ends_with_its_context_even_after_an_error(model, images):
    adapted = model(images).logits
    try:
        with model.disabled():
            raise RuntimeError
    except RuntimeError:
        pass
    assert torch.equal(model(images).logits, adapted)


def test_decoupled_uses_the_cls_feature_alone(model, images):
    fused, decoupled = model(images), model(images, strategy="decoupled")
    assert torch.equal(decoupled.logits, decoupled.cls_logits)
    assert torch.equal(fused.cls_logits, decoupled.cls_logits)
    assert not torch.equal(fused.logits, decoupled.logits)


def test_shapes(model, images):
    out = model(images)
    embed = model.clip.geometry.embed_dim
    assert {
        name: tuple(getattr(out, name).shape)
        for name in out.__dataclass_fields__
        if name not in ("classes", "image_prefix", "plain_features")
    } == {
        "logits": (3, 3),
        "cls_logits": (3, 3),
        "attr_logits": (3, 5, 3),
        "alpha": (6,),
        "cls_features": (3, embed),
        "attr_features": (3, 5, embed),
        "class_features": (3, embed),
    }
    for features in (out.cls_features, out.attr_features, out.class_features):
        assert torch.allclose(features.norm(dim=-1), torch.ones(features.shape[:-1]), atol=1e-6)


def test_under_autocast(model, images):
    """Mixed precision as on a GPU: features stay near, gradients stay finite and in fp32."""
    full = model(images)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(images)
        terms = model.loss(out, torch.tensor([0, 1, 2]), images=images)
    terms.total.backward()
    assert out.logits.dtype == out.cls_features.dtype == torch.float32
    exact = model.clip.temperature * out.cls_features @ out.class_features.T
    assert torch.allclose(out.cls_logits, exact, atol=1e-5)  # a cosine times τ is never computed in bf16
    assert ((out.cls_features * full.cls_features).sum(-1) > 0.999).all()
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in model.trainable().values())


def test_nothing_is_kept_from_autocast(model, images):
    with torch.no_grad():
        expected = model(images).logits
        model.set_classes(["another", "list"])
        with torch.autocast("cpu", torch.bfloat16):
            model.set_classes(NAMES)
            assert not torch.equal(model(images).logits, expected)
        assert torch.equal(model(images).logits, expected)


def test_clip_cannot_be_unfrozen(model, images):
    model.requires_grad_(True).train()
    model.clip.requires_grad_(True)
    model.loss(model(images), torch.tensor([0, 1, 2])).total.backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == set(model.trainable())
    model.requires_grad_(False)
    assert not any(p.requires_grad for p in model.parameters())


def test_disabled_follows_the_classes(model, images):
    with model.disabled():
        assert model(images).logits.shape == (3, 3)
        model.set_classes(["fish", "bird"])
        prompts = ["a photo of a fish.", "a photo of a bird."]
        assert torch.equal(model(images).class_features, model.clip.encode_text(prompts))
        assert torch.equal(model.class_features(), model.clip.encode_text(prompts))


def test_start_of_a_random_projection(clip, roles):
    projection = dear.DeAR(clip, roles, projection="random").attribute_projection
    assert abs(projection.std().item() * clip.geometry.vision_width**0.5 - 1) < 0.1
    assert torch.equal(dear.DeAR(clip, roles).attribute_projection, clip.vision.projection)


def test_half_precision_of_everything(model, images):
    low = copy.deepcopy(model).bfloat16()  # a copy: the backbone is shared by all tests
    cosine = (low(images).cls_features * model(images).cls_features).sum(-1)
    assert cosine.min() > 0.99


def test_same_seed_same_start(clip, roles):
    first, again, other = (dear.DeAR(clip, roles, seed=seed) for seed in (3, 3, 4))
    for name, parameter in first.trainable().items():
        assert torch.equal(parameter, again.trainable()[name])
    assert not torch.equal(first.vision_tokens, other.vision_tokens)
    assert abs(dear.DeAR(clip, roles).vision_tokens.std().item() - 0.02) < 0.004
