"""Downloads from an imitation of the hub: what is requested, what is shown, and what is said when it goes wrong."""

import logging
import re
import socket
from pathlib import Path

import pytest
from huggingface_hub import constants

import dear
from dear.backbone.download import _Part
from dear.errors import BackboneError, CacheError, HubError, typed
from dear.progress.display import Lines
from dear.progress.stages import heard_by
from fake_hub import GATED, LIST, NO_FILE, Fault, rate_limit
from helpers import make_photos

OPENAI = "timm/vit_base_patch16_clip_224.openai"
LAION = "laion/CLIP-ViT-B-16-laion2B-s34B-b88K"
SAFE, PICKLED = "open_clip_model.safetensors", "open_clip_pytorch_model.bin"


@pytest.fixture(autouse=True)
def slept(monkeypatch) -> list[float]:
    """Seconds that would have been slept."""
    seconds: list[float] = []
    monkeypatch.setattr("dear.backbone.hub.sleep", seconds.append)
    return seconds


def load():
    return dear.load_clip("ViT-B-16-quickgelu", "openai")


def sentence(error: type[Exception] = HubError, name: str = "") -> str:
    with typed(), pytest.raises(error) as caught:
        dear.load_clip(name) if name else load()
    return str(caught.value)


def cached_file() -> Path:
    (path,) = Path(constants.HF_HUB_CACHE).glob(f"models--*/snapshots/*/{SAFE}")
    return path


def unfinished() -> Path:
    (path,) = Path(constants.HF_HUB_CACHE).rglob("*.incomplete")
    return path


def test_three_requests_and_none_afterwards(hub, clip):
    loaded = load()
    assert loaded.weights_sha256 == clip.weights_sha256
    commit = hub.repositories[OPENAI].commit
    assert [(one.method, one.path, one.cdn) for one in hub.requests] == [
        ("GET", f"/api/models/{OPENAI}/revision/main", False),
        ("GET", f"/{OPENAI}/resolve/{commit}/{SAFE}", False),
        ("GET", f"/{OPENAI}/{SAFE}", True),
    ]
    hub.requests.clear()
    load()
    dear.load_clip(f"hf-hub:{OPENAI}")
    load_requests = [one.path for one in hub.requests]
    assert not [path for path in load_requests if path.endswith(SAFE)]  # the cache has the file
    hub.requests.clear()
    dear.load_clip(f"hf-hub:{OPENAI}")
    assert not hub.requests


def test_the_hub_library_finds_what_was_downloaded(hub):
    from huggingface_hub import hf_hub_download

    load()
    hub.requests.clear()
    assert Path(hf_hub_download(OPENAI, SAFE)) == cached_file()
    assert not [one for one in hub.requests if one.cdn]


def test_preprocessing_of_a_tag_is_open_clips(hub, monkeypatch):
    """Weights are loaded from a file, and so the tag's own preprocessing has to be passed along."""
    from open_clip.pretrained import get_pretrained_cfg

    special = {
        **get_pretrained_cfg("ViT-B-16-quickgelu", "openai"),
        "mean": (0.1, 0.2, 0.3),
        "interpolation": "bilinear",
    }
    monkeypatch.setattr("dear.backbone.load.get_pretrained_cfg", lambda *_: special)
    loaded = load()
    assert loaded.model.visual.preprocess_cfg["mean"] == (0.1, 0.2, 0.3)
    assert loaded.preprocess_train.interpolation == "bilinear"
    assert loaded.model.visual.preprocess_cfg["size"] == (32, 32)


@pytest.mark.parametrize("status", [0, 429])
def test_the_page_that_states_the_license_comes_along_if_it_can(hub, slept, status):
    files = {name: one.content for name, one in hub.repositories[OPENAI].files.items()}
    hub.add(OPENAI, files | {"README.md": b"---\nlicense: mit\n---\n# CLIP\n"})
    hub.misbehave(OPENAI, "README.md", Fault(status=status))
    origin = load().origin
    assert (origin.commit, origin.license) == (hub.repositories[OPENAI].commit, None if status else "mit")
    assert not slept


