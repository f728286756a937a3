"""Tar and Parquet files as data sets: the images, names and shots of the folder, and nothing to exploit."""

import io
import os
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dear
from dear.data import parquet_file
from dear.data.images import content_of, open_image
from dear.data.open import open_dataset
from dear.data.packed import is_packed, open_shard
from dear.data.shards import shard_files, source_images, splits_of
from dear.data.splits import few_shot, shots_to_json
from dear.errors import DataError, DearWarning, ImageError, MissingExtraError
from needs import needs
from shards import class_folders, files_of, parquet_of, tar_of, webdataset, write_tar


@pytest.fixture(autouse=True)
def _with_pyarrow():
    needs("pyarrow")


@pytest.fixture
def photos(tmp_path) -> Path:
    return class_folders(tmp_path / "photos")


def png(color: str = "red") -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (8, 8), color).save(data, "PNG")
    return data.getvalue()


def write_parquet(path: Path, **columns) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("make", [tar_of, parquet_of], ids=["tar", "parquet"])
def test_a_tar_and_a_parquet_file_have_the_same_images_names_and_shots_as_the_folder(photos, tmp_path, make):
    source = make(photos, tmp_path / f"photos.{make.__name__.removesuffix('_of')}")
    folder, packed = open_dataset(photos), open_dataset(source)
    assert (packed.name, packed.class_names, packed.train) == (folder.name, folder.class_names, folder.train)
    shots = [shots_to_json(one, few_shot(one.train, 2, seed=3), shots=2, seed=3) for one in (folder, packed)]
    assert shots[0] == shots[1]  # ids, labels and content hashes
    for item in folder.train:
        assert folder.open(item.id).tobytes() == packed.open(item.id).tobytes()
    assert open_dataset(packed.source).train == packed.train


def test_shards_of_webdataset_by_pattern_and_by_folder(photos, tmp_path):
    (tmp_path / "shards").mkdir()
    webdataset(photos, f"{tmp_path}/shards/{{:03d}}.tar", 3)
    opened = [
        open_dataset(tmp_path / "shards" / name) for name in ("{000..002}.tar", "*.tar", "{000,001,002}.tar", ".")
    ]
    assert {one.class_names for one in opened} == {("0", "1", "2")}  # .cls files have numbers
    assert len(opened[0].train) == 18
    assert all(one.train == opened[0].train for one in opened)
    named = open_dataset(tmp_path / "shards", names={"0": "ant", "1": "bee", "2": "cat"})
    assert named.class_names == ("ant", "bee", "cat")
    with pytest.raises(DataError, match=r"003\.tar does not exist: correct the pattern"):
        open_dataset(f"{tmp_path}/shards/{{000..003}}.tar")
    with pytest.raises(DataError, match="No file is called"):
        open_dataset(f"{tmp_path}/shards/x*.tar")
    if sys.version_info < (3, 13):  # later, ** beside letters is a *
        with pytest.raises(DataError, match=r"The pattern .*a\*\*b/\*\.tar' has \*\* beside other letters"):
            open_dataset(f"{tmp_path}/a**b/*.tar")
    with pytest.raises(DataError, match="names more than 1,000,000 files"):
        open_dataset(f"{tmp_path}/{{0..9999}}{{0..9999}}.tar")


def test_labels_in_a_tar_come_from_cls_json_txt_or_the_folder(tmp_path):
    members = {
        "a/1.jpg": png(), "a/1.cls": b"ant\n", "a/1.seg.png": png("blue"),
        "a/2.png": png(), "a/2.json": b'{"label": "bee", "width": 3}', "a/2.txt": b"not this",
        "a/3.png": png(), "a/3.txt": b"cow",
        "dog/4.v2.png": png(),
        "a/._5.png": b"finder", "a/readme.md": b"no image",
    }  # fmt: skip
    data = open_dataset(write_tar(tmp_path / "some.tar", members))
    assert data.class_names == ("ant", "bee", "cow", "dog")
    assert [item.id for item in data.train] == ["ant/1.jpg", "bee/2.png", "cow/3.png", "dog/4.v2.png"]
    caption = write_tar(tmp_path / "laion.tar", {"1.png": png(), "1.txt": b"A long caption. " * 10})
    with pytest.raises(DataError, match=r"1.txt .* is not the name of a class but a text of 159 letters"):
        open_dataset(caption)
    with pytest.raises(DataError, match="images of 0 class"):
        open_dataset(write_tar(tmp_path / "bare.tar", {"1.png": png()}))


