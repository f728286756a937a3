"""PromptKD: a teacher by reference, known by content, and photos without labels."""

from dataclasses import replace

import pytest
import torch

import dear
from dear.engine.job import UNLABELLED, describe, fingerprint, make_job
from dear.engine.run import run_job
from dear.errors import ArtefactError, ConfigError
from dear.model.load import make_method
from helpers import build, move_parameters, plain_images
from toys import CLASSES, Toy

NAMES = list(CLASSES)


@pytest.fixture
def clip(tiny_clips):
    return tiny_clips["plain"]


@pytest.fixture
def run(clip, tmp_path):
    """A saved run of another method."""
    teacher = build("coop", clip, NAMES)
    move_parameters(teacher)
    return teacher.save_pretrained(tmp_path / "teacher")


def student(clip, reference, names=NAMES):
    method = make_method("promptkd", clip, {"teacher": reference}, seed=1)
    return dear.Model(clip, method, trained_on=names).for_classes(names)


@torch.no_grad()
def test_classes_are_the_teachers(clip, run):
    taught, teacher = student(clip, str(run)), dear.load(run, clip=clip)
    assert torch.allclose(taught.class_features(), teacher.class_features(), atol=1e-6)
    assert taught.companions["teacher"].clip is clip
    new = ["cat", "dog"]
    assert torch.allclose(
        taught.for_classes(new).class_features(), teacher.for_classes(new).class_features(), atol=1e-6
    )
    alone = student(clip, None)
    assert torch.allclose(alone.class_features(), alone.plain().class_features(), atol=1e-6)
    assert taught.method.facts()["teacher"].startswith("coop on")


@torch.no_grad()
def test_a_larger_clip_as_teacher(clip, tiny_clips, tiny_folders, monkeypatch):
    import dear.model.load as loading

    other = tiny_clips["odd"]
    cfg = dict(clip.model.visual.preprocess_cfg)
    monkeypatch.setattr(other.model.visual, "preprocess_cfg", cfg)
    monkeypatch.setattr(loading, "_other_clip", lambda name, tag, device: other if (name, tag) == ("B", "t") else None)
    taught = student(clip, "B@t")
    out = taught(plain_images(clip, 2))
    assert out.features["cls"].shape[1] == other.geometry.embed_dim != clip.geometry.embed_dim
    assert taught.method.encode_text(clip, ["a text"]).shape[1] == other.geometry.embed_dim


def test_wrong_teachers_are_one_sentence(clip, tiny_clips, tiny_folders, tmp_path):
    for reference in ("nobody", str(tmp_path), "ViT-B-16@nobody"):
        with pytest.raises(ConfigError, match=r"The teacher .* cannot be loaded: give the folder of a run") as error:
            student(clip, reference)
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="reads images of another size"):
        student(clip, f"local-dir:{tiny_folders['odd']}@random")


def test_saved_with_the_teachers_identity(clip, run, tmp_path):
    folder = student(clip, str(run)).save_pretrained(tmp_path / "student")
    loaded = dear.load(folder, clip=clip)
    assert loaded.companions["teacher"].name == "coop"
    given = dear.load(run, clip=clip)
    moved = run.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"The teacher .* cannot be loaded"):
        dear.load(folder, clip=clip)
    assert dear.load(folder, clip=clip, companions={"teacher": given}).companions["teacher"] is given
    another = build("coop", clip, NAMES)
    another.save_pretrained(moved, overwrite=True)
    moved.rename(run)
    with pytest.raises(ArtefactError, match="was trained with another teacher than the present one"):
        dear.load(folder, clip=clip)


def test_the_teacher_counts_by_content(clip, run, tmp_path):
    job = Toy().job(method="promptkd")

    def mark(reference):
        changed = replace(job, config={"teacher": reference})
        return fingerprint(describe(changed, changed.build(clip)))

    before = mark(str(run))
    moved = run.rename(tmp_path / "toy-1")
    assert mark(str(moved)) == mark(str(tmp_path / "{data}-{seed}")) == before != mark(None)
    build("coop", clip, NAMES).save_pretrained(moved, overwrite=True)
    assert mark(str(moved)) != before


def test_all_training_images_without_their_labels():
    toy = Toy(per_class=5)
    job = make_job(toy.dataset, shots=2, seed=1, half="base", method="promptkd")
    assert {item.id for item in job.items} == {item.id for item in toy.dataset.train}
    assert {item.label for item in job.items} == {UNLABELLED}
    assert job.class_names == CLASSES
    labelled = make_job(toy.dataset, shots=2, seed=1, half="base", method="coop")
    assert len(labelled.items) == 4
    for few in (replace(toy.dataset, test=()), toy.dataset):  # images that will be tested are left alone
        made = make_job(few, shots=2, seed=1, method="promptkd", validate=bool(few.test))
        assert len(made.items) == 6


def test_labels_do_not_matter(clip):
    toy = Toy()
    job = make_job(toy.dataset, shots=3, seed=1, method="promptkd", train=toy.job(epochs=1).train)
    swapped = replace(toy.dataset, train=tuple(item._replace(label=2 - item.label) for item in toy.dataset.train))
    other = make_job(swapped, shots=3, seed=1, method="promptkd", train=job.train)
    states = [run_job(one, clip, workers=0)[0].state_dict() for one in (job, other)]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_trains_from_cached_views_and_its_folder_is_a_run(clip, tmp_path):
    toy = Toy()
    job = make_job(toy.dataset, shots=3, seed=1, method="promptkd", train=toy.job(epochs=1, cached_views=1).train)
    model, progress = run_job(job, clip, tmp_path / "run", cache=tmp_path / "cache", workers=0)
    assert progress.step == 3
    assert not torch.equal(model.method.project.norm.running_mean, torch.zeros(clip.geometry.embed_dim))
    loaded = dear.load(tmp_path / "run", clip=clip)
    assert torch.equal(loaded.state_dict()["project.norm.running_var"], model.method.project.norm.running_var)


def test_one_image_alone_is_no_statistic(clip):
    model = build("promptkd", clip, NAMES)
    terms = model.loss(plain_images(clip, 1), torch.tensor([0]))
    assert terms["total"].isfinite()
    with pytest.raises(ConfigError, match="needs the whole batch"):
        run_job(Toy().job(method="promptkd", micro_batch=1), clip, workers=0)
