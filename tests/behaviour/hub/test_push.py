"""What a push to the hub publishes, what it refuses, and that a load elsewhere gives the same logits."""

import json

import pytest
import torch
from huggingface_hub import ModelCard, constants

import dear
from dear.errors import (
    ArtefactError,
    ConfigError,
    CorruptArtefactError,
    ForeignArtefactError,
    HubError,
    OverwriteError,
)
from helpers import build, make_photos, varied_roles
from hub_runs import (
    CARD,
    MANIFEST,
    OPENAI,
    PETS,
    TENSORS,
    logits,
    make_run,
    published,
    refused,
)


@pytest.mark.parametrize("method", ["coop", "dear", "tip_adapter"])
def test_a_push_and_a_load_elsewhere_give_the_same_logits(hub, tmp_path, elsewhere, method):
    run = make_run(tmp_path / "run", method)
    before = logits(dear.load(run))
    found = dear.push(run, PETS)
    assert found.commit == hub.repositories[PETS].commit
    assert len(hub.messages) == 1
    elsewhere()
    model = dear.load(f"hf-hub:{PETS}")
    assert torch.equal(logits(model), before)
    assert model.classes == dear.load(run).classes
    pinned = dear.load(f"hf-hub:{PETS}@{found.commit}")
    assert torch.equal(logits(pinned), before)


def test_only_the_manifests_files_and_the_card_are_published(hub, run):
    found = dear.push(run, PETS)
    assert published(hub).keys() == {MANIFEST, TENSORS, CARD} == found.files.keys()
    assert (run / TENSORS).read_bytes() == published(hub)[TENSORS]
    for name in (MANIFEST, CARD):
        assert str(run.parent).encode() not in published(hub)[name]
        assert b"photos" not in published(hub)[name]
    requests = [one.path for one in hub.requests if one.method != "GET"]
    assert not [path for path in requests if "harness" in path or "telemetry" in path]
    assert {one.token for one in hub.requests if one.method == "POST" and not one.cdn} == {"Bearer hf_ann"}


def test_the_card_has_its_metadata(hub, run):
    dear.push(run, PETS)
    card = ModelCard(published(hub)[CARD].decode())
    assert card.data.to_dict() == {
        "library_name": "dear-vlm",
        "pipeline_tag": "zero-shot-image-classification",
        "license": "unknown",
        "base_model": OPENAI,
        "base_model_relation": "adapter",
        "tags": ["clip", "few-shot", "coop"],
    }
    assert 'dear.load("hf-hub:ann/pets")' in card.text
    assert "THIS_FOLDER" not in card.text


def test_scores_of_eval_are_in_the_card(hub, run, tmp_path, dear_, monkeypatch):
    make_photos(tmp_path / "photos", ["cat", "dog", "ant"], 4)
    monkeypatch.chdir(tmp_path)
    (run / "run.json").unlink()
    code, out, err = dear_("eval", run, "photos", "--json", "--workers", 0)
    assert code in (0, None), err
    (run / "eval.json").write_text(out)
    dear.push(run, PETS)
    (result,) = ModelCard(published(hub)[CARD].decode()).data.eval_results
    scores = json.loads(out)["adapted"]
    assert result.metric_type == "accuracy"
    assert result.metric_value == round(next(iter(scores["accuracy"].values())) / 100, 4)
    assert result.dataset_name == f"photos, {scores['images']} images, 3 classes"
    other = make_run(tmp_path / "other", seed=1)
    sentence = refused(ConfigError, dear.push, other, "ann/other", scores=run / "eval.json")
    assert "has the scores of another adapter" in sentence
    (run / "eval.json").write_text("{}")
    assert "does not have the scores of an adapter" in refused(ConfigError, dear.push, run, PETS, overwrite=True)
    assert "ann/other" not in hub.repositories


def test_a_card_of_ones_own_is_pushed_with_the_metadata_that_it_lacks(hub, run):
    (run / CARD).write_text("---\nlicense: mit\nlanguage: en\n---\n# My cats\n")
    dear.push(run, PETS)
    card = ModelCard(published(hub)[CARD].decode())
    assert (card.data.license, card.data.language, card.data.base_model) == ("mit", "en", OPENAI)
    assert card.text.strip() == "# My cats"
    (run / CARD).write_text("# No metadata\n")
    dear.push(run, PETS, overwrite=True)
    assert ModelCard(published(hub)[CARD].decode()).data.pipeline_tag == "zero-shot-image-classification"
    (run / CARD).write_text("---\n- a list\n---\n# Wrong\n")
    assert "metadata" in refused(ArtefactError, dear.push, run, PETS, overwrite=True)
    (run / CARD).unlink()
    dear.push(run, PETS, overwrite=True)
    assert b"coop adapter" in published(hub)[CARD]


def test_commands(hub, run, tmp_path, dear_, monkeypatch, elsewhere):
    code, out, err = dear_("push", run, PETS)
    assert code in (0, None), err
    assert f"{hub.endpoint}/{PETS}, commit {hub.repositories[PETS].commit[:12]}" in out
    make_photos(tmp_path / "photos", ["cat", "dog", "ant"], 2)
    expected = dear_("predict", run, tmp_path / "photos", "--json")[1]
    elsewhere()
    code, out, err = dear_("predict", f"hf-hub:{PETS}", tmp_path / "photos", "--json")
    assert (code in (0, None), out) == (True, expected), err
    assert "adapts ViT-B-16-quickgelu (openai)" in err
    assert err.index("adapts ViT-B-16-quickgelu") < err.index("downloading ViT-B-16-quickgelu (openai), 7 MB")
    code, out, err = dear_("eval", f"hf-hub:{PETS}", tmp_path / "photos", "--workers", 0)
    assert code in (0, None), err
    code, _, err = dear_("eval", f"hf-hub:{PETS}")
    assert (code, err) == (2, f"dear: hf-hub:{PETS} does not record its data set: name the data set to test on.\n")