def test_a_negative_number_is_no_label_in_both_kinds_of_files(tmp_path):
    """In a .cls file, -1 was a class called "-1"."""
    labels = {"1": "0", "2": "1", "3": "-1"}
    members = {f"x/{key}.png": png() for key in labels} | {
        f"x/{key}.cls": text.encode() for key, text in labels.items()
    }
    members |= {"x/4.png": png(), "x/4.json": b'{"label": -1}'}
    tar = write_tar(tmp_path / "a.tar", members)
    parquet = write_parquet(tmp_path / "a.parquet", image=[png()] * 4, label=[0, 1, -1, -1])
    for source in (tar, parquet):
        with pytest.warns(DearWarning, match="2 of 4 images in .* have no label and are left out"):
            data = open_dataset(source)
        assert (data.class_names, [item.label for item in data.train]) == (("0", "1"), [0, 1])
    with pytest.raises(DataError, match="is not the name of a class but a text of 5000 letters"):
        open_dataset(write_tar(tmp_path / "b.tar", {"1.png": png(), "1.cls": b"1" * 5000}))


def test_splits_are_recognised_by_file_names_and_unlabelled_rows_left_out(photos, tmp_path):
    data = tmp_path / "hub" / "data"
    data.mkdir(parents=True)
    files = files_of(photos)
    parquet_of(photos, data / "train-00000-of-00002.parquet", files=files[::3])
    parquet_of(photos, data / "train-00001-of-00002.parquet", files=files[1::3])
    parquet_of(photos, data / "test-00000-of-00001.parquet", files=files[2::3])
    found = open_dataset(tmp_path / "hub")
    assert (len(found.train), len(found.val), len(found.test)) == (12, 0, 6)
    assert source_images(tmp_path / "hub").names[0] == "test-00000-of-00001.parquet/0/002.png"
    assert splits_of([Path("a/train/0.parquet"), Path("a/validation/0.parquet")]) == ["train", "val"]
    assert splits_of([Path("test.parquet"), Path("trainers.tar")]) == ["train", "train"]
    (data / "test-00000-of-00001.parquet").unlink()
    assert len(open_dataset(tmp_path / "hub").train) == 12
    some = write_parquet(tmp_path / "some.parquet", image=[png()] * 3, label=["a", None, "b"])
    with pytest.warns(DearWarning, match="1 of 3 images in .* have no label and are left out"):
        assert len(open_dataset(some).train) == 2


def test_plain_bytes_and_other_columns(tmp_path):
    data = open_dataset(write_parquet(tmp_path / "a.parquet", id=[1, 2], jpg=[png(), png("blue")], cls=[7, 3]))
    assert data.class_names == ("3", "7")
    assert [item.id for item in data.train] == ["3/a-000001.png".removesuffix(".png"), "7/a-000000"]
    assert data.open("3/a-000001").getpixel((0, 0)) == (0, 0, 255)
    with pytest.raises(DataError, match="a label of type float"):
        open_dataset(write_parquet(tmp_path / "b.parquet", image=[png()], label=[0.5]))
    with pytest.raises(DataError, match=r"images of 0 class.*in a column called label"):
        open_dataset(write_parquet(tmp_path / "c.parquet", image=[png()]))


