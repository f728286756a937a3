"""Saving and loading: bit for bit, and every kind of damage is one named error with nothing written over."""

import json
from pathlib import Path

import pytest
import torch

import dear
from dear import errors
from helpers import build, move_parameters, rewrite, varied_roles

FILES = ["README.md", "adapter_config.json", "adapter_model.safetensors", "roles.json"]


@pytest.fixture
def saved(model, tmp_path) -> Path:
    move_parameters(model)
    return model.save_pretrained(tmp_path / "adapter")


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_round_trip_bit_for_bit(model, images, saved):
    assert sorted(snapshot(saved)) == FILES
    loaded = dear.load(saved, clip=model.clip)
    assert loaded.classes == model.classes
    assert loaded.method.roles == model.method.roles
    assert loaded.config.model_dump() == model.config.model_dump()
    assert not loaded.training
    assert not loaded.trainable()
    assert loaded.requires_grad_().trainable().keys() == model.trainable().keys()
    with torch.no_grad():
        assert torch.equal(loaded(images).logits, model(images).logits)


def test_the_backbone_is_found_by_the_name_that_was_saved(tiny_folders, images, tmp_path):
    clip = dear.load_clip(f"local-dir:{tiny_folders['plain']}", "random")
    model = dear.DeAR(clip, varied_roles(clip)).for_classes(["cat", "dog"])
    loaded = dear.load(model.save_pretrained(tmp_path / "adapter"))
    with torch.no_grad():
        assert torch.equal(loaded(images).logits, model(images).logits)


def test_second_save_is_byte_identical(model, saved, tmp_path):
    again = dear.load(saved, clip=model.clip).save_pretrained(tmp_path / "again")
    assert snapshot(again) == snapshot(saved)
    before = snapshot(saved)
    model.save_pretrained(saved)
    assert snapshot(saved) == before


def test_only_trained_tensors_are_stored(model, saved):
    trained = sum(p.numel() for p in model.trainable().values())
    assert (saved / "adapter_model.safetensors").stat().st_size < 4 * trained + 1000


def test_card_says_what_is_needed(model, saved):
    card = (saved / "README.md").read_text()
    for word in (model.clip.weights_sha256, "hot air balloon", "fusion weights", "color 0.0", "dear.load"):
        assert word in card


def test_a_folder_with_something_else_is_left_alone(model, saved):
    before = snapshot(saved)
    with torch.no_grad():
        model.method.vision_tokens.add_(1)
    with pytest.raises(
        errors.OverwriteError, match="nothing was written: choose another folder, or pass overwrite=True"
    ):
        model.save_pretrained(saved)
    assert snapshot(saved) == before
    model.save_pretrained(saved, overwrite=True)
    assert snapshot(saved) != before
    with torch.no_grad():
        assert torch.equal(dear.load(saved, clip=model.clip).method.vision_tokens, model.method.vision_tokens)


