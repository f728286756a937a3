"""Pickled weights: refused before they are fetched, with the tag or the command that helps; converted; recorded."""

import json
import shutil

import pytest
from huggingface_hub import constants, hf_hub_download
from PIL import Image

import dear
from dear.errors import BackboneError, DearWarning, OverwriteError, typed
from helpers import TINY_CONFIGS, build, make_photos, rewrite

pytestmark = pytest.mark.covers("N6")
LAION = "laion/CLIP-ViT-B-16-laion2B-s34B-b88K"
PICKLED = "open_clip_pytorch_model.bin"


@pytest.fixture
def folder(tmp_path, tiny_weights):
    """A folder with pickled weights only."""
    made = tmp_path / "pickled"
    made.mkdir()
    (made / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY_CONFIGS["plain"]}))
    shutil.copyfile(tiny_weights / PICKLED, made / PICKLED)
    return made


@pytest.fixture
def repository(hub, folder):
    """A repository that no tag names, with pickled weights only."""
    hub.add("somebody/birds", {path.name: path for path in folder.iterdir()}, license="mit")
    return "hf-hub:somebody/birds"


def refused(name, pretrained=None):
    with typed(), pytest.raises(BackboneError) as caught:
        dear.load_clip(name, pretrained)
    return str(caught.value)


def test_a_repository_with_a_tag_names_the_tag_and_fetches_nothing(hub):
    assert refused(f"hf-hub:{LAION}") == (
        f"hf-hub:{LAION} has only {PICKLED}, which is not a safetensors file, and other formats can contain "
        f"code: --clip ViT-B-16 --pretrained laion2b_s34b_b88k loads the same weights."
    )
    assert not hub.seen(PICKLED)


def test_a_repository_without_a_tag_names_the_command_and_fetches_nothing(hub, repository):
    assert refused(repository) == (
        f"{repository} has only {PICKLED}, which is not a safetensors file, and other formats can contain code: "
        f"convert it once with `dear convert {repository} FOLDER`, then use --clip local-dir:FOLDER."
    )
    assert not hub.seen(PICKLED)
    with pytest.raises(BackboneError, match=rf"dear\.convert\('{repository}', 'FOLDER'\), .* or pass allow_pickled=Tr"):
        dear.load_clip(repository)


