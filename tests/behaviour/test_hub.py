"""Adapters on the hub: what a push publishes, what a load fetches, and one sentence for everything that is wrong."""

import json
import re
import stat
from io import StringIO
from pathlib import Path

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
    NewerFormatError,
    OverwriteError,
    typed,
)
from dear.progress.display import Lines
from dear.progress.stages import heard_by
from fake_hub import LIST, Fault
from helpers import build, make_photos, move_parameters, plain_images, rewrite, varied_roles

OPENAI = "timm/vit_base_patch16_clip_224.openai"
MANIFEST, TENSORS, CARD = "adapter_config.json", "adapter_model.safetensors", "README.md"
PETS = "ann/pets"


@pytest.fixture(autouse=True)
def token(hub, monkeypatch):
    """Ann's token."""
    hub.writers["hf_ann"] = {"ann"}
    monkeypatch.setenv("HF_TOKEN", "hf_ann")


@pytest.fixture
def run(hub, tmp_path) -> Path:
    """The folder of a run with an adapter, and with files of the run that nobody else should see."""
    return make_run(tmp_path / "run")


def make_run(folder: Path, method: str = "coop", seed: int = 0, **config) -> Path:
    model = build(method, dear.load_clip("ViT-B-16-quickgelu", "openai"), ["cat", "dog", "ant"], **config)
    move_parameters(model, seed)
    model.save_pretrained(folder, overwrite=True)
    for name in ("shots.json", "run.json", "metrics.jsonl", "config.yaml", "report.html", "notes.txt"):
        (folder / name).write_text('{"photos": "/home/ann/photos"}')
    return folder


@pytest.fixture
def elsewhere(hub, monkeypatch, tmp_path):
    """Continue as another person: no token, an empty cache, another working directory."""

    def go():
        monkeypatch.delenv("HF_TOKEN")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "their-cache"))
        (tmp_path / "theirs").mkdir()
        monkeypatch.chdir(tmp_path / "theirs")
        hub.requests.clear()

    return go


def published(hub, repository=PETS) -> dict[str, bytes]:
    return {name: one.content for name, one in hub.repositories[repository].files.items() if name != ".gitattributes"}


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(plain_images(model.clip, 4)).logits


def refused(error, call, *arguments, **options) -> str:
    """The sentence of an error."""
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


# There and back.


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


# What a push refuses.


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


# What a load refuses.


@pytest.fixture
def pushed(hub, run, elsewhere):
    """A repository with an adapter, seen from elsewhere."""
    dear.push(run, PETS)
    elsewhere()
    return hub


def replace_files(hub, **changes):
    """Let a stranger replace files of the repository."""
    files = {**published(hub), **changes}
    hub.add(PETS, {name: data for name, data in files.items() if data is not None})


def new_manifest(hub, tmp_path, **changes) -> bytes:
    """The manifest with changes and a right seal."""
    path = tmp_path / "manifest.json"
    path.write_bytes(published(hub)[MANIFEST])
    rewrite(path, **changes)
    return path.read_bytes()


def test_a_tampered_file_is_refused_before_it_is_downloaded(pushed):
    data = published(pushed)[TENSORS]
    replace_files(pushed, **{TENSORS: data[:-1] + b"x"})
    sentence = refused(CorruptArtefactError, dear.load, f"hf-hub:{PETS}")
    assert re.search(r"hf-hub:ann/pets \(commit \w{12}\) is damaged \(adapter_model.safetensors is another", sentence)
    assert not [one for one in pushed.requests if one.cdn]


def test_other_bytes_than_the_hub_announced_are_refused(pushed):
    data = published(pushed)[TENSORS]
    pushed.misbehave(PETS, TENSORS, Fault(content=data[:-1] + b"x"))
    assert "sent other bytes for adapter_model.safetensors" in refused(HubError, dear.load, f"hf-hub:{PETS}")


def test_a_tampered_manifest_or_small_file_is_refused(hub, tmp_path, elsewhere):
    dear.push(make_run(tmp_path / "run", "llamp"), PETS)
    (small,) = published(hub).keys() - {MANIFEST, TENSORS, CARD}
    elsewhere()
    whole = published(hub)
    replace_files(hub, **{small: whole[small][:-1] + b" "})
    assert "is not what its manifest describes" in refused(CorruptArtefactError, dear.load, f"hf-hub:{PETS}")
    replace_files(hub, **{small: whole[small], MANIFEST: whole[MANIFEST].replace(b"cat", b"cow")})
    assert "is damaged" in refused(CorruptArtefactError, dear.load, f"hf-hub:{PETS}")