def test_a_readme_of_ones_own_is_kept(model, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_stale_card_is_replaced(model, saved):
    for name in FILES[1:]:
        (saved / name).unlink()
    model.for_classes(["fish", "bird"]).save_pretrained(saved)
    assert "fish, bird" in (saved / "README.md").read_text()


def test_another_method_leaves_nothing_of_the_old_one(model, saved):
    build("zero_shot", model.clip, ["cat"]).save_pretrained(saved, overwrite=True)
    assert sorted(snapshot(saved)) == [name for name in FILES if name != "roles.json"]


def test_class_names_cannot_break_the_card(model, tmp_path):
    view = model.for_classes(["cat | dog", "a\nb"])
    card = (view.save_pretrained(tmp_path / "a") / "README.md").read_text()
    assert "| classes | 2 (cat \\| dog, a b) |" in card


def test_a_failed_save_leaves_no_half_files(model, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.ArtefactError, match="could not be saved"):
        model.save_pretrained(tmp_path / "file" / "below")

    def disk_is_full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", disk_is_full)
    with pytest.raises(errors.ArtefactError, match="No space left on device"):
        model.save_pretrained(tmp_path / "full")
    assert list((tmp_path / "full").iterdir()) == []


@pytest.mark.parametrize("folder", [None, "", 3, "a\0b"])
def test_what_is_not_a_folder(model, folder):
    for action in (model.save_pretrained, dear.load):
        with pytest.raises(errors.ConfigError, match="does not name a folder"):
            action(folder)


def test_precision_and_seed_are_remembered(tiny_folders, images, tmp_path):
    clip = dear.load_clip(f"local-dir:{tiny_folders['plain']}", "random", precision="bf16", seed=5)
    model = dear.DeAR(clip, varied_roles(clip)).for_classes(["cat", "dog"])
    loaded = dear.load(model.save_pretrained(tmp_path / "adapter"))
    assert loaded.clip.precision == "bf16"
    with torch.no_grad():
        assert torch.equal(loaded(images).logits, model(images).logits)


def test_the_same_weights_in_another_architecture_are_refused(model, saved):
    manifest = json.loads((saved / "adapter_config.json").read_text())
    geometry = {**manifest["backbone"]["geometry"], "quick_gelu": True}
    rewrite(saved / "adapter_config.json", backbone={**manifest["backbone"], "geometry": geometry})
    with pytest.raises(errors.BackboneMismatchError, match="has another quick_gelu"):
        dear.load(saved, clip=model.clip)


@pytest.mark.parametrize("key", ["files", "backbone", "method", "settings", "classes"])
def test_a_manifest_that_lacks_something(model, saved, key):
    rewrite(saved / "adapter_config.json", **{key: 3})
    with pytest.raises(errors.CorruptArtefactError, match="damaged"):
        dear.load(saved, clip=model.clip)


def test_a_backbone_or_a_device_but_not_both(model, saved):
    with pytest.raises(errors.ConfigError, match="either clip or device"):
        dear.load(saved, clip=model.clip, device="cpu")
    with pytest.raises(errors.ConfigError, match=r"must come from dear\.load_clip"):
        dear.load(saved, clip="ViT-B-16")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors", "roles.json"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "deleted"])
def test_damage_is_noticed(model, saved, name, damage):
    path, data = saved / name, (saved / name).read_bytes()
    middle = len(data) // 2
    if damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(
            {
                "truncated": data[:middle],
                "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
                "emptied": b"",
            }[damage]
        )
    before = snapshot(saved)
    missing_manifest = damage == "deleted" and name == "adapter_config.json"
    expected = errors.ForeignArtefactError if missing_manifest else errors.CorruptArtefactError
    with pytest.raises(expected, match=name):
        dear.load(saved, clip=model.clip)
    assert snapshot(saved) == before


@pytest.mark.parametrize("position", range(0, 1600, 97))
def test_any_flipped_bit_of_the_manifest_is_noticed(model, saved, position):
    path = saved / "adapter_config.json"
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 2
    path.write_bytes(bytes(data))
    with pytest.raises(errors.ArtefactError):
        dear.load(saved, clip=model.clip)


def test_newer_format(model, saved):
    rewrite(saved / "adapter_config.json", format_version=4)
    with pytest.raises(errors.NewerFormatError, match="has format 4, this version reads up to 3: upgrade dear-vlm"):
        dear.load(saved, clip=model.clip)


def test_foreign_adapter(model, saved):
    (saved / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    before = snapshot(saved)
    with pytest.raises(
        errors.ForeignArtefactError, match="is not an adapter of DeAR: its 'format' is not 'dear-adapter'"
    ):
        dear.load(saved, clip=model.clip)
    with pytest.raises(errors.OverwriteError):
        model.save_pretrained(saved)
    assert snapshot(saved) == before


def test_empty_or_missing_folder(clip, tmp_path):
    for folder, why in ((tmp_path, "is not an adapter"), (tmp_path / "nowhere", "does not exist")):
        with pytest.raises(errors.ForeignArtefactError, match=why):
            dear.load(folder, clip=clip)


def test_another_backbone_is_refused(model, saved, tiny_folders):
    name = f"local-dir:{tiny_folders['plain']}"
    other_weights = dear.load_clip(name, "random", seed=8)
    with pytest.raises(errors.BackboneMismatchError, match=f"weights {model.clip.weights_sha256[:12]}"):
        dear.load(saved, clip=other_weights)


def test_backbone_that_cannot_be_found_says_which_is_needed(model, saved):
    manifest = json.loads((saved / "adapter_config.json").read_text())
    rewrite(saved / "adapter_config.json", backbone={**manifest["backbone"], "name": "hf-hub:nobody/nothing"})
    with pytest.raises(errors.HubError, match=r"needs load_clip.*nobody/nothing.*weights .*clip=…"):
        dear.load(saved)


def test_tensors_that_do_not_fit_the_settings(model, saved):
    manifest = json.loads((saved / "adapter_config.json").read_text())
    rewrite(saved / "adapter_config.json", settings={**manifest["settings"], "text_tokens": 3})
    with pytest.raises(errors.CorruptArtefactError, match="does not fit its settings: text_tokens has shape"):
        dear.load(saved, clip=model.clip)


def test_every_projection_round_trips(clip, images, tmp_path):
    for kind in ("copy", "random", "low_rank"):
        model = dear.DeAR(clip, varied_roles(clip), projection=kind, tokens_per_attribute=2)
        model = model.for_classes(["cat", "dog"])
        move_parameters(model)
        loaded = dear.load(model.save_pretrained(tmp_path / kind), clip=clip)
        with torch.no_grad():
            assert torch.equal(loaded(images).logits, model(images).logits)
