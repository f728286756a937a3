"""An answer taken apart sums to the logit, whatever the method; heads agree with the split of the embedding."""

import json

import pytest
import torch
from PIL import Image

import dear
from dear.backbone.tracing import history, take_apart, watching
from dear.errors import ClassListError, ConfigError, ImageError, InputError
from dear.methods.role_gains import groups_of
from dear.model.explanation import MLPS, START, UNKNOWN, explain_image, picture_seen
from dear.model.load import make_method
from dear.model.model import Model
from dear.roles.capture import contributions

NAMES = ["cat", "dog", "hot air balloon", "a red car"]
PROMPTS = ["coop", "tcp", "vpt", "ivlp", "maple", "promptsrc"]
SPLIT_IN_FULL = ["zero_shot", *PROMPTS, "clip_lora", "mma", "dear", "role_gains"]
"""Methods whose answers are read from rows of the tower alone; others have a rest."""


def model_of(clip, roles, name, **settings) -> Model:
    """A method whose numbers are not those of its start, so that a wrong factor shows."""
    told = {"roles": roles, **settings} if name in ("dear", "role_gains") else settings
    method = make_method(name, clip, told, seed=1)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return Model(clip, method).for_classes(NAMES)


def rest_of(found) -> float:
    return float(found.parts[-1].values_C.abs().max())


@pytest.mark.parametrize("name", SPLIT_IN_FULL)
def test_parts_sum_to_the_logit(clip, roles, images, name):
    model = model_of(clip, roles, name)
    found = explain_image(model, images[0], roles=roles)
    with torch.no_grad():
        logits = model(images[:1]).logits[0]
    assert list(found.logits) == pytest.approx(logits.sort(descending=True).values[:3].tolist(), abs=1e-5)
    assert found.average == pytest.approx(float(logits.mean()), abs=1e-5)
    assert found.sums() == pytest.approx(list(found.logits), abs=1e-4)
    assert rest_of(found) <= 1e-4
    assert "rest" not in found.how
    for grouped in (found.by_group(), found.by_reading()):
        assert torch.stack(list(grouped.values())).sum(0)[:-1].tolist() == pytest.approx(found.logits, abs=1e-4)


@pytest.mark.parametrize("name", ["cocoop", "clip_adapter", "mmrl"])
def test_what_is_no_head_s_is_one_rest(clip, roles, images, name):
    model = model_of(clip, roles, name)
    found = explain_image(model, images[0], roles=roles)
    assert found.sums() == pytest.approx(list(found.logits), abs=1e-4)
    assert rest_of(found) > 1e-3
    assert "the part called rest" in found.how


@pytest.mark.parametrize(
    "settings", [{"routing": "strict"}, {"tokens_per_attribute": 2, "beta": 0.3}, {"projection": "low_rank"}], ids=str
)
def test_every_feature_of_dear_is_taken_apart(clip, roles, images, settings):
    """Each reading is its feature's share of the logit, and a token starts as its raw self."""
    model = model_of(clip, roles, "dear", **settings)
    found = explain_image(model, images[0], roles=roles, top_k=4)
    assert rest_of(found) <= 1e-4
    with torch.no_grad():
        out = model(images[:1])
    at = [NAMES.index(name) for name in found.classes]
    for name, values in found.by_reading().items():
        if name != "rest":
            score = out.weights[name] * clip.temperature * out.features[name][0] @ out.classes.T
            assert values[:-1].tolist() == pytest.approx(score[at].tolist(), abs=1e-4), name
    with watching() as runs, torch.no_grad():
        model(images[:1])
    token = clip.vision.rows
    start = take_apart(history(runs, clip.vision.depth)[0], token, 1 - model.config.beta).start_D
    assert torch.allclose(start.float(), model.method.vision_tokens[0].detach(), atol=1e-4)
    wrong = take_apart(history(runs, clip.vision.depth)[0], token, 1.0).start_D
    assert not torch.allclose(wrong.float(), model.method.vision_tokens[0].detach(), atol=1e-2)


