"""One pass over images: streaming equals stored, a kill loses nothing, broken images are skipped and counted."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from dear.data.images import folder_images, image_batches, open_image
from dear.errors import CorruptArtefactError, ImageError, RolesError
from dear.roles.capture import contributions
from dear.roles.moments import CHECKPOINT, collect_moments
from dear.roles.stability import bootstrap_moments


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    (folder / "below").mkdir(parents=True)
    random = np.random.default_rng(0)
    for i in range(22):
        path = folder / ("below" if i % 3 == 0 else "") / f"{i:02}.png"
        Image.fromarray(random.integers(0, 255, (20 + i, 30, 3), dtype=np.uint8)).save(path)
    (folder / "notes.txt").write_text("not an image")
    (folder / "a folder.jpg").mkdir()
    return folder


@pytest.fixture
def broken(photos):
    (photos / "02.png").write_bytes(b"")
    (photos / "04.png").write_bytes((photos / "05.png").read_bytes()[:200])
    (photos / "07.png").write_text("<html>not found</html>")
    return photos


def collect(clip, images, **options):
    return collect_moments(clip, images, **{"first_layer": 3, "batch": 4, "blocks": 3, **options})


def test_streaming_equals_stored(clip, photos):
    images = folder_images(photos)
    assert len(images) == 22
    collected = collect(clip, images)
    stacked = torch.stack([clip.preprocess_eval(images.open(i)) for i in range(22)])
    stored_NME = contributions(clip, stacked).heads_BLHE[:, 2:].flatten(1, 2).double().numpy()
    whole = collected.whole()
    assert whole.count == 22
    assert np.allclose(whole.sum_ME, stored_NME.sum(0), atol=1e-5)
    assert np.allclose(whole.outer_MEE, np.einsum("nme,nmf->mef", stored_NME, stored_NME), atol=1e-5)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("killed_at", [4, 12, 20, 22])
def test_resumed_equals_uninterrupted_byte_for_byte(clip, broken, tmp_path, killed_at):
    images = folder_images(broken)
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    collect(clip, images, checkpoint=tmp_path / "whole")

    def kill(position):
        if position >= killed_at:
            raise KilledError

    with pytest.raises(KilledError):
        collect(clip, images, checkpoint=tmp_path / "cut", save_every=-1, progress=kill)
    seen = []
    collect(clip, images, checkpoint=tmp_path / "cut", progress=seen.append)
    assert seen[0] == killed_at  # the batch that was lost is read again, nothing before it
    assert (tmp_path / "cut" / CHECKPOINT).read_bytes() == (tmp_path / "whole" / CHECKPOINT).read_bytes()
    again = []
    collect(clip, images, checkpoint=tmp_path / "cut", progress=again.append)
    assert again == []


def test_broken_images_are_skipped_and_counted(clip, broken):
    collected = collect(clip, folder_images(broken))
    assert collected.whole().count == 19
    assert [problem.split("/")[-1].split(" ")[0] for problem in collected.problems] == ["02.png", "04.png", "07.png"]
    assert "it is empty" in collected.problems[0]


def test_too_few_readable_images(clip, tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"no")
    (tmp_path / "b.jpg").write_bytes(b"no")
    with pytest.raises(
        RolesError, match=r"Only 0 of 2 images can be read, but 2 are needed\. The first problem: .*a\.jpg"
    ):
        collect(clip, folder_images(tmp_path))


def test_a_checkpoint_of_something_else_is_refused(clip, photos, tmp_path):
    images, out = folder_images(photos), tmp_path / "out"
    out.mkdir()
    collect(clip, images, checkpoint=out)
    with pytest.raises(RolesError, match="belongs to other images"):
        collect(clip, images, checkpoint=out, first_layer=2)
    copy = shutil.copytree(photos, tmp_path / "copy")
    with pytest.raises(RolesError, match="belongs to other images"):
        collect(clip, folder_images(copy), checkpoint=out)
    (out / CHECKPOINT).write_bytes((out / CHECKPOINT).read_bytes()[:-50])
    with pytest.raises(CorruptArtefactError, match="is damaged"):
        collect(clip, images, checkpoint=out)


def test_bootstrap_resamples_blocks(clip, photos):
    collected = collect(clip, folder_images(photos), blocks=5)
    draws = bootstrap_moments(collected, 4, seed=1)
    counts = [block.count for block in collected.blocks]
    assert counts == [6, 4, 4, 4, 4]
    assert all(20 <= draw.count <= 30 for draw in draws)
    assert len({draw.outer_MEE.tobytes() for draw in draws}) > 1
    assert [d.count for d in bootstrap_moments(collected, 4, seed=1)] == [d.count for d in draws]
    one_block = collect(clip, folder_images(photos), batch=64)
    assert bootstrap_moments(one_block, 4) == []


def test_image_lists(photos, tmp_path):
    images = folder_images(photos)
    assert images.names == tuple(sorted(images.names, key=lambda name: tuple(name.split("/"))))
    some = images.spread(5)
    assert some.names == tuple(images.names[i] for i in (0, 4, 8, 13, 17))
    assert np.array_equal(np.asarray(some.open(3)), np.asarray(images.open(13)))
    assert images.spread(99) is images
    assert len(images.spread(0)) == 0
    batches = list(image_batches(images, lambda image: torch.zeros(1), size=8, start=8))
    assert [(b.start, b.stop) for b in batches] == [(8, 16), (16, 22)]
    with pytest.raises(ImageError, match="is not a folder"):
        folder_images(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImageError, match="There are no images"):
        folder_images(tmp_path / "empty")


def test_enormous_images_are_refused(tmp_path, monkeypatch):
    Image.new("L", (50, 50)).save(tmp_path / "big.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ImageError, match="far too many pixels"):
        open_image(tmp_path / "big.png")


def test_checkpoints_are_plain_safetensors(clip, photos, tmp_path):
    collect(clip, folder_images(photos), checkpoint=tmp_path)
    data = (tmp_path / CHECKPOINT).read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert json.loads(header["__metadata__"]["state"])["position"] == 22
