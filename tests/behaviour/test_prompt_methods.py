"""What CoOp's successors do that no other method does."""

from dataclasses import replace

import pytest
import torch

import dear
from dear.data.prompts import class_list
from dear.engine.feed import StepImages
from dear.engine.gradients import share_of_step
from dear.engine.run import run_job
from dear.errors import ConfigError
from dear.methods import cocoop
from dear.model.load import make_method
from helpers import build, plain_images
from toys import Toy

NAMES = ["cat", "hot air balloon", "dog"]
MAPLE = {"base": "maple", "depth": 3}


@pytest.fixture
def clip(tiny_clips):
    return tiny_clips["plain"]


@torch.no_grad()
def test_parts_of_a_batch_are_the_whole(tiny_clips, monkeypatch):
    clip = tiny_clips["shallow"]  # exporting is slow
    model, images = build("cocoop", clip, NAMES), plain_images(clip, 5)
    whole = model(images).logits
    monkeypatch.setattr(cocoop, "PROMPTS_AT_ONCE", 2 * len(NAMES))
    assert torch.allclose(model(images).logits, whole, atol=1e-5)
    free = {"images": {0: torch.export.Dim("batch")}}
    exported = torch.export.export(model.baked(), (images[:3],), dynamic_shapes=free, strict=False).module()
    assert torch.allclose(exported(images), whole, atol=1e-5)


@torch.no_grad()
def test_the_context_runs_once_per_image_not_per_class(clip, monkeypatch):
    model, images = build("cocoop", clip, NAMES), plain_images(clip, 4)
    text, seen, right = model.text(), [], clip.text.features

    def watched(rows, **how):
        seen.append(rows)
        return right(rows, **how)

    monkeypatch.setattr(clip.text, "features", watched)
    model(images)
    (rows,) = seen
    assert rows.past.shape[:2] == (4, 5)
    assert rows.words.shape[:2] == (4 * len(NAMES), text.words.shape[1] - 5)


@torch.no_grad()
def test_each_image_has_class_features_of_its_own(clip):
    model, images = build("cocoop", clip, NAMES), plain_images(clip, 2)
    model.method.meta_net.linear1.bias += 2  # its one hidden number is positive for both
    model.method.meta_net.linear2.weight *= 50
    features = model.method.features(clip, model(images).features["cls"], model.text())
    assert features.shape == (2, 3, clip.geometry.embed_dim)
    assert not torch.allclose(features[0], features[1], atol=1e-5)
    with pytest.raises(ConfigError, match="class features of cocoop depend on the image: classify images"):
        model.class_features()


def test_what_goes_against_zero_shot_clip_is_taken_out(clip):
    method = build("prograd", clip, NAMES).method
    own, general = torch.tensor([1.0, -2.0]), torch.tensor([0.0, 3.0])
    assert method.combine({"xe": {"ctx": own}, "kl": {"ctx": general}})["ctx"].tolist() == [1.0, 0.0]
    assert method.combine({"xe": {"ctx": own}, "kl": {"ctx": -general}})["ctx"].tolist() == [1.0, -2.0]
    for nothing in ({"xe": {"ctx": own}, "kl": {"ctx": 0 * own}}, {"xe": {"ctx": 0 * own}, "kl": {"ctx": own}}):
        assert torch.equal(method.combine(nothing)["ctx"], nothing["xe"]["ctx"])
    half = make_method("prograd", clip, {"strength": 0.5})
    assert half.combine({"xe": {"ctx": own}, "kl": {"ctx": general}})["ctx"].tolist() == [1.0, -1.0]


def test_only_the_cross_entropy_is_minimised(clip):
    model, images, labels = build("prograd", clip, NAMES), plain_images(clip, 3), torch.tensor([0, 1, 2])
    terms = model.loss(images, labels)
    assert terms["total"] == terms["xe"]
    assert terms["kl"] != terms["xe"]
    given = StepImages({"images": images}, labels, torch.arange(3), 3, ())
    how = {"micro_batch": None, "precision": "fp32", "scaler": torch.amp.GradScaler("cpu", enabled=False)}
    share = share_of_step(model, given, seed=0, step=1, **how)
    assert set(share.grads) == {"xe", "kl"}  # no third way back for what is only logged
    assert set(share.sums) == {"xe", "kl", "total"}


@pytest.mark.parametrize(
    ("dataset", "template"),
    [
        ("oxford_pets", "X X X X X X X X a type of pet, a photo of a {}."),
        ("food101", "X X X X X X X X X a type of food, a photo of {}."),
        ("mine", "X X X X X X X X X X X X X an x-ray of {} in a child."),
        (None, "X X X X X X X X X X X X X an x-ray of {} in a child."),
    ],
)
def test_prograd_speaks_the_words_of_the_data_set_at_hand(clip, dataset, template):
    classes = class_list(NAMES, "an x-ray of {} in a child.", dataset=dataset)
    assert make_method("prograd", clip).template(classes) == template
    assert make_method("prograd", clip, {"words": ""}).template(classes) == "X " * 16 + "{}."


@pytest.mark.parametrize("name", ["atprompt", "prograd", "tcp"])
@pytest.mark.parametrize("template", ["{}", "a very long and quite strange beginning of a prompt, {}: so it is"])
@torch.no_grad()
def test_any_template_will_do(clip, name, template):
    model = build(name, clip).for_classes(class_list(NAMES[:2], template, dataset="mine"))
    assert model(plain_images(clip, 1)).logits.isfinite().all()


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("prograd", {"context": 3}, "'a photo of a' has 4 words, but context is 3: give fewer words or a longer one"),
        ("tcp", {"words": "a photo"}, "words is 'a photo': give 4 words, or none"),
        ("atprompt", {"attributes": "a, b, c, d"}, "attributes is 'a, b, c, d': give at most 3 attributes"),
    ],
)
def test_refusals(clip, name, config, message):
    with pytest.raises(ConfigError, match=message):
        make_method(name, clip, config)