def test_decoupled_is_read_from_cls_alone(clip, roles, images):
    found = explain_image(model_of(clip, roles, "dear"), images[0], roles=roles, readout="decoupled")
    assert {part.reading for part in found.parts} == {"cls", ""}
    assert rest_of(found) <= 1e-4


@pytest.mark.parametrize("which", ["plain", "quick"])
def test_heads_and_mlps_are_those_of_the_embedding(tiny_clips, images, which):
    """Against the split that roles are found by, which was written apart."""
    clip = next(iter(tiny_clips.values())) if which == "plain" else list(tiny_clips.values())[-1]
    size = clip.geometry.image_size
    image = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(3))
    model = Model(clip, make_method("zero_shot", clip)).for_classes(NAMES)
    found = explain_image(model, image[0], top_k=4)
    terms = contributions(clip, image)
    features = model.class_features()[[NAMES.index(name) for name in found.classes]]
    for part in found.parts[:-1]:
        term = {
            "start": lambda part: terms.embedding_BE[0],
            "mlp": lambda part: terms.mlps_BLE[0, part.layer - 1],
            "head": lambda part: terms.heads_BLHE[0, part.layer - 1, part.head],
        }[part.kind](part)
        expected = clip.temperature * features @ term
        assert part.values_C[:-1].tolist() == pytest.approx(expected.tolist(), abs=1e-5), part.name


def test_patches_sum_to_the_head(clip, roles, images):
    found = explain_image(model_of(clip, roles, "dear"), images[0], roles=roles)
    rows, columns = found.grid
    assert rows * columns == clip.vision.rows - 1
    heads = [part for part in found.parts if part.kind == "head"]
    for part in heads:
        assert torch.allclose(part.sources_NC.sum(0), part.values_C, atol=1e-5)
    totals = found.by_group()
    for name in found.attributes:
        elsewhere = torch.stack([*found.elsewhere(name).values(), torch.zeros(3)]).sum(0)
        assert torch.allclose(found.heat(name).sum((1, 2)) + elsewhere, found.against_average(totals[name]), atol=1e-5)


def test_a_patch_that_is_not_looked_at_says_nothing(clip, images):
    """The sources of a head are its attention times values: those of a masked row are zero."""
    rows = clip.vision.norm_in(clip.vision.embed(images[:1]))
    mask = torch.ones(1, 1, rows.shape[1], rows.shape[1], dtype=torch.bool)
    mask[..., 3] = False
    with watching() as runs, torch.no_grad():
        clip.vision.run(rows, masks=lambda layer: mask, read=[0])
    terms = take_apart(history(runs, clip.vision.depth)[0], 0)
    assert all(float(one.weights_HN[:, 3].abs().max()) == 0 for one in terms.layers)
    assert torch.allclose(terms.start_D.float(), rows[0, 0], atol=1e-4)


def test_watching_changes_nothing_and_ends(clip, roles, images):
    model = model_of(clip, roles, "dear")
    with torch.no_grad():
        before = model(images[:1]).logits
        with watching() as runs:
            watched = model(images[:1]).logits
        noted = len(runs)
        model(images[:1])
    assert torch.allclose(before, watched, atol=1e-4)
    assert noted == len(runs) > 0


def test_groups_are_those_of_the_map(clip, roles, images):
    found = explain_image(model_of(clip, roles, "zero_shot"), images[0], roles=roles)
    assert [*found.by_group()] == [*groups_of(roles), UNKNOWN, MLPS, START, "rest"]
    without = explain_image(model_of(clip, roles, "zero_shot"), images[0])
    assert [*without.by_group()] == [UNKNOWN, MLPS, START, "rest"]


