"""Card and manifest of a saved adapter: license, base model, commit and versions, and no path of this machine."""

import json

import pytest
import yaml
from huggingface_hub import ModelCard, hf_hub_download

import dear
from dear.backbone.origin import Origin, origin_of
from helpers import build, rewrite

pytestmark = pytest.mark.covers("N13")
OPENAI = "timm/vit_base_patch16_clip_224.openai"
LAION = "laion/CLIP-ViT-B-16-laion2B-s34B-b88K"


def saved(clip, folder):
    """The metadata and the text of the card, and the manifest, of an adapter on a CLIP."""
    folder = build("coop", clip, ["cat", "dog"]).save_pretrained(folder)
    card = (folder / "README.md").read_text()
    return ModelCard(card).data.to_dict(), card, json.loads((folder / "adapter_config.json").read_text())


@pytest.mark.parametrize(("name", "tag", "repository"), [
    ("ViT-B-16-quickgelu", "openai", OPENAI),
    ("ViT-B-16", "laion2b_s34b_b88k", LAION),
])  # fmt: skip
def test_weights_of_the_hub(hub, tmp_path, name, tag, repository):
    page = b"---\nlanguage: en\nlicense: mit\n---\n# A CLIP\n"
    files = {name: one.content for name, one in hub.repositories[repository].files.items()}
    commit = hub.add(repository, {**files, "README.md": page}).commit
    metadata, card, manifest = saved(dear.load_clip(name, tag), tmp_path / "run")
    assert metadata == {
        "library_name": "dear-vlm",
        "pipeline_tag": "zero-shot-image-classification",
        "license": "mit",
        "base_model": repository,
        "base_model_relation": "adapter",
        "tags": ["clip", "few-shot", "coop"],
    }
    assert manifest["backbone"]["origin"] == {"repository": repository, "commit": commit, "license": "mit"}
    assert manifest["versions"].keys() == {"dear", "torch", "open_clip_torch"}
    for row in (f"| base model | `{repository}`, commit `{commit}` |", f"dear {dear.__version__}, torch "):
        assert row in card
    hub.requests.clear()
    again = dear.load(tmp_path / "run")
    assert not hub.requests
    assert again.clip.origin == Origin(repository, commit, "mit")


def test_a_license_that_the_hub_does_not_state_is_unknown(hub, tmp_path):
    metadata, card, manifest = saved(dear.load_clip("ViT-B-16-quickgelu", "openai"), tmp_path / "run")
    assert (metadata["license"], metadata["base_model"]) == ("unknown", OPENAI)
    assert "| license of the base model | unknown |" in card
    assert manifest["backbone"]["origin"]["license"] is None


def test_weights_that_are_not_from_the_hub(clip, tmp_path):
    metadata, card, manifest = saved(clip, tmp_path / "run")
    assert metadata["license"] == "unknown"
    assert "base_model" not in metadata
    assert "origin" not in manifest["backbone"]
    assert manifest["versions"]["dear"] == dear.__version__
    assert clip.name.removeprefix("local-dir:") not in card


def test_no_path_of_this_machine_is_in_the_card(tiny_clips, tiny_folders, tmp_path):
    teacher = build("zero_shot", tiny_clips["plain"], ["cat"]).save_pretrained(tmp_path / "teacher")
    student = build("promptkd", tiny_clips["plain"], ["cat", "dog"], teacher=str(teacher))
    card = (student.save_pretrained(tmp_path / "run") / "README.md").read_text()
    assert "| `teacher` | teacher |" in card
    assert str(tmp_path) not in card
    assert str(tiny_folders["plain"].parent) not in card


@pytest.mark.parametrize(
    "page",
    [
        b"# no metadata",
        b"---\n- a list\n---\n",
        b"---\nlicense: [mit, other]\n---\n",
        b"---\nlicense: <img src=x>\n---\n",
        b"---\nlicense: !!python/object/apply:os.system ['true']\n---\n",
        b"---\nlicense: {{{\n---\n",
        b"\xff\xfe---\nlicense: mit\n---\n",
    ],
)
def test_pages_of_others_are_not_trusted(hub, page):
    hub.add("org/repo", {"open_clip_model.safetensors": b"weights", "README.md": page})
    for name in ("open_clip_model.safetensors", "README.md"):
        hf_hub_download("org/repo", name)
    found = origin_of("org/repo", "open_clip_model.safetensors")
    assert found == Origin("org/repo", hub.repositories["org/repo"].commit, None)


def test_manifests_of_format_2_are_read(tmp_path):
    model = build("coop", dear.load_clip("world"), ["cat", "dog"])
    path = model.save_pretrained(tmp_path) / "adapter_config.json"
    content = json.loads(path.read_text())
    del content["versions"]
    path.write_text(json.dumps(content))
    rewrite(path, format_version=2)
    assert dear.load(tmp_path, model.clip).classes == model.classes
    assert yaml.safe_load((tmp_path / "README.md").read_text().split("---")[1])["license"] == "unknown"
