"""Mean-ablation: what is removed is constant over images, and its cost is what a hand-made case says."""

import re

import pytest
import torch

from dear.errors import RoleMapError, RolesError
from dear.reports.ablation import ablation_markdown
from dear.roles.ablation import (
    Bench,
    Task,
    Terms,
    check_fits,
    collect_terms,
    measure,
    random_groups,
    without_heads,
    without_layer,
)
from dear.roles.capture import contributions
from dear.roles.rolemap import HeadRole, Provenance, Role, RoleMap
from dear.roles.sources import images_from, tasks_from
from helpers import make_photos, varied_roles


def hand_made():
    """Two layers of two heads. Head (1, 0) alone writes the first class, (2, 1) the second task; others add noise."""
    heads = torch.zeros(4, 2, 2, 4)
    heads[:, 0, 0, :2] = torch.eye(2)[[0, 1, 0, 1]]
    heads[:, 1, 1, 2:] = torch.eye(2)[[0, 0, 1, 1]]
    mlps = torch.full((4, 2, 4), 0.25)
    tasks = [
        Task("first", torch.tensor([0, 1, 0, 1]), ("a", "b")),
        Task("second", torch.tensor([0, 0, 1, 1]), ("c", "d")),
    ]
    features = [torch.eye(4)[:2], torch.eye(4)[2:]]
    return Terms(heads.sum((1, 2)) + mlps.sum(1), heads, mlps), tasks, features


def test_drops_by_hand():
    bench = Bench(*hand_made())
    assert bench.base == (1.0, 1.0)
    assert bench.heads("x", [(1, 0)]).drops == (0.5, 0.0)
    assert bench.heads("x", [(2, 1)]).drops == (0.0, 0.5)
    assert bench.heads("x", [(1, 1), (2, 0)]).drops == (0.0, 0.0)
    assert bench.heads("x", [(1, 0), (2, 1)]).drops == (0.5, 0.5)
    assert bench.layer(1).drops == (0.5, 0.0)
    assert bench.layer(2).drops == (0.0, 0.5)


def test_removing_everything_leaves_the_embedding_term_and_constants(clip, images):
    terms = contributions(clip, images)
    kept = Terms(terms.total(), terms.heads_BLHE, terms.mlps_BLE)
    left = without_heads(kept, kept.places)
    expected = terms.embedding_BE + terms.mlps_BLE.sum(1) + terms.heads_BLHE.mean(0).sum((0, 1))
    assert torch.allclose(left, expected, atol=1e-5)
    for layer in range(1, clip.geometry.vision_layers + 1):
        change = without_layer(kept, layer) - kept.embeddings_NE
        assert torch.allclose(change.mean(0), torch.zeros(clip.geometry.embed_dim), atol=1e-6)
    everything = kept.embeddings_NE
    for layer in range(1, clip.geometry.vision_layers + 1):
        everything = everything + without_layer(kept, layer) - kept.embeddings_NE
    constant = everything - terms.embedding_BE
    assert torch.allclose(constant, constant[:1].expand_as(constant), atol=1e-5)


def test_random_groups_are_repeatable_and_of_the_size_asked_for():
    places = [(layer, head) for layer in (1, 2) for head in range(4)]
    groups = random_groups(places, 3, 5, seed=2)
    assert groups == random_groups(places, 3, 5, seed=2)
    assert all(len(set(group)) == 3 for group in groups)


def test_nothing_readable(clip):
    with pytest.raises(RolesError, match="None of the images can be read"):
        collect_terms(clip, [])


def test_report_compares_an_attribute_with_the_others_and_with_chance(clip, images, monkeypatch):
    terms, tasks, features = hand_made()
    monkeypatch.setattr("dear.roles.ablation.class_features", lambda clip, tasks: features)
    tasks = [Task("color", tasks[0].labels_N, tasks[0].prompts), Task("shape", tasks[1].labels_N, tasks[1].prompts)]
    roles = {(1, 0): "color", (2, 1): "shape"}
    heads = [
        HeadRole(layer=layer, head=head, role=Role.CORE, concept=roles[layer, head])
        if (layer, head) in roles
        else HeadRole(layer=layer, head=head, role=Role.MIXED)
        for layer, head in terms.places
    ]
    result = measure(clip, RoleMap(heads=tuple(heads), provenance=Provenance(source="test")), terms, tasks, draws=8)
    assert [(g.attribute, g.removed.drops) for g in result.groups] == [("color", (0.5, 0.0)), ("shape", (0.0, 0.5))]
    assert all(0 <= value <= 0.5 for g in result.groups for value in g.random_means)
    text = ablation_markdown(result)
    assert "| color (1 heads) | -50.0 |  +0.0 |" in text
    assert len(re.findall(r"\| +yes \|", text)) == 2
    assert "layer 2" in text


def test_the_task_of_a_folder_is_that_of_its_class_folders(tmp_path):
    folder = make_photos(tmp_path / "photos", ["red_thing", "ant"], 3)
    images, (task,) = tasks_from(str(folder), "a {}.", 9)
    assert images.names == tuple(f"{name}/{i}.png" for name in ("ant", "red_thing") for i in range(3))
    assert (task.labels_N.tolist(), task.prompts) == ([0, 0, 0, 1, 1, 1], ("a ant.", "a red thing."))
    images, (task,) = tasks_from(str(folder), "a {}.", 2)
    assert (images.names, task.labels_N.tolist()) == (("ant/0.png", "red_thing/0.png"), [0, 1])


def test_the_task_of_a_folder_with_splits_is_that_of_its_training_images(tmp_path):
    """The classes were "test" and "train", and accuracies told one from the other."""
    for split in ("train", "test"):
        make_photos(tmp_path / "photos" / split, ["ant", "bee", "cow"], 2)
    images, (task,) = tasks_from(str(tmp_path / "photos"), "a {}.", 99)
    assert images.names == tuple(f"train/{name}/{i}.png" for name in ("ant", "bee", "cow") for i in range(2))
    assert (task.labels_N.tolist(), task.prompts) == ([0, 0, 1, 1, 2, 2], ("a ant.", "a bee.", "a cow."))


def test_roles_are_found_from_the_training_images_of_a_folder_with_splits(tmp_path):
    """Images that will be tested took part."""
    for split in ("train", "test"):
        make_photos(tmp_path / split, ("cat", "dog"), 2)
    assert images_from(str(tmp_path)).names == ("cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png")
    assert len(images_from(str(tmp_path / "test"))) == 4


def test_a_map_of_other_heads_is_refused(tiny_clips):
    check_fits(tiny_clips["plain"], varied_roles(tiny_clips["plain"]))
    with pytest.raises(RoleMapError, match="does not fit"):
        check_fits(tiny_clips["plain"], varied_roles(tiny_clips["shallow"]))
    with pytest.raises(RoleMapError, match="does not fit"):
        check_fits(tiny_clips["plain"], RoleMap.load("vit-b-16"))