def test_one_class_is_not_compared_with_itself(clip, roles, images):
    model = model_of(clip, roles, "zero_shot").for_classes(["cat"])
    found = explain_image(model, images[0], roles=roles)
    assert (found.average, len(found.classes)) == (0.0, 1)
    assert float(found.heat("color").abs().max()) > 0


def test_switched_off_it_explains_plain_clip(clip, roles, images):
    model = model_of(clip, roles, "dear")
    with model.disabled():
        found = explain_image(model, images[0], roles=roles)
    plain = explain_image(model.plain(), images[0], roles=roles)
    assert found.logits == pytest.approx(plain.logits, abs=1e-5)
    assert rest_of(found) <= 1e-4


def test_the_picture_is_what_the_tower_saw(clip):
    size = clip.geometry.image_size
    photo = Image.radial_gradient("L").resize((size, size)).convert("RGB")
    seen = picture_seen(clip, clip.preprocess_eval(photo))
    worst = max(abs(a - b) for a, b in zip(seen.tobytes(), photo.tobytes(), strict=True))
    assert worst <= 1


# In one call, and as a page.


def photo_of(tmp_path):
    path = tmp_path / "photo <1>.png"
    Image.radial_gradient("L").resize((90, 70)).convert("RGB").save(path)
    return path


def test_the_page(clip, roles, tmp_path):
    page = tmp_path / "why.html"
    found = dear.explain(clip, photo_of(tmp_path), ["<b>cat</b>", "dog"], roles=roles, out=page)
    text = page.read_text()
    assert f"The parts sum to {found.sums()[0]:.3f}; the logit is {found.logits[0]:.3f}." in text
    assert "&lt;b&gt;cat" in text
    assert "<b>cat" not in text
    assert "photo &lt;1&gt;.png" in text
    assert text.count("heat map of") == 2 * len([name for name in roles.attributes if name in found.groups])
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_an_attribute_without_a_head_is_named(clip, roles, tmp_path):
    bare = roles.derive([(one.role, "shape" if one.concept == "color" else one.concept) for one in roles.heads], "test")
    page = tmp_path / "why.html"
    found = dear.explain(clip, photo_of(tmp_path), ["cat", "dog"], roles=bare, out=page)
    assert found.without_heads == ("color",)
    assert "The role map has no head for color" in page.read_text()
    assert "heat map of color" not in page.read_text()


def test_without_a_map_heads_have_numbers_only(clip, tmp_path):
    page = tmp_path / "why.html"
    dear.explain(clip, photo_of(tmp_path), ["cat", "dog"], out=page)
    assert "There is no role map for this CLIP" in page.read_text()
    assert page.read_text().count("heat map of all heads") == 2


def test_as_json(clip, roles, tmp_path):
    told = json.loads(json.dumps(dear.explain(clip, photo_of(tmp_path), NAMES, roles=roles).as_dict()))
    for place, one in enumerate(told["classes"]):
        total = sum(part["values"][place] for part in told["parts"])
        assert total == pytest.approx(one["logit"], abs=1e-4)
    assert set(told["heat"]) == set(roles.attributes) - set(told["attributes_without_heads"])


@pytest.mark.parametrize(
    ("told", "error", "says"),
    [
        ({"image": 5}, InputError, "Paths and PIL images are explained"),
        ({"image": "nowhere.png"}, ImageError, "nowhere.png"),
        ({"out": "why.txt"}, ConfigError, "is a .html file"),
        ({"top_k": 0}, ConfigError, "top_k is 0: give a whole number from 1 on"),
        ({"classes": None}, ClassListError, "No classes are set"),
        ({"readout": "none"}, ConfigError, "has no readout 'none'"),
        ({"roles": 5}, ConfigError, "not a int"),
    ],
    ids=lambda one: str(one) if isinstance(one, dict) else "",
)
def test_wrong_arguments(clip, told, error, says):
    how = {"image": Image.new("RGB", (9, 9)), "classes": NAMES, **told}
    with pytest.raises(error, match=says):
        dear.explain(clip, **how)