@pytest.mark.covers("N1")
def test_a_reset_is_reported_with_what_is_there_and_resumed(hub, clip, slept, capsys):
    hub.add(OPENAI, {name: one.content for name, one in hub.repositories[OPENAI].files.items()} | {PICKLED: b"x" * 100})
    hub.misbehave(OPENAI, SAFE, Fault(reset_after=1_000_000))
    said = sentence()
    part = unfinished().stat().st_size
    assert said == (
        f"The download of ViT-B-16-quickgelu (openai) stopped at {part / 1e6:.0f} of 7 MB: run the same command again, "
        "which resumes it there."
    )
    assert not hub.seen(PICKLED)  # a pickled file is never a second choice
    assert [one.range is None for one in hub.requests if one.cdn] == [True, False, False]
    assert slept == [1, 1]
    hub.misbehave(OPENAI, SAFE, None)
    hub.requests.clear()
    assert load().weights_sha256 == clip.weights_sha256
    assert [one.range for one in hub.requests if one.cdn] == [f"bytes={part}-"]
    assert f", 7 MB, of which {part // 10**6} are here, from http" in capsys.readouterr().err
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.incomplete"))


@pytest.mark.covers("N1")
@pytest.mark.parametrize(
    "fault", [Fault(reset_after=2_000_000, times=1), Fault(close_after=2_000_000, times=1)], ids=["reset", "closed"]
)
def test_one_broken_connection_is_continued_in_the_same_run(hub, clip, fault):
    hub.misbehave(OPENAI, SAFE, fault)
    assert load().weights_sha256 == clip.weights_sha256
    assert [one.range is None for one in hub.requests if one.cdn] == [True, False]


@pytest.mark.covers("N1")
def test_a_server_without_ranges_starts_again(hub, clip):
    hub.misbehave(OPENAI, SAFE, Fault(reset_after=2_000_000, ranges=False))
    assert " of 7 MB: run the same command again" in sentence()
    hub.misbehave(OPENAI, SAFE, Fault(ranges=False))
    assert load().weights_sha256 == clip.weights_sha256


@pytest.mark.covers("N1")
def test_pickled_weights_of_a_tag_are_used_only_if_there_are_no_others(hub, clip):
    assert dear.load_clip("ViT-B-16", "laion2b_s34b_b88k").weights_sha256 == clip.weights_sha256
    assert not hub.seen(SAFE)  # the list says that there is none
    assert sentence(BackboneError, f"hf-hub:{LAION}").endswith("loads the same weights.")


def test_a_part_that_is_damaged_is_not_used(hub, clip):
    hub.misbehave(OPENAI, SAFE, Fault(reset_after=1_000_000))
    sentence()
    unfinished().write_bytes(bytes(3_000_000))
    hub.misbehave(OPENAI, SAFE, None)
    assert "sent other bytes" in sentence()
    assert load().weights_sha256 == clip.weights_sha256


@pytest.mark.covers("N2")
@pytest.mark.parametrize("status", [401, 403])
def test_terms_that_have_to_be_accepted(hub, status):
    hub.misbehave(OPENAI, SAFE, Fault(status=status, headers=GATED))
    assert sentence() == (
        f"ViT-B-16-quickgelu (openai) has terms of use: accept them at {hub.endpoint}/{OPENAI}, then log in with "
        "`hf auth login` or set HF_TOKEN, and run the same command again."
    )


@pytest.mark.covers("N2")
def test_a_token_opens_a_gated_repository(hub, monkeypatch, clip):
    files = {name: one.content for name, one in hub.repositories[OPENAI].files.items()}
    hub.add(OPENAI, files, gated=True)
    assert "accept them at" in sentence()
    monkeypatch.setenv("HF_TOKEN", "hf_made_up")
    hub.requests.clear()
    assert load().weights_sha256 == clip.weights_sha256
    assert {one.cdn: one.token for one in hub.requests} == {False: "Bearer hf_made_up", True: None}  # not for the CDN


def test_a_token_that_is_refused(hub):
    refused = {"X-Error-Message": "Invalid credentials in Authorization header"}
    hub.misbehave(OPENAI, LIST, Fault(status=401, headers=refused))
    assert "refuses your token: log in again with `hf auth login`, or unset HF_TOKEN" in sentence()


def test_repositories_and_files_that_do_not_exist(hub):
    assert "no OpenCLIP model at hf-hub:nobody/nothing: check the spelling, or log in" in sentence(
        BackboneError, "hf-hub:nobody/nothing"
    )
    hub.add("some/body", {"README.md": b"# A model"})
    assert sentence(BackboneError, "hf-hub:some/body").startswith(
        f"{hub.endpoint}/some/body has no open_clip_config.json or config.json: check the name"
    )
    hub.misbehave(OPENAI, SAFE, Fault(status=404, headers=NO_FILE))
    assert f"{OPENAI} has no {SAFE}" in sentence(BackboneError)
    assert "'a b' cannot be the name of a repository" in sentence(BackboneError, "hf-hub:a b")