@pytest.mark.parametrize("position", ["end", "front"])
def test_too_long_a_context_is_refused_with_what_fits(tiny_clips, position):
    clip = tiny_clips["shallow"]
    config = {"words": "", "context": 40, "position": position}
    with pytest.raises(ConfigError, match=r"40 learned words .* the text tower's 32 tokens: use at most 26\."):
        build("coop", clip, NAMES, **config)(plain_images(clip, 1))
    with torch.no_grad():
        assert build("coop", clip, NAMES, **{**config, "context": 26})(plain_images(clip, 1)).logits.shape == (1, 3)


def test_a_target_brings_its_own_attributes(clip):
    method = make_method("atprompt", clip)

    def words(dataset):
        return method.attributes(class_list(NAMES, "a photo of a {}.", dataset=dataset))

    assert words("stanford_cars") == ["luxury"]
    assert words("dtd") == ["pattern", "color", "design"]
    assert words("mine") == words(None) == words("imagenet") == ["color", "shape"]
    own = make_method("atprompt", clip, {"attributes": "weight, body part"})
    assert own.attributes(class_list(NAMES, "a photo of a {}.", dataset="dtd")) == ["weight", "body part"]


def test_other_classes_keep_the_words_of_the_data_set(clip):
    model = build("atprompt", clip).for_classes(class_list(NAMES, "a photo of a {}.", dataset="dtd"))
    assert model.for_classes(["a", "b"]).classes.dataset == "dtd"
    assert model.for_classes(["a", "b"], "a picture of {}").classes.dataset is None


@pytest.mark.parametrize(
    ("whole", "places", "deep"), [(False, (1, 4, 7), 7), (True, (1, 5, 8), 8)], ids=["as published", "whole"]
)
def test_words_of_several_tokens(clip, whole, places, deep):
    """ "playfulness" is two tokens."""
    method = make_method("atprompt", clip, {**MAPLE, "whole_words": whole})
    frozen = method.classes(clip, class_list(NAMES, "a photo of a {}.", dataset="oxford_pets"))
    assert (frozen.places, frozen.deep) == (places, deep)


def test_later_words_follow_the_published_count_unless_words_are_whole(clip):
    config = {**MAPLE, "context": 2, "attribute_context": 4}
    listed = class_list(NAMES, "a photo of a {}.", dataset="imagenet")
    found = [make_method("atprompt", clip, {**config, "whole_words": whole}) for whole in (False, True)]
    found = [method.classes(clip, listed) for method in found]
    assert [one.places[-1] for one in found] == [11, 11]
    assert [one.deep for one in found] == [7, 11]


@pytest.mark.parametrize("tiny", ["plain", "odd", "shallow"])
def test_atprompt_on_maple_trains_saves_and_loads(tiny_clips, tmp_path, tiny):
    clip, toy = tiny_clips[tiny], Toy(per_class=2)
    job = replace(toy.job(method="atprompt", epochs=1), config=MAPLE)
    assert job.resolved.lr == 3.5e-3
    model, progress = run_job(job, clip, tmp_path / "run", workers=0)
    assert progress.step == 2
    assert model.config.context == 4
    loaded, images = dear.load(tmp_path / "run", clip=clip), plain_images(clip, 3)
    with torch.no_grad():
        assert torch.equal(loaded(images).logits, model(images).logits)
        if tiny == "plain":
            free = {"images": {0: torch.export.Dim("batch")}}
            exported = torch.export.export(loaded.baked(), (images[:2],), dynamic_shapes=free, strict=False).module()
            assert torch.allclose(exported(images), loaded(images).logits, atol=1e-4)


@pytest.mark.parametrize("tiny", ["plain", "odd", "shallow"])
def test_gradients_of_atprompt_on_maple(tiny_clips, tiny):
    model = build("atprompt", tiny_clips[tiny], NAMES, **MAPLE)
    model.loss(plain_images(model.clip, 2), torch.tensor([0, 1]))["total"].backward()
    assert [name for name, p in model.method.named_parameters() if p.grad is None] == ["ctx_att3"]
    chunked = model.for_classes(NAMES, chunk=2)
    with torch.no_grad():
        shown = plain_images(model.clip, 2)
        assert torch.allclose(chunked(shown).logits, model(shown).logits, atol=1e-5)


@pytest.mark.parametrize(("tiny", "layer"), [("plain", 3), ("odd", 4), ("shallow", 2)])
def test_words_of_the_class_come_in_at_layer_9_of_12(tiny_clips, tiny, layer):
    assert make_method("tcp", tiny_clips[tiny])._layer == layer


@pytest.mark.parametrize("name", ["atprompt", "cocoop", "coop", "prograd", "tcp"])
def test_half_precision(clip, name):
    """Towers compute in bf16, what is learned stays in fp32."""
    model, images = build(name, clip, NAMES), plain_images(clip, 2)
    with torch.autocast("cpu", torch.bfloat16):
        terms = model.loss(images, torch.tensor([0, 1]))
    terms["total"].backward()
    assert all(p.grad.dtype == torch.float32 for p in model.trainable().values() if p.grad is not None)
    assert terms["total"].item() == pytest.approx(model.loss(images, torch.tensor([0, 1]))["total"].item(), rel=0.05)
