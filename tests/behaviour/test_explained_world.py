"""Explanations on a CLIP that was trained: the world's, whose scenes are known to the pixel."""

from pathlib import Path

import pytest
import torch
from PIL import Image

import dear
from dear.model.explanation import explain_image
from dear.roles.known import shipped_roles
from dear.workflows.explained_examples import explained_examples
from dear.world.grammar import PROMPTS, prompt
from dear.world.render import Look, compose
from dear.world.samples import HELD_OUT_STREAM, PATCH, draw_scene
from dear.world.vocabulary import NAMES

GOLDEN = Path(__file__).parents[1] / "golden" / "v0_2"
SCENES = 10

pytestmark = pytest.mark.xdist_group("pins")


@pytest.fixture(scope="module")
def adapter():
    """DeAR after two epochs."""
    return dear.load(GOLDEN / "run")


@pytest.fixture(scope="module")
def photo(adapter):
    return adapter.clip.preprocess_eval(Image.open(GOLDEN / "photos" / "0.png").convert("RGB"))


@pytest.mark.parametrize("readout", ["fusion", "decoupled"])
def test_a_trained_adapter(adapter, photo, readout):
    found = explain_image(adapter, photo, roles=adapter.method.roles, readout=readout)
    with torch.no_grad():
        logits = adapter(photo[None]).readouts[readout][0]
    assert list(found.logits) == pytest.approx(logits.topk(3).values.tolist(), abs=1e-5)
    assert float(found.parts[-1].values_C.abs().max()) <= 1e-4


@pytest.mark.parametrize("method", ["zero_shot", "coop", "role_gains"])
def test_other_methods(adapter, photo, method):
    clip = adapter.clip
    model = dear.Model(clip, dear.get_method(method)(clip, dear.get_method(method).Config(), seed=1))
    found = explain_image(model.for_classes(adapter.classes), photo, roles=shipped_roles(clip))
    assert float(found.parts[-1].values_C.abs().max()) <= 1e-4
    assert found.sums() == pytest.approx(found.logits, abs=1e-4)


def test_heat_maps_point_at_what_they_are_about(adapter):
    """Of the true value's heat map by an attribute's own heads, the strongest patch lies on the thing that has it."""
    plain = adapter.plain()
    hits = {"color": 0, "object": 0}
    for index in range(SCENES):
        scene = draw_scene((HELD_OUT_STREAM, index, 0), held_out_pairs=True)
        layout = compose(scene, (HELD_OUT_STREAM, index, 1), Look(held_out_places=True))
        image = plain.clip.preprocess_eval(Image.fromarray(layout.image))
        for name, cover in (("color", layout.shape), ("object", layout.object)):
            value = getattr(scene, name)
            before, after = prompt(name, "XYZ", PROMPTS[name][0]).split("XYZ")
            asked = plain.for_classes(NAMES[name], f"{before}{{}}{after}")
            found = explain_image(asked, image, roles=shipped_roles(plain.clip), top_k=1, also=[value])
            heat = found.heat(name)[found.classes.index(value)]
            row, column = divmod(int(heat.argmax()), heat.shape[1])
            patch = cover[PATCH * row : PATCH * (row + 1), PATCH * column : PATCH * (column + 1)]
            hits[name] += patch.mean() >= 64
    assert all(count >= SCENES - 1 for count in hits.values()), hits


def test_examples_of_a_report(adapter):
    """Two right and two wrong answers; a wrong one stands beside the true class."""
    dataset = dear.open_dataset("world-textures")
    model = adapter.for_classes(dataset.classes(adapter.classes.names))
    items = [item for item in dataset.test if item.label < len(adapter.classes.names)][::9][:40]
    images = torch.stack([model.clip.preprocess_eval(dataset.open(item.id)) for item in items])
    with torch.no_grad():
        chances, picks = model(images).logits.softmax(1).max(1)
    picks[0] = -1  # an image that could not be read
    views = explained_examples(model, dataset, items, picks, chances)
    right = [i for i, item in enumerate(items) if int(picks[i]) == item.label]
    wrong = [i for i, item in enumerate(items) if int(picks[i]) not in (-1, item.label)]
    words = [view.title.split(":")[0] for view in views]
    assert words == ["Right"] * min(2, len(right)) + ["Wrong"] * min(2, len(wrong))
    for view in (view for view in views if view.title.startswith("Wrong")):
        truth = view.title.rpartition("(is ")[2].removesuffix(")")
        assert view.class_names[1] == truth