@pytest.mark.covers("N5")
@pytest.mark.parametrize("where", [LIST, SAFE])
def test_a_rate_limit_is_waited_for_once_and_said(hub, slept, capsys, clip, where):
    hub.misbehave(OPENAI, where, Fault(status=429, headers=rate_limit(120), times=1))
    with heard_by(Lines()):
        assert load().weights_sha256 == clip.weights_sha256
    assert slept == [1] * 120
    assert f"rate limited by {hub.endpoint}, waiting 120 s\n" in capsys.readouterr().err


@pytest.mark.covers("N5")
@pytest.mark.parametrize(("headers", "seconds"), [(rate_limit(120), 120), ({"Retry-After": "7"}, 7), ({}, 60)])
def test_a_rate_limit_that_lasts_is_one_sentence(hub, slept, headers, seconds):
    hub.misbehave(OPENAI, SAFE, Fault(status=429, headers=headers))
    assert sentence() == (
        f"The hub {hub.endpoint} accepts no more requests from here for {seconds} s: run the same command again then, "
        "or log in with `hf auth login`, which raises the limit."
    )
    assert len(slept) == seconds
    assert len(hub.seen(SAFE)) == 2


@pytest.mark.covers("N5")
def test_a_rate_limit_of_an_hour_is_not_waited_for(hub, slept):
    hub.misbehave(OPENAI, LIST, Fault(status=429, headers=rate_limit(3600)))
    assert "for 3600 s" in sentence()
    assert not slept


@pytest.mark.covers("N7")
def test_wrong_bytes_of_the_right_length_are_discarded(hub, clip):
    true = hub.repositories[OPENAI].files[SAFE]
    hub.misbehave(OPENAI, SAFE, Fault(content=true.content.read_bytes()[:100_000] + bytes(true.size - 100_000)))
    assert sentence() == (
        f"{hub.endpoint}/{OPENAI} sent other bytes for {SAFE} than it announced (checksum {true.etag[:12]}…), and they "
        "were deleted: run the same command again."
    )
    hub.misbehave(OPENAI, SAFE, None)
    assert load().weights_sha256 == clip.weights_sha256


@pytest.mark.covers("N7")
def test_no_more_is_written_than_was_announced(hub, monkeypatch):
    true, written = hub.repositories[OPENAI].files[SAFE], []
    hub.misbehave(OPENAI, SAFE, Fault(content=bytes(2 * true.size), length=2 * true.size))
    append = _Part.append
    monkeypatch.setattr(_Part, "append", lambda part, chunk: (written.append(len(chunk)), append(part, chunk)))
    assert "sent other bytes" in sentence()
    assert sum(written) == true.size


def test_a_list_without_end_is_refused(hub, monkeypatch):
    hub.add("some/body", {f"{n}.txt": b"x" for n in range(400)})
    monkeypatch.setattr("dear.backbone.download.LARGEST_LIST", 20_000)
    assert "some/body has more than 0 MB, far more than a model needs" in sentence(HubError, "hf-hub:some/body")
    load()