def test_a_path_in_a_parquet_file_is_never_opened(photos, tmp_path, monkeypatch):
    secret = files_of(photos)[0]
    import pyarrow as pa

    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": None, "path": str(secret)}, {"bytes": png(), "path": "../../../etc/passwd"}]
    source = write_parquet(tmp_path / "evil.parquet", image=pa.array(rows, kind), label=["a", "b"])
    data = open_dataset(source)
    assert [item.id for item in data.train] == ["a/000.png", "b/passwd"]
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **more: opened.append(str(path)) or real(path, *rest, **more))
    with pytest.raises(ImageError, match="has no image bytes, and a path in a Parquet file is never opened"):
        data.open("a/000.png")
    assert data.content_of("a/000.png") == "missing"
    assert data.open("b/passwd").size == (8, 8)
    assert not [one for one in opened if "passwd" in one or str(photos) in one]
    paths = write_parquet(tmp_path / "paths.parquet", image=[str(secret)], label=["a"])
    with pytest.raises(DataError, match="paths in a Parquet file are never opened"):
        open_dataset(paths)


def test_hostile_tars_are_harmless(tmp_path):
    outside = tmp_path / "outside.png"
    outside.write_bytes(png())
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind, target in (("l/1.png", tarfile.SYMTYPE, str(outside)), ("l/2.png", tarfile.LNKTYPE, "x"),
                                   ("l/3.png", tarfile.FIFOTYPE, ""), ("l/4.png", tarfile.CHRTYPE, "")):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            tar.addfile(member)
        for name in ("/abs/1.png", "../../up/1.png", "a//./2.png", "a/2.png"):
            member = tarfile.TarInfo(name)
            member.size = len(png())
            tar.addfile(member, io.BytesIO(png()))
    shard = open_shard(path)
    assert list(shard.members) == ["abs/1.png", "__/__/up/1.png", "a/2.png"]
    assert [item.id for item in open_dataset(path).train] == ["a/2.png", "abs/1.png", "up/1.png"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["evil.tar", "outside.png"]


def test_hard_links_are_the_members_that_they_name(photos, tmp_path):
    """GNU tar writes one for a second name of the same file, and such photos were dropped without a word."""
    os.link(photos / "ant" / "000.png", photos / "ant" / "copy.png")
    path = tar_of(photos, tmp_path / "photos.tar")
    with tarfile.open(path) as tar:
        assert sum(member.islnk() for member in tar) == 1
    folder, packed = open_dataset(photos), open_dataset(path)
    assert packed.train == folder.train
    assert [packed.content_of(one.id) for one in packed.train] == [folder.content_of(one.id) for one in folder.train]


def test_a_hard_link_leads_to_regular_members_of_its_tar_only(tmp_path):
    (tmp_path / "outside.png").write_bytes(png())
    links = {"l/1.png": "a/1.png", "l/2.png": "../up.png", "l/3.png": "l/2.png", "l/4.png": "l/4.png",
             "l/5.png": str(tmp_path / "outside.png"), "l/6.png": "../outside.png", "l/7.png": "s.png",
             "l/8.png": "b/late.png"}  # fmt: skip
    path = write_tar(tmp_path / "evil.tar", {"a/1.png": png(), "../up.png": png("blue")})
    with tarfile.open(path, "a") as tar:
        for name, target in {"s.png": str(tmp_path / "outside.png"), **links}.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE if name == "s.png" else tarfile.LNKTYPE, target
            tar.addfile(member)
        member = tarfile.TarInfo("b/late.png")
        member.size = len(png())
        tar.addfile(member, io.BytesIO(png()))
    shard = open_shard(path)
    assert list(shard.members) == ["a/1.png", "__/up.png", "l/1.png", "l/2.png", "l/3.png", "b/late.png"]
    assert open_image(path / "l" / "3.png").getpixel((0, 0)) == (0, 0, 255)


def _lies(path: Path, field: slice, text: bytes) -> Path:
    """A tar whose first header has another field, with a valid checksum."""
    data = bytearray(write_tar(path, {"a/1.png": png(), "b/2.png": png()}).read_bytes())
    data[field] = text
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (slice(124, 136), b"77777777777\0"),  # 8 GB that are not there
        (slice(124, 136), b"\xff" * 12),  # a size below 0: the next header would be this one
        (slice(0, 3), b"\0\0\0"),
    ],
)
def test_a_tar_that_lies_about_sizes_is_refused(tmp_path, field, text):
    path = _lies(tmp_path / "lies.tar", field, text)
    if text[:1] == b"\0":
        assert list(open_shard(path).members)[-1] == "b/2.png"
    else:
        with pytest.raises(DataError, match="is not a whole, uncompressed tar file"):
            open_shard(path)


