"""Files of strangers: no code of theirs runs, no program is started, nothing hangs, every refusal is one sentence."""

import gzip
import json
import os
import shutil
import stat
import threading
import tracemalloc

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import dear
from dear.data.images import decode_image, folder_images, image_batches, open_image
from dear.data.readers import read_list
from dear.engine.run_folder import read_run
from dear.errors import BackboneError, CorruptArtefactError, DataError, DearError, ImageError, OverwriteError
from dear.model.load import load
from dear.reports.run_page import Confusion
from dear.retrieval.index import read_index
from dear.roles.rolemap import HeadRole, Provenance, RoleMap
from dear.storage.files import sha256, shown, write_atomic
from dear.workflows.report_data import confusion
from helpers import TINY_CONFIGS, make_photos
from kinds import jpeg, photo


def backbone_folder(folder, **text):
    config = json.loads(json.dumps(TINY_CONFIGS["shallow"]))
    config["text_cfg"] |= text
    folder.mkdir(exist_ok=True)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    return folder


@pytest.mark.covers("S1")
def test_a_folder_cannot_ask_for_its_own_python(tmp_path):
    canary = tmp_path / "ran"
    folder = backbone_folder(
        tmp_path / "clip", hf_tokenizer_name="x", tokenizer_kwargs={"trust_remote_code": True, "clean": "lower"}
    )
    (folder / "tok.py").write_text(f"open({str(canary)!r}, 'w').write('x')\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["tok.Tok", "tok.Tok"]}}))
    with pytest.raises(BackboneError, match="sets 'trust_remote_code' in its tokenizer_kwargs"):
        dear.load_clip(f"local-dir:{folder}", "random")
    assert not canary.exists()


@pytest.fixture
def asked(monkeypatch):
    """Questions that were asked; the answer is always yes."""
    found = []
    monkeypatch.setattr("builtins.input", lambda *question: found.append(question) or "y")
    return found


@pytest.mark.covers("S1")
@pytest.mark.parametrize("part", ["AutoConfig", "AutoModel"])
def test_a_text_tower_that_is_python_is_refused_without_a_question(tmp_path, monkeypatch, asked, part):
    monkeypatch.setattr("dear.backbone.limits.HUB_NAMES", ())  # no hub here, so its models have paths
    canary, encoder = tmp_path / "ran", tmp_path / "encoder"
    encoder.mkdir()
    kind = "evil" if part == "AutoConfig" else "vision-encoder-decoder"  # known, but not as a text tower
    (encoder / "config.json").write_text(json.dumps({"model_type": kind, "auto_map": {part: "own.Own"}}))
    (encoder / "own.py").write_text(f"open({str(canary)!r}, 'w').write('x')\n")
    folder = backbone_folder(tmp_path / "clip", hf_model_name=str(encoder))
    with pytest.raises(BackboneError, match="reads text with a model or tokenizer that has Python code of its own"):
        dear.load_clip(f"local-dir:{folder}", "random")
    assert not asked
    assert not canary.exists()


@pytest.mark.covers("S1")
@pytest.mark.parametrize("merges", [False, True])
def test_so_is_a_tokenizer_that_is_python(tmp_path, asked, merges):
    """Merges in the folder made transformers ask."""
    canary = tmp_path / "ran"
    folder = backbone_folder(tmp_path / "clip", hf_tokenizer_name="some/tokenizer")
    if merges:
        (folder / "bpe_merges.txt.gz").write_bytes(gzip.compress(b"#version\n"))
    (folder / "tok.py").write_text(f"open({str(canary)!r}, 'w').write('x')\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["tok.Tok", "tok.Tok"]}}))
    with pytest.raises(BackboneError, match="reads text with a model or tokenizer that has Python code of its own"):
        dear.load_clip(f"local-dir:{folder}", "random")
    assert not asked
    assert not canary.exists()


@pytest.mark.parametrize("tower", ["hf-hub:somebody/tower", "local-dir:/tmp/tower", "../tower", 3])
def test_a_folder_cannot_name_an_image_tower_elsewhere(tmp_path, tower):
    folder = backbone_folder(tmp_path / "clip")
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["model_cfg"]["vision_cfg"]["timm_model_name"] = tower
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(BackboneError, match="which is not the name of a timm model"):
        dear.load_clip(f"local-dir:{folder}", "random")


def test_openvision_needs_a_tokenizer_of_its_own(tmp_path):
    folder = backbone_folder(tmp_path / "clip", hf_tokenizer_name="bert-base-uncased", context_length=80)
    with pytest.raises(BackboneError, match="wrong ids for it: use a folder with tokenizer_mode 'clips'"):
        dear.load_clip(f"local-dir:{folder}", "random")


@pytest.mark.covers("S1")
@pytest.mark.parametrize("name", ["open_clip_pytorch_model.bin", "weights.pth"])
def test_weights_that_can_hold_code_need_a_flag(tmp_path, name):
    folder = backbone_folder(tmp_path / "clip")
    (folder / name).write_bytes(b"cos\nsystem\n")
    with pytest.raises(BackboneError, match="is not a safetensors file, and other formats can contain code"):
        dear.load_clip(f"local-dir:{folder}")
    with pytest.raises(BackboneError, match="is not a safetensors file"):
        dear.load_clip("ViT-B-32", str(folder / name))


@pytest.mark.covers("S1")
def test_so_do_weights_of_a_repository(tmp_path, hub):
    folder = backbone_folder(tmp_path / "clip")
    config = json.loads((folder / "open_clip_config.json").read_text())
    weights = {"open_clip_pytorch_model.bin": b"cos\nsystem\n"}
    hub.add("some/body", {"open_clip_config.json": json.dumps(config).encode(), **weights})
    with pytest.raises(BackboneError, match="is not a safetensors file, and other formats can contain code"):
        dear.load_clip("hf-hub:some/body")
    config["model_cfg"]["text_cfg"] |= {"hf_tokenizer_name": "x", "tokenizer_kwargs": {"trust_remote_code": True}}
    hub.add("some/where", {"open_clip_config.json": json.dumps(config).encode(), **weights})
    with pytest.raises(BackboneError, match="sets 'trust_remote_code' in its tokenizer_kwargs"):
        dear.load_clip("hf-hub:some/where")


@pytest.mark.covers("S1")
def test_an_adapter_that_names_a_folder_runs_nothing_of_it(model, tmp_path):
    canary = tmp_path / "ran"
    evil = backbone_folder(tmp_path / "evil", hf_tokenizer_name="x", tokenizer_kwargs={"trust_remote_code": True})
    (evil / "tok.py").write_text(f"open({str(canary)!r}, 'w').write('x')\n")
    folder = model.save_pretrained(tmp_path / "adapter")
    changed_manifest(folder, lambda content: content["backbone"].update({"name": f"local-dir:{evil}"}))
    with pytest.raises(BackboneError, match="sets 'trust_remote_code' in its tokenizer_kwargs"):
        load(folder)
    assert not canary.exists()


@pytest.mark.covers("S2")
def test_no_program_is_started_for_an_image(tmp_path, monkeypatch):
    canary = tmp_path / "ran"
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\ntouch {canary}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ghostscript.parent}:{os.environ['PATH']}")
    eps = tmp_path / "x.jpg"
    eps.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n")
    with pytest.raises(ImageError, match="damaged or not an image"):
        open_image(eps)
    assert not canary.exists()


def changed_manifest(folder, change):
    from dear.storage import documents

    path = folder / "adapter_config.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(documents.to_json(documents.sealed(content)))


@pytest.mark.covers("S3")
@pytest.mark.parametrize("name", ["../secret.json", "/etc/hostname", "a/b.json", "run.sh"])
def test_a_manifest_names_plain_files_only(model, tmp_path, name):
    folder = model.save_pretrained(tmp_path / "adapter")
    secret = tmp_path / "secret.json"
    secret.write_text("mine")
    changed_manifest(folder, lambda content: content["files"].update({name: {"bytes": 4, "sha256": "0" * 64}}))
    with pytest.raises(CorruptArtefactError, match="damaged"):
        load(folder, model.clip)
    model.save_pretrained(folder, overwrite=True)
    assert secret.read_text() == "mine"


@pytest.mark.covers("S3")
def test_saving_removes_only_what_the_manifest_vouches_for(model, tmp_path):
    folder = model.save_pretrained(tmp_path / "adapter")
    (folder / "notes.txt").write_text("mine")
    changed_manifest(folder, lambda content: content["files"].update({"notes.txt": {"bytes": 4, "sha256": "0" * 64}}))
    model.save_pretrained(folder, overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.covers("S3")
def test_a_file_of_another_size_is_not_read(model, tmp_path):
    folder = model.save_pretrained(tmp_path / "adapter")
    with (folder / "roles.json").open("ab") as file:
        file.truncate(1 << 40)  # sparse: a terabyte that takes no room
    with pytest.raises(CorruptArtefactError, match=r"roles.json cannot be read: it has 1,099,511,627,776 bytes"):
        load(folder, model.clip)


def in_time(call, seconds=20):
    """The error that a call raises, or a failure if it hangs."""
    found = []

    def run():
        try:
            call()
        except DearError as error:
            found.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    return found[0]


@pytest.mark.covers("H1")
def test_a_fifo_stops_nothing(model, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("adapter_config.json", "run.json", "index.json", "photo.jpg", "list.csv", "roles.json"):
        os.mkfifo(folder / name)
    assert "not a regular file" in in_time(lambda: load(folder, model.clip))
    assert "not a regular file" in in_time(lambda: read_run(folder))
    assert "damaged" in in_time(lambda: read_index(folder))
    assert "not a regular file" in in_time(lambda: open_image(folder / "photo.jpg"))
    assert "not a regular file" in in_time(lambda: read_list(folder / "list.csv"))
    assert "role map" in in_time(lambda: RoleMap.load(folder / "roles.json"))
    os.mkfifo(tmp_path / "README.md")
    assert "not a regular file" in in_time(lambda: model.save_pretrained(tmp_path))


@pytest.mark.covers("H3")
def test_a_sparse_image_of_terabytes_is_refused(tmp_path):
    path = tmp_path / "x.jpg"
    path.write_bytes(jpeg(photo()))
    with path.open("ab") as file:
        file.truncate(5 << 30)
    with pytest.raises(ImageError, match="it has 5,368,709,120 bytes, more than"):
        open_image(path)


@pytest.mark.covers("H2")
def test_checks_are_not_quadratic(tmp_path):
    heads = tuple(HeadRole(layer=1 + i // 16, head=i % 16, role=dear.Role.MIXED) for i in range(20_000))
    assert len(RoleMap(heads=heads, provenance=Provenance(source="many")).heads) == 20_000
    rows = "\n".join(f"{label}/{i}.jpg,class {label}" for label in range(5_000) for i in range(16))
    (tmp_path / "list.csv").write_text(f"path,label\n{rows}\n")
    assert len(read_list(tmp_path / "list.csv").train) == 80_000


@pytest.mark.covers("H2")
def test_a_confusion_of_thousands_of_classes_is_small():
    count = 3_000
    truth = torch.arange(2 * count) % count
    tracemalloc.start()
    found = Confusion(
        tuple(map(str, range(count))), confusion(truth, (truth + (torch.arange(2 * count) >= count)) % count)
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    assert found.shares[0, 1] == 50


@pytest.mark.covers("C1")
def test_one_extreme_image_does_not_end_the_job(clip, tmp_path):
    photos = make_photos(tmp_path / "photos", ["a"], 2)
    Image.new("L", (60_000, 1)).save(photos / "a" / "strip.png")
    (batch,) = image_batches(folder_images(photos), clip.preprocess_eval, size=8)
    assert len(batch.indices) == 2
    assert "far too many pixels" in batch.problems[0]
    Image.new("L", (1, 50_000)).save(photos / "a" / "strip.png")  # 150 bytes, resized to 224 × 11,200,000 pixels
    (batch,) = image_batches(folder_images(photos), clip.preprocess_eval, size=8)
    assert len(batch.indices) == 2
    assert batch.problems[0].endswith("one side is more than 200 times as long as the other; crop or remove it.")
    with pytest.raises(ImageError, match="image 0 cannot be read: one side is more than 200 times"):
        decode_image((photos / "a" / "strip.png").read_bytes(), "image 0")
    for size in ((2, 400), (400, 2)):
        Image.new("L", size).save(photos / "a" / "strip.png")
        assert open_image(photos / "a" / "strip.png").size == size


@pytest.mark.covers("C1")
def test_what_an_image_breaks_is_told_of_that_image(tmp_path):
    photos = make_photos(tmp_path / "photos", ["a"], 2)

    def odd(image):
        raise ZeroDivisionError("no area")

    (batch,) = image_batches(folder_images(photos), odd, size=8)
    assert batch.images is None
    assert "a/0.png cannot be used: ZeroDivisionError: no area" in batch.problems[0]


@pytest.mark.covers("C2", "U1")
def test_names_that_are_no_text_are_shown_as_text(tmp_path):
    bad = os.fsdecode(b"\xff\x1b[31mred.jpg")
    assert shown(bad) == "��[31mred.jpg"
    (tmp_path / bad).write_bytes(b"")
    with pytest.raises(ImageError) as error:
        open_image(tmp_path / bad)
    str(error.value).encode()
    assert "\x1b" not in str(error.value)


@pytest.mark.covers("W7")
@pytest.mark.parametrize(
    "text",
    [
        "\ufeffpath,label\na.jpg,cat\nb.jpg,dog\n",
        "Label,Path\ncat,a.jpg\ndog,b.jpg\n",
        "id,filename,class\n1,a.jpg,cat\n2,b.jpg,dog\n",
        "a.jpg,cat\nb.jpg,dog\n",
    ],
    ids=["byte-order mark", "other order", "other names", "no header"],
)
def test_a_list_has_its_classes_whatever_its_header(tmp_path, text):
    (tmp_path / "list.csv").write_text(text, encoding="utf-8")
    assert read_list(tmp_path / "list.csv").class_names == ("cat", "dog")


@pytest.mark.covers("W7")
def test_a_header_that_says_nothing_is_refused(tmp_path):
    (tmp_path / "list.csv").write_text("x,y\na.jpg,cat\nb.jpg,dog\n")
    with pytest.raises(DataError, match="neither an image nor a header"):
        read_list(tmp_path / "list.csv")


@pytest.fixture
def replaced(model, tmp_path):
    """Saves an adapter with another tensor, which the manifest vouches for."""

    def replaced(name, tensor):
        folder = model.save_pretrained(tmp_path / "adapter")
        save_file({**model.state_dict(), name: tensor}, folder / "adapter_model.safetensors")
        data = (folder / "adapter_model.safetensors").read_bytes()
        entry = {"bytes": len(data), "sha256": sha256(data)}
        changed_manifest(folder, lambda content: content["files"].update({"adapter_model.safetensors": entry}))
        return folder

    return replaced


@pytest.mark.covers("W4")
def test_what_is_not_finite_is_not_loaded(model, replaced):
    scalars = model.state_dict()["fusion_scalars"].clone()
    scalars[0] = torch.nan
    with pytest.raises(CorruptArtefactError, match="fusion_scalars contains values that are not finite"):
        load(replaced("fusion_scalars", scalars), model.clip)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "complex64"])
def test_numbers_of_odd_types_are_not_loaded(model, replaced, dtype):
    scalars = model.state_dict()["fusion_scalars"].to(getattr(torch, dtype))
    with pytest.raises(CorruptArtefactError, match=f"fusion_scalars contains values of type {dtype}"):
        load(replaced("fusion_scalars", scalars), model.clip)


@pytest.mark.covers("D3")
def test_outputs_follow_links_keep_modes_and_replace_regular_files_only(tmp_path):
    kept = tmp_path / "kept.txt"
    kept.write_text("old")
    kept.chmod(0o600)
    (tmp_path / "link.txt").symlink_to(kept)
    write_atomic(tmp_path / "link.txt", b"new")
    assert (tmp_path / "link.txt").is_symlink()
    assert kept.read_text() == "new"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        write_atomic(tmp_path / "fifo", b"new")
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.covers("U2")
def test_a_card_is_text(clip, model, tmp_path):
    names = ["<img src=x>", "[click](http://x)", "`code`|cell"]
    folder = model.for_classes(names).save_pretrained(tmp_path / "adapter")
    card = (folder / "README.md").read_text()
    assert "\\<img src=x>" in card
    assert "\\[click\\](http://x)" in card
    assert "\\`code\\`\\|cell" in card


def test_an_old_output_folder_is_not_taken_for_ours(tmp_path):
    from dear.storage.locks import check_ours

    (tmp_path / "mine.txt").write_text("mine")
    for kind in ("run", "grid", "paper", "index"):
        with pytest.raises(OverwriteError, match="already contains other files"):
            check_ours(tmp_path, kind, resume=False, overwrite=True)
    shutil.rmtree(tmp_path)