@pytest.mark.covers("N7")
@pytest.mark.parametrize("content", [b"\xff" * 1000, b"", b"half"])
def test_a_damaged_file_in_the_cache_is_named_and_can_be_deleted(hub, clip, content):
    load()
    path = cached_file()
    whole = path.read_bytes()
    path.resolve().write_bytes(whole[: len(whole) // 2] if content == b"half" else content)
    said = sentence(BackboneError)
    assert said.startswith(f"{path} cannot be loaded, because it is damaged (")
    assert said.endswith("): delete it and run the same command again.")
    path.unlink()
    assert load().weights_sha256 == clip.weights_sha256  # although the content was still there under its checksum


@pytest.mark.covers("N7")
@pytest.mark.parametrize("name", ["w.safetensors", "w.bin"])
def test_so_is_a_damaged_file_of_ones_own(tmp_path, name):
    (tmp_path / name).write_bytes(b"\xff" * 100)
    with pytest.raises(BackboneError, match=r"w\.\w+ cannot be loaded, because it is damaged .*: delete it and put an"):
        dear.load_clip("ViT-B-32", tmp_path / name, allow_pickled=True)


@pytest.mark.covers("N7")
def test_the_doctor_finds_a_file_that_changed(hub, dear_, monkeypatch):
    with heard_by(None):
        load()
        dear.load_clip("ViT-B-16", "laion2b_s34b_b88k")
    monkeypatch.setenv("HF_ENDPOINT", "https://me:secret@hub.example")
    code, out, err = dear_("doctor")
    assert (code, err) == (0, "")
    assert f"{constants.HF_HUB_CACHE}, 2 models, 2 files checked\n" in out
    assert "https://hub.example" in out
    assert "secret" not in out
    path = cached_file()
    with path.open("r+b") as file:
        file.seek(-1000, 2)
        file.write(b"another byte")
    load()  # nobody reads the file twice for each command
    found = dear.doctor()
    assert found["caches"]["weights"] | {"damaged": [str(path)], "checked": 2} == found["caches"]["weights"]
    assert f"{path} is damaged: delete it, and the next command that needs it downloads it again." in found["remarks"]
    assert "2 files checked, 1 damaged" in dear_("doctor")[1]


@pytest.mark.covers("N8")
def test_size_before_and_bytes_during(hub, monkeypatch, capsys, caplog):
    from dear.progress import display, stages

    time = [0.0]
    for module in (stages, display):
        monkeypatch.setattr(module, "clock", lambda: time.__setitem__(0, time[0] + 1) or time[0])
    with heard_by(Lines()), caplog.at_level(logging.INFO, logger="dear"):
        load()
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == f"downloading ViT-B-16-quickgelu (openai), 7 MB, from {hub.endpoint}/{OPENAI}"
    assert any(line.startswith("downloading ViT-B-16-quickgelu (openai): ") and " of 7 MB" in line for line in lines)
    assert first in caplog.text


@pytest.mark.covers("N1", "N8")
def test_the_command_line_shows_it_stops_and_resumes(hub, dear_, tmp_path):
    photos = make_photos(tmp_path / "photos", ["cat", "dog"], 4)
    train = ["train", photos, "--method", "zero_shot", "--clip", "ViT-B-16-quickgelu", "--pretrained", "openai"]
    hub.misbehave(OPENAI, SAFE, Fault(reset_after=1_000_000))
    code, _, err = dear_(*train, "--out", tmp_path / "run")
    first, last = err.splitlines()
    assert code == 2
    assert first == f"downloading ViT-B-16-quickgelu (openai), 7 MB, from {hub.endpoint}/{OPENAI}"
    assert re.fullmatch(r"dear: The download of .* stopped at \d of 7 MB: run the same command again, .*", last)
    hub.misbehave(OPENAI, SAFE, None)
    code, _, err = dear_(*train, "--out", tmp_path / "run")
    assert code == 0
    assert re.search(r"7 MB, of which \d are here, from http", err)


@pytest.mark.covers("N8")
def test_a_plain_python_call_shows_it_too_unless_progress_was_declined(hub, capsys):
    with heard_by(None):
        load()
    assert "downloading" not in capsys.readouterr().err
    cached_file().unlink()
    (next(Path(constants.HF_HUB_CACHE).rglob("blobs")) / hub.repositories[OPENAI].files[SAFE].etag).unlink()
    load()
    assert "downloading ViT-B-16-quickgelu (openai), 7 MB" in capsys.readouterr().err


@pytest.mark.covers("N11")
@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_mode_is_named(hub, monkeypatch, variable):
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert sentence() == (
        f"ViT-B-16-quickgelu (openai) is not in the cache {constants.HF_HUB_CACHE}, and {variable}=1 forbids "
        f"downloading it: unset {variable}, or fetch open_clip_config.json and open_clip_model.safetensors from "
        f"{hub.endpoint}/{OPENAI} with another machine and use the folder with --clip local-dir:FOLDER."
    )
    assert not hub.requests


def test_a_warm_cache_works_offline(hub, monkeypatch, clip):
    dear.load_clip(f"hf-hub:{OPENAI}")
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load().weights_sha256 == clip.weights_sha256
    assert dear.load_clip(f"hf-hub:{OPENAI}").weights_sha256 == clip.weights_sha256
    assert not hub.requests


def test_a_hub_that_cannot_be_reached(hub, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", nowhere)
    assert sentence() == (
        f"ViT-B-16-quickgelu (openai) has to be downloaded from {nowhere}/{OPENAI} and the hub cannot be reached: "
        "check the network, or fetch open_clip_config.json and open_clip_model.safetensors from there with another "
        "machine and use the folder with --clip local-dir:FOLDER."
    )


def test_other_refusals_and_answers_that_make_no_sense(hub, monkeypatch):
    hub.misbehave(OPENAI, LIST, Fault(status=503))
    assert "with error 503: try again later, or fetch" in sentence()
    hub.add("api/models", {f"{OPENAI}/revision/main": b"{}"})
    monkeypatch.setattr(constants, "ENDPOINT", hub.cdn)
    assert "does not answer as a model hub does: check HF_ENDPOINT" in sentence()


def test_a_cache_that_cannot_be_written(hub, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    assert sentence(CacheError).endswith("make room, or set HF_HUB_CACHE to another folder.")