def test_headers_and_members_that_are_too_large_are_not_read(tmp_path, monkeypatch):
    path = tmp_path / "pax.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a.png")
        member.pax_headers = {"comment": "x" * (2 << 20)}
        tar.addfile(member)
    with pytest.raises(DataError, match="is not a whole"):
        open_shard(path)
    monkeypatch.setattr("dear.data.images.LARGEST_FILE", 100)
    large = write_tar(tmp_path / "large.tar", {"a/1.png": png() + bytes(200)})
    with pytest.raises(ImageError, match="more than the 100 that fit"):
        open_image(large / "a" / "1.png")
    rows = write_parquet(tmp_path / "large.parquet", image=[png() + bytes(200)])
    with pytest.raises(ImageError, match="more than the 100 that fit"):
        open_image(rows / "0")


def test_a_row_group_that_becomes_far_too_large_is_refused(tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"image": [bytes(100_000)] * 2000}), path, use_dictionary=True, compression="zstd")
    assert path.stat().st_size < 200_000  # 200 MB of images
    monkeypatch.setattr(parquet_file, "LARGEST_GROUP", 10 << 20)
    with pytest.raises(ImageError, match="MB of images in one row group: write it again with row_group_size=1000"):
        open_image(path / "5")


@pytest.mark.parametrize("kind", ["tar", "parquet"])
@pytest.mark.parametrize("place", [0.1, 0.5, 0.9, 0.999])
def test_damaged_and_truncated_shards_are_one_sentence(photos, tmp_path, kind, place):
    whole = (tar_of if kind == "tar" else parquet_of)(photos, tmp_path / f"a.{kind}").read_bytes()
    seen = []
    for number, data in enumerate([whole[: int(len(whole) * place)], b"", np.random.default_rng(3).bytes(4096)]):
        path = tmp_path / f"{number}.{kind}"
        path.write_bytes(data)
        try:
            data = open_dataset(path)
            for item in data.train:
                data.open(item.id)
        except (DataError, ImageError) as error:
            seen.append(str(error))
    assert len(seen) > 1
    assert not [one for one in seen if "\n" in one]


def test_not_shards(tmp_path, photos):
    with pytest.raises(DataError, match="is compressed: images are read at their places"):
        open_dataset(tmp_path / "a.tar.gz")
    (photos / "left.tar").write_bytes(b"a download beside class folders")
    assert len(open_dataset(photos).train) == 18
    os.mkfifo(tmp_path / "fifo.parquet")
    assert shard_files(tmp_path / "fifo.parquet") == ()
    assert not is_packed("a striped.tar/star")


def test_parquet_without_pyarrow_says_what_to_install(photos, tmp_path, monkeypatch):
    path = parquet_of(photos, tmp_path / "p.parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"needs pyarrow: pip install 'dear-vlm\[data\]'."):
        open_dataset(path)


def test_a_changed_shard_is_read_again(photos, tmp_path):
    path = parquet_of(photos, tmp_path / "p.parquet")
    data = open_dataset(path)
    first = data.train[0].id
    before = data.content_of(first)
    Image.new("RGB", (24, 24), "green").save(files_of(photos)[0])
    parquet_of(photos, path)
    assert data.content_of(first) != before
    assert data.open(first).getpixel((0, 0)) == (0, 128, 0)
    assert content_of(path / "0" / "000.png") == data.content_of(first)
    assert repr(dear.open_dataset(path)) == repr(data)