def test_missing_files(pushed):
    whole = published(pushed)
    replace_files(pushed, **{TENSORS: None})
    assert "(adapter_model.safetensors is missing)" in refused(CorruptArtefactError, dear.load, f"hf-hub:{PETS}")
    replace_files(pushed, **{TENSORS: whole[TENSORS], MANIFEST: None})
    assert "has no adapter_config.json" in refused(ForeignArtefactError, dear.load, f"hf-hub:{PETS}")
    assert "The hub has no adapter of DeAR at hf-hub:ann/dogs" in refused(
        ForeignArtefactError, dear.load, "hf-hub:ann/dogs"
    )
    assert "The hub has no adapter of DeAR at" in refused(ForeignArtefactError, dear.load, f"hf-hub:{PETS}@v9")


def test_a_newer_format(pushed, tmp_path):
    replace_files(pushed, **{MANIFEST: new_manifest(pushed, tmp_path, format_version=99)})
    sentence = refused(NewerFormatError, dear.load, f"hf-hub:{PETS}")
    assert re.fullmatch(
        r"adapter_config.json of hf-hub:ann/pets \(commit \w{12}\) has format 99, this version reads up to \d+: "
        "upgrade dear-vlm.",
        sentence,
    )
    assert not [one for one in pushed.requests if one.cdn]


def test_an_adapter_of_another_library(hub):
    hub.add("peft/lora", {MANIFEST: b'{"peft_type": "LORA"}', TENSORS: b"x"})
    assert "is not an adapter of DeAR" in refused(ForeignArtefactError, dear.load, "hf-hub:peft/lora")


LOCAL_BACKBONES = [
    ("local-dir:/etc", None),
    ("local-dir:model", None),
    ("ViT-B-16-quickgelu", "/home/ann/weights.safetensors"),
    ("ViT-B-16-quickgelu", "weights/w.safetensors"),
    ("ViT-B-16-quickgelu", "C:\\weights.bin"),
    ("ViT-B-16-quickgelu", "~/weights.bin"),
]


def test_paths_of_a_backbone_are_never_opened(pushed, tmp_path, run):
    for name, pretrained in LOCAL_BACKBONES:
        backbone = json.loads(published(pushed)[MANIFEST])["backbone"] | {"name": name, "pretrained": pretrained}
        replace_files(pushed, **{MANIFEST: new_manifest(pushed, tmp_path, backbone=backbone)})
        sentence = refused(ArtefactError, dear.load, f"hf-hub:{PETS}")
        assert "names a CLIP by a path of another machine, and such paths are never opened" in sentence
    with typed():
        sentence = refused(ArtefactError, dear.load, f"hf-hub:{PETS}")
    assert "in Python, pass the same CLIP to dear.load('hf-hub:ann/pets', clip=…)" in sentence
    mine = dear.load(f"hf-hub:{PETS}", dear.load_clip("ViT-B-16-quickgelu", "openai"))
    assert torch.equal(logits(mine), logits(dear.load(run)))


def test_paths_in_settings_are_never_opened(hub, tmp_path, elsewhere):
    teacher = make_run(tmp_path / "wise", "zero_shot")
    dear.push(make_run(tmp_path / "run", "promptkd", teacher=str(teacher)), PETS)
    elsewhere()
    Path("wise").symlink_to(teacher)  # a folder of this name happens to be here
    for place in ("/home/ann/wise", "wise", "~/wise", "../wise", "C:\\wise"):
        settings = json.loads(published(hub)[MANIFEST])["settings"] | {"teacher": place}
        replace_files(hub, **{MANIFEST: new_manifest(hub, tmp_path, settings=settings)})
        sentence = refused(ArtefactError, dear.load, f"hf-hub:{PETS}")
        assert "names its teacher by a path, and paths of other machines are never opened" in sentence