def test_pickled_weights_in_the_cache_do_not_hide_others(hub, folder, tiny_weights, clip, monkeypatch):
    """As another program leaves them there."""
    safe = tiny_weights / "open_clip_model.safetensors"
    hub.add("somebody/birds", {path.name: path for path in (*folder.iterdir(), safe)})
    for name in (PICKLED, "open_clip_config.json"):
        hf_hub_download("somebody/birds", name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert f"hf-hub:somebody/birds has only {PICKLED}, which is not a safetensors file" in refused(
        "hf-hub:somebody/birds"
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    loaded = dear.load_clip("hf-hub:somebody/birds")
    assert (loaded.weights_sha256, loaded.pickled) == (clip.weights_sha256, False)


def test_folders_and_files_name_the_command(folder):
    assert f"`dear convert {folder} FOLDER`, then use --clip local-dir:FOLDER." in refused(f"local-dir:{folder}")
    said = refused("ViT-B-16", folder / PICKLED)
    assert f"`dear convert {folder / PICKLED} FOLDER --clip ViT-B-16`, then use --clip local-dir:FOLDER." in said


def test_a_repository_of_transformers_is_named_as_one(hub):
    hub.add("somebody/birds-hf", {"config.json": b"{}", "model.safetensors": b"weights"})
    assert refused("hf-hub:somebody/birds-hf").startswith(
        "hf-hub:somebody/birds-hf is a model of an unknown type in the format of transformers, of which DeAR reads "
    )
    assert not hub.seen("model.safetensors")


def test_convert_writes_a_folder_with_the_same_weights(hub, repository, folder, clip, tmp_path, dear_):
    code, out, err = dear_("convert", repository, tmp_path / "out")
    assert code in (0, None), err
    assert "can contain code: only its tensors were read" in err
    assert f"--clip local-dir:{tmp_path / 'out'}" in out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "open_clip_config.json",
        "open_clip_model.safetensors",
    ]
    converted = dear.load_clip(f"local-dir:{tmp_path / 'out'}")
    assert (converted.weights_sha256, converted.pickled) == (clip.weights_sha256, False)
    assert not list(tmp_path.glob(".*"))


def test_convert_takes_folders_and_files(hub, folder, clip, tmp_path):
    with pytest.warns(DearWarning, match="only its tensors were read"):
        dear.convert(folder, tmp_path / "a")
    with pytest.warns(DearWarning, match="only its tensors were read"):
        dear.convert(folder / PICKLED, tmp_path / "b", clip="ViT-B-16")  # as small as the tiny CLIP here
    for name in ("a", "b"):
        loaded = dear.load_clip(f"local-dir:{tmp_path / name}")
        assert loaded.weights_sha256 == clip.weights_sha256
        picture = Image.effect_mandelbrot((50, 40), (-2, -1, 1, 1), 20)
        assert loaded.preprocess_eval(picture).equal(clip.preprocess_eval(picture))


def test_convert_keeps_the_tokenizer_of_a_folder(tmp_path):
    world = dear.load_clip("world")
    source = dear.backbone.names.shipped()["world"]
    converted = dear.load_clip(f"local-dir:{dear.convert(source, tmp_path / 'world')}")
    assert converted.weights_sha256 == world.weights_sha256
    assert converted.tokenizer(["a red star"]).equal(world.tokenizer(["a red star"]))


def test_convert_refuses_in_one_sentence(folder, tmp_path):
    for source, clip, sentence in [
        (folder / PICKLED, None, "does not say which CLIP its weights belong to: name it, as in clip='ViT-B-16'"),
        (folder, "ViT-B-16", "names its own architecture: leave clip='ViT-B-16' out"),
        (tmp_path / "nowhere", None, "give one, or hf-hub:ORG/REPO"),
    ]:
        with pytest.raises(BackboneError, match=sentence):
            dear.convert(source, tmp_path / "out", clip=clip)
    with pytest.raises(OverwriteError, match="already exists and is not empty"):
        dear.convert(folder, folder)


def test_convert_runs_no_code(folder, tmp_path):
    trace = tmp_path / "trace"
    (folder / PICKLED).write_bytes(f"\x80\x02cposix\nsystem\n(S'touch {trace}'\ntR.".encode("latin-1"))
    with pytest.raises(BackboneError, match="cannot be loaded"):
        dear.convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not trace.exists()


def test_a_run_with_pickled_weights_asks_for_the_option(folder, tmp_path, dear_):
    make_photos(tmp_path / "photos", ["ant", "bee"], 1)
    clip = dear.load_clip(f"local-dir:{folder}", allow_pickled=True)
    run = build("zero_shot", clip, ["ant", "bee"]).save_pretrained(tmp_path / "run")
    assert json.loads((run / "adapter_config.json").read_text())["backbone"]["pickled"] is True
    photo = tmp_path / "photos" / "ant" / "0.png"
    asks = "which were read from a pickled file, a format that can contain code: add {} to read its tensors only."
    commands = ["predict", run, photo], ["eval", run, photo.parents[1]], ["explain", run, photo]
    for command in (*commands, ["search", "index", photo.parent, "--run", run]):
        code, _, err = dear_(*command)
        assert code == 2
        assert asks.format("--allow-pickled") in " ".join(err.split())
        assert dear_(*command, "--allow-pickled")[0] in (0, None)
    code, _, _ = dear_("search", "find", run, photo, "--allow-pickled")
    assert code in (0, None)
    with pytest.raises(BackboneError, match="add allow_pickled=True to read its tensors only"):
        dear.load(run)
    assert dear.load(run, allow_pickled=True).clip.pickled
    assert dear.load(run, clip).clip is clip


def test_weights_in_safetensors_record_nothing(clip, tmp_path):
    run = build("zero_shot", clip, ["ant"]).save_pretrained(tmp_path / "run")
    assert "pickled" not in json.loads((run / "adapter_config.json").read_text())["backbone"]


def test_an_adapter_that_does_not_record_it_asks_as_well(folder, tmp_path):
    """As saved before the manifest had the entry."""
    clip = dear.load_clip(f"local-dir:{folder}", allow_pickled=True)
    run = build("zero_shot", clip, ["ant"]).save_pretrained(tmp_path / "run")
    saved = json.loads((run / "adapter_config.json").read_text())["backbone"]
    del saved["pickled"]
    rewrite(run / "adapter_config.json", backbone=saved)
    with pytest.raises(BackboneError, match="add allow_pickled=True to read its tensors only"):
        dear.load(run)
    assert dear.load(run, allow_pickled=True).name == "zero_shot"