def test_private_and_existing_repositories(hub, run, elsewhere):
    dear.push(run, PETS, private=True)
    assert hub.repositories[PETS].private
    assert "already has README.md, and nothing was pushed" in refused(OverwriteError, dear.push, run, PETS)
    commit = hub.repositories[PETS].commit
    assert dear.push(run, PETS, overwrite=True).commit == commit  # nothing has changed
    make_run(run, seed=5)
    assert dear.push(run, PETS, overwrite=True).commit != commit
    assert hub.commits[PETS, commit].files
    dear.push(run, "ann/public")
    sentence = refused(OverwriteError, dear.push, run, "ann/public", private=True, overwrite=True)
    assert "exists and is public" in sentence
    elsewhere()
    assert "The hub has no adapter of DeAR at hf-hub:ann/pets" in refused(
        ForeignArtefactError, dear.load, f"hf-hub:{PETS}"
    )


def test_files_of_an_earlier_adapter_are_removed_and_others_stay(hub, run, tmp_path):
    dear.push(make_run(tmp_path / "first", "llamp"), PETS)
    hub.add(PETS, {**published(hub), "photo.jpg": b"theirs"})
    assert len(published(hub)) == 5
    dear.push(run, PETS, overwrite=True)
    assert published(hub).keys() == {MANIFEST, TENSORS, CARD, "photo.jpg"}


def test_a_push_leaves_the_last_download_usable(hub, run, tmp_path, monkeypatch):
    """The cache named the commit that was replaced, of which it has the manifest only."""
    dear.push(run, PETS)
    before = logits(dear.load(f"hf-hub:{PETS}"))
    dear.push(make_run(tmp_path / "second", seed=5), PETS, overwrite=True)
    dear.push(make_run(tmp_path / "third", seed=9), PETS, overwrite=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert torch.equal(logits(dear.load(f"hf-hub:{PETS}")), before)


def test_tokens(hub, run, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "")
    assert "cannot be pushed without a token: log in with `hf auth login`" in refused(HubError, dear.push, run, PETS)
    assert not [one for one in hub.requests if one.method == "POST"]
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "refuses your token" in refused(HubError, dear.push, run, PETS)
    monkeypatch.setenv("HF_TOKEN", "hf_ann")
    sentence = refused(HubError, dear.push, run, "bob/pets")
    assert sentence == "Your token may not write to bob/pets: use one with write access to bob, or another ORG."
    assert PETS not in hub.repositories


def test_no_network(hub, run, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sentence = refused(HubError, dear.push, run, PETS)
    assert sentence == "ann/pets cannot be pushed because HF_HUB_OFFLINE=1 forbids requests: unset HF_HUB_OFFLINE."
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "the hub cannot be reached" in refused(HubError, dear.push, run, PETS)


def test_a_repository_that_changes_during_a_push(hub, run):
    dear.push(run, PETS)
    make_run(run, seed=1)
    theirs = {MANIFEST: b"{}", CARD: b"changed"}
    hub.before_commit = lambda: hub.add(PETS, theirs)
    assert "was changed by somebody else meanwhile" in refused(HubError, dear.push, run, PETS, overwrite=True)
    assert published(hub) == theirs


def test_names_that_are_not_repositories(hub, run):
    for name in ("pets", "ann/pets/cats", "ann/pets@main", "ann/pets@", "https://huggingface.co/ann/pets", "ann/", " "):
        refused(ConfigError, dear.push, run, name)
    assert not [one for one in hub.requests if one.method == "POST"]


def test_a_damaged_run_is_not_pushed(hub, run):
    path = run / TENSORS
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert "is damaged" in refused(CorruptArtefactError, dear.push, run, PETS)
    assert PETS not in hub.repositories


def test_a_backbone_of_this_machine_is_not_pushed(hub, clip, tmp_path):
    run = build("coop", clip, ["cat"]).save_pretrained(tmp_path / "run")
    assert "which others do not have: upload that CLIP" in refused(ArtefactError, dear.push, run, PETS)
    assert PETS not in hub.repositories


def test_paths_in_settings_and_files_are_shortened(hub, tmp_path, elsewhere):
    teacher = make_run(tmp_path / "wise", "zero_shot")
    run = make_run(tmp_path / "run", "promptkd", teacher=str(teacher))
    before = logits(dear.load(run))
    found = dear.push(run, PETS)
    assert len(found.notes) == 1
    assert "the setting teacher was a path and is now 'wise'" in found.notes[0]
    for data in (published(hub)[MANIFEST], published(hub)[CARD]):
        assert str(tmp_path).encode() not in data
    companion = dear.load(teacher)
    elsewhere()
    assert "teacher" in refused(ConfigError, dear.load, f"hf-hub:{PETS}")
    assert torch.equal(logits(dear.load(f"hf-hub:{PETS}", companions={"teacher": companion})), before)


def test_paths_in_a_role_map_are_shortened(hub, tmp_path):
    clip = dear.load_clip("ViT-B-16-quickgelu", "openai")
    roles = varied_roles(clip)
    origin = roles.provenance.model_copy(update={"sentence_model": "/home/ann/models/sbert"})
    model = dear.DeAR(clip, roles.model_copy(update={"provenance": origin})).for_classes(["cat"])
    run = model.save_pretrained(tmp_path / "run")
    dear.push(run, PETS)
    assert json.loads(published(hub)["roles.json"])["provenance"]["sentence_model"] == "sbert"
    assert torch.equal(logits(dear.load(f"hf-hub:{PETS}")), logits(model))