def test_names_of_files_that_leave_the_folder(pushed, tmp_path):
    entry = json.loads(published(pushed)[MANIFEST])["files"][TENSORS]
    for name in ("../evil.json", "/etc/passwd", "a/b.json", "evil.py"):
        files = {TENSORS: entry, name: entry}
        replace_files(pushed, **{MANIFEST: new_manifest(pushed, tmp_path, files=files)})
        assert "is damaged" in refused(CorruptArtefactError, dear.load, f"hf-hub:{PETS}")
    assert not [one for one in pushed.requests if one.cdn]


def test_a_repository_that_changes_between_two_requests(pushed, run, tmp_path):
    """All files are those of the commit that was listed first."""
    before, whole = logits(dear.load(run)), published(pushed)
    pushed.requests.clear()
    other = make_run(tmp_path / "other", seed=9)
    changed = {name: (other / name).read_bytes() for name in (MANIFEST, TENSORS, CARD)}
    first = pushed.repositories[PETS].commit
    record = type(pushed.requests).append

    class Watched(list):
        def append(self, one):
            record(self, one)
            if one.path.endswith(MANIFEST) and published(pushed) == whole:
                pushed.add(PETS, changed)  # after the list, before the tensors

    pushed.requests = Watched()
    assert torch.equal(logits(dear.load(f"hf-hub:{PETS}")), before)
    assert pushed.repositories[PETS].commit != first
    asked = [one.path for one in pushed.requests if PETS in one.path and not one.cdn]
    assert [path for path in asked if "/api/models/" in path] == [f"/api/models/{PETS}/revision/main"]
    assert {path.split("/")[-2] for path in asked if "/resolve/" in path} == {first}
    assert not torch.equal(logits(dear.load(f"hf-hub:{PETS}")), before)  # the next load sees the new commit


@pytest.mark.parametrize("fault", ["broken", "damaged"])
def test_an_update_that_fails_leaves_the_earlier_commit_usable(pushed, tmp_path, monkeypatch, fault):
    """After the manifest of a new commit, the cache named that commit, and without a network there was nothing."""
    before = logits(dear.load(f"hf-hub:{PETS}"))
    other = make_run(tmp_path / "other", seed=9)
    pushed.add(PETS, {name: (other / name).read_bytes() for name in (MANIFEST, TENSORS, CARD)})
    data = (other / TENSORS).read_bytes()
    pushed.misbehave(PETS, TENSORS, Fault(status=503) if fault == "broken" else Fault(content=data[:-1] + b"x"))
    refused(HubError, dear.load, f"hf-hub:{PETS}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert torch.equal(logits(dear.load(f"hf-hub:{PETS}")), before)


def test_the_cache_is_used_without_a_network_and_for_commits(pushed, monkeypatch):
    before = logits(dear.load(f"hf-hub:{PETS}"))
    commit = pushed.repositories[PETS].commit
    pushed.requests.clear()
    dear.load(f"hf-hub:{PETS}@{commit}")
    assert not pushed.requests
    dear.load(f"hf-hub:{PETS}")
    assert [one.path for one in pushed.requests] == [f"/api/models/{PETS}/revision/main"]
    pushed.misbehave(PETS, LIST, Fault(status=503))
    remarks = StringIO()
    with heard_by(Lines(remarks)):
        assert torch.equal(logits(dear.load(f"hf-hub:{PETS}")), before)
    assert f"hf-hub:{PETS} is the commit {commit[:12]} in the cache" in remarks.getvalue()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert torch.equal(logits(dear.load(f"hf-hub:{PETS}")), before)
    sentence = refused(HubError, dear.load, "hf-hub:ann/dogs")
    assert "is not in the cache" in sentence
    assert "give the folder instead of hf-hub:ann/dogs" in sentence


@pytest.mark.parametrize(
    "name", ["hf-hub:", "hf-hub:pets", "hf-hub:ann/pets@../x", "hf-hub:ann/pets@", "hf-hub:a/../b"]
)
def test_names_that_are_not_adapters(hub, name):
    assert "write hf-hub:ORG/REPO" in refused(ConfigError, dear.load, name)
    assert not hub.requests


def test_nothing_in_the_cache_is_executable(pushed):
    dear.load(f"hf-hub:{PETS}")
    modes = [path.stat().st_mode for path in Path(constants.HF_HUB_CACHE).rglob("*") if path.is_file()]
    assert modes
    assert not any(mode & stat.S_IXUSR for mode in modes)
