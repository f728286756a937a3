"""The store of frozen features: what was put comes back, and what is damaged is never taken for a number."""

import json
import multiprocessing
import os
import resource
import signal
import time

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

import dear
from dear.engine import feature_store
from dear.engine.feature_cache import Stores
from dear.engine.feature_store import RECORD, FeatureStore, store_description
from dear.errors import CacheError, DearError
from helpers import build

SHAPE = (5, 4)
ABOUT = {"prefix": "vision state before layer 3", "transform": "evaluation"}


def some_rows(count, seed=0):
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed)).half().float()


def keys_of(count, owner="set"):
    return [f"{owner}/{i}.jpg|10|20" for i in range(count)]


def only(folder, pattern):
    (path,) = folder.glob(pattern)
    return path


@pytest.fixture
def filled(tmp_path):
    store = FeatureStore.open(tmp_path, ABOUT, SHAPE)
    store.put(keys_of(4), some_rows(4))
    return store.folder


def test_rows_come_back_at_once_and_after_reopening(tmp_path):
    rows, keys = some_rows(6), keys_of(6)
    store = FeatureStore.open(tmp_path, ABOUT, SHAPE)
    assert len(store) == 0
    assert store.get([]).shape == (0, *SHAPE)
    store.put(keys[:4], rows[:4])
    assert torch.equal(store.get(keys[:4]), rows[:4])
    store.put(keys[4:], rows[4:])
    assert torch.equal(store.get([keys[5], keys[0], keys[5]]), rows[[5, 0, 5]])
    assert torch.equal(store.get(keys), rows)
    again = FeatureStore.open(tmp_path, dict(reversed(ABOUT.items())), SHAPE)
    assert len(again) == 6
    assert keys[3] in again
    assert "other" not in again
    assert again.get(keys).dtype == torch.float32
    assert torch.equal(again.get(keys), rows)
    assert json.loads((again.folder / RECORD).read_text())["description"] == ABOUT


def test_readers_write_nothing_and_known_keys_are_not_stored_twice(filled, tmp_path):
    before = sorted(filled.iterdir())
    store = FeatureStore.open(tmp_path, ABOUT, SHAPE)
    store.put(keys_of(4), some_rows(4, seed=1))
    assert torch.equal(store.get(keys_of(4)), some_rows(4))
    assert sorted(filled.iterdir()) == before


def test_rows_are_rounded_to_fp16_and_nothing_else(tmp_path):
    rows = some_rows(2) / 3
    store = FeatureStore.open(tmp_path, ABOUT, SHAPE)
    store.put(keys_of(2), rows.requires_grad_())
    assert torch.equal(store.get(keys_of(2)), rows.half().float())


def test_stores_of_other_descriptions_are_apart(filled, tmp_path):
    other = FeatureStore.open(tmp_path, {**ABOUT, "transform": "training view 1"}, SHAPE)
    assert other.folder != filled
    assert len(other) == 0


def rewrite(path, keys=None, sums=None, rows=None):
    """Replace what the header or the rows of a segment say."""
    with safe_open(path, framework="pt") as file:
        metadata, values = dict(file.metadata()), file.get_tensor("rows").clone()
    metadata |= {"keys": json.dumps(keys)} if keys is not None else {}
    metadata |= {"crc32": json.dumps(sums)} if sums is not None else {}
    path.write_bytes(save({"rows": values if rows is None else rows}, metadata))


@pytest.mark.parametrize("size", [0, 1, 8, 100, -1])
def test_a_torn_segment_is_nothing(filled, tmp_path, size):
    segment = only(filled, "segment-*")
    os.truncate(segment, size if size >= 0 else segment.stat().st_size - 1)
    store = FeatureStore.open(tmp_path, ABOUT, SHAPE)
    assert len(store) == 0
    store.put(keys_of(4), some_rows(4))
    assert torch.equal(FeatureStore.open(tmp_path, ABOUT, SHAPE).get(keys_of(4)), some_rows(4))


@pytest.mark.parametrize(
    "change",
    [
        {"keys": []},
        {"keys": None, "sums": [1]},
        {"keys": {"a": 1}},
        {"keys": 7},
        {"sums": ["x"] * 4},
        {"sums": [None] * 4},
        {"rows": torch.zeros(4, 4, 5).half()},
        {"rows": torch.zeros(4, 5, 4)},
        {"rows": torch.zeros(3, 5, 4).half()},
    ],
)
def test_a_header_that_does_not_fit_is_left_out(filled, tmp_path, change):
    rewrite(only(filled, "segment-*"), **change)
    assert len(FeatureStore.open(tmp_path, ABOUT, SHAPE)) == 0


def test_a_segment_is_a_regular_file(filled, tmp_path):
    segment = only(filled, "segment-*")
    segment.rename(filled / "elsewhere")
    os.mkfifo(segment)
    assert len(FeatureStore.open(tmp_path, ABOUT, SHAPE)) == 0


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_flipped_byte_of_a_row_is_found_and_healed(filled, tmp_path):
    segment = only(filled, "segment-*")
    flip(segment, segment.stat().st_size - 2 * 5 * 4 - 3)  # a byte of row 2
    store = FeatureStore.open(tmp_path, ABOUT, SHAPE)
    with pytest.raises(
        CacheError, match=r"1 of 4 rows, the first 'set/2\.jpg\|10\|20', are missing or damaged in the cache .* put"
    ):
        store.get(keys_of(4))
    assert keys_of(4)[2] not in store
    asked = []

    def compute(positions):
        asked.extend(positions)
        return some_rows(4)[positions]

    for _ in range(2):
        assert torch.equal(store.fetch(keys_of(4), compute), some_rows(4))
        assert asked == [2]
        store = FeatureStore.open(tmp_path, ABOUT, SHAPE)


def test_a_changed_key_gives_no_other_images_row(filled, tmp_path):
    keys = keys_of(4)
    rewrite(only(filled, "segment-*"), keys=[keys[0], keys[1], keys[3], "x"])
    store = FeatureStore.open(tmp_path, ABOUT, SHAPE)
    assert keys[2] not in store
    asked = []

    def compute(positions):
        asked.extend(positions)
        return some_rows(4)[3:]

    assert torch.equal(store.fetch([keys[3]], compute), some_rows(4)[3:])
    assert asked == [0]


def test_fetch_checks_every_row_once(filled, tmp_path, monkeypatch):
    checked, whole = [], feature_store._row_checksum
    monkeypatch.setattr(feature_store, "_row_checksum", lambda key, row: checked.append(key) or whole(key, row))
    FeatureStore.open(tmp_path, ABOUT, SHAPE).get(keys_of(4))
    assert checked == keys_of(4)


def test_fetch_computes_each_row_once_and_always_gives_what_is_stored(tmp_path):
    rows, calls = some_rows(3) / 3, []

    def compute(positions):
        calls.append(positions)
        return rows[positions]

    store = FeatureStore.open(tmp_path, ABOUT, SHAPE)
    first = store.fetch(keys_of(2), compute)
    second = store.fetch(keys_of(3), compute)
    assert calls == [[0, 1], [2]]
    assert torch.equal(first, rows[:2].half().float())
    assert torch.equal(second, rows.half().float())


def add_rows(cache, owner, count):
    store = FeatureStore.open(cache, ABOUT, SHAPE)
    for i, key in enumerate(keys_of(count, owner)):
        store.put([key], some_rows(1, seed=i))


def test_two_writers_at_once_both_survive(tmp_path):
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=add_rows, args=(tmp_path, owner, 50)) for owner in ("a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
        assert writer.exitcode == 0
    store = FeatureStore.open(tmp_path, ABOUT, SHAPE)
    assert len(store) == 100
    for i in range(50):
        assert torch.equal(store.get([f"{owner}/{i}.jpg|10|20" for owner in "ab"]), some_rows(1, i).expand(2, -1, -1))


def test_a_fork_does_not_write_into_its_parents_segment(tmp_path):
    store = FeatureStore.open(tmp_path, ABOUT, SHAPE)
    store.put(["before"], some_rows(1))
    child = multiprocessing.get_context("fork").Process(target=store.put, args=(["child"], some_rows(1, 1)))
    child.start()
    child.join(30)
    store.put(["parent"], some_rows(1, 2))
    again = FeatureStore.open(tmp_path, ABOUT, SHAPE)
    expected = torch.cat([some_rows(1, seed) for seed in range(3)])
    assert torch.equal(again.get(["before", "child", "parent"]), expected)


def test_killed_writer_leaves_only_right_rows(tmp_path):
    writer = multiprocessing.get_context("fork").Process(target=add_rows, args=(tmp_path, "a", 10**6))
    writer.start()
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob("*/segment-*"))) < 15 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join(30)
    store = FeatureStore.open(tmp_path, ABOUT, SHAPE)
    assert len(store) > 10
    for i in range(len(store)):
        assert torch.equal(store.get(keys_of(i + 1, "a")[-1:]), some_rows(1, i))


@pytest.mark.parametrize("value", [65505.0, -7e4, float("inf"), float("nan")])
def test_numbers_beyond_fp16_are_refused(filled, tmp_path, value):
    rows = some_rows(2, seed=5)
    rows[1, 2, 3] = value
    store = FeatureStore.open(tmp_path, ABOUT, SHAPE)
    with pytest.raises(CacheError, match=r"is above 65504 or not finite.*: run without the cache\.$"):
        store.put(["x", "y"], rows)
    assert len(store) == 4
    rows[1, 2, 3] = 65504.0
    store.put(["x", "y"], rows)
    assert store.get(["y"])[0, 2, 3] == 65504.0


def test_full_disk_is_one_sentence_and_costs_only_the_new_rows(tmp_path, monkeypatch):
    def full(*unused):
        raise OSError(28, "No space left on device")

    keys, rows = keys_of(6), some_rows(6)
    store = FeatureStore.open(tmp_path, ABOUT, SHAPE)
    store.put(keys[:2], rows[:2])
    with monkeypatch.context() as patched:
        patched.setattr(feature_store, "write_segment", full)
        with pytest.raises(
            CacheError, match=r"cannot be used \(No space left on device\): make room or .* stay valid\.$"
        ):
            store.put(keys[2:4], rows[2:4])
    assert len(store) == 2
    store.put(keys[4:], rows[4:])
    for one in (store, FeatureStore.open(tmp_path, ABOUT, SHAPE)):
        assert len(one) == 4
        assert torch.equal(one.get(keys[:2] + keys[4:]), rows[[0, 1, 4, 5]])


def test_the_system_refusing_to_write_is_the_same(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    store = FeatureStore.open(tmp_path, ABOUT, (100_000,))
    store.put(["a"], torch.ones(1, 100_000))
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, before[1]))
    try:
        with pytest.raises(CacheError, match="File too large"):
            store.put(["b"], torch.ones(1, 100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    store.put(["c"], torch.ones(1, 100_000))
    assert torch.equal(store.get(["a", "c"]), torch.ones(2, 100_000))
    assert "b" not in store
    assert len(list(store.folder.iterdir())) == 3


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match=r"cannot be used \(File exists\)") as caught:
        FeatureStore.open(tmp_path / "file", ABOUT, SHAPE)
    assert isinstance(caught.value, DearError)


def test_another_shape_is_refused(filled, tmp_path):
    with pytest.raises(CacheError, match=r"has rows of shape \(5, 4\), but rows of shape \(4, 5\) are asked for"):
        FeatureStore.open(tmp_path, ABOUT, (4, 5))
    with pytest.raises(CacheError, match=r"Expected 2 rows of shape \(5, 4\), but got \(2, 20\)"):
        FeatureStore.open(tmp_path, ABOUT, SHAPE).put(["a", "b"], torch.zeros(2, 20))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not a feature store: it is not valid JSON"),
        ('{"format": "dear-fea', "is not a feature store: it is not valid JSON"),
        ("[]", "its 'format' is not 'dear-features'"),
        ('{"format": "other", "format_version": 1, "row_shape": [5, 4]}', "its 'format' is not 'dear-features'"),
        ('{"format": "dear-features", "format_version": 2, "row_shape": [5, 4]}', "has format 2"),
        ('{"format": "dear-features", "format_version": 1, "row_shape": [5, 4]}', "is damaged: remove the folder"),
        (
            '{"format": "dear-features", "format_version": 1, "row_shape": [5, 4], "description": {}}',
            "describes other rows",
        ),
    ],
)
def test_a_record_that_does_not_fit_is_refused(filled, tmp_path, text, sentence):
    (filled / RECORD).write_text(text)
    with pytest.raises(CacheError, match=sentence):
        FeatureStore.open(tmp_path, ABOUT, SHAPE)


def test_the_key_tells_backbones_places_and_views_apart(tiny_clips, tiny_folders, tmp_path):
    clip = tiny_clips["plain"]
    keys = [
        store_description(clip, "image features", "evaluation"),
        store_description(clip, "vision state before layer 3", "evaluation"),
        store_description(clip, "image features", "training view 3"),
        store_description(tiny_clips["odd"], "image features", "evaluation"),
        store_description(
            dear.load_clip(f"local-dir:{tiny_folders['plain']}", "random", seed=8), "image features", "evaluation"
        ),
        store_description(
            dear.load_clip(f"local-dir:{tiny_folders['plain']}", "random", seed=7, precision="bf16"),
            "image features",
            "evaluation",
        ),
    ]
    folders = {FeatureStore.open(tmp_path, key, (24,)).folder for key in keys}
    assert len(folders) == len(keys)
    assert FeatureStore.open(tmp_path, store_description(clip, "image features", "evaluation"), (24,)).folder in folders


@pytest.mark.parametrize("name", dear.list_methods())
def test_a_methods_quantities_go_through_the_stores(clip, images, tmp_path, name):
    model = build(name, clip, ["cat", "dog"])
    with torch.no_grad():
        states = model.states(images)
        stores = Stores(tmp_path, model, model.names(), "evaluation")
        assert "a" not in stores
        stores.put(["a", "b", "c"], states)
        assert "a" in stores
        rows = [stores.fetch(key, lambda: pytest.fail("computed again")) for key in "abc"]
        stored = {name: torch.cat([row[name] for row in rows]) for name in states}
        rounded = {name: value.half().float() for name, value in states.items()}
        assert torch.equal(model(given=stored).logits, model(given=rounded).logits)
        assert torch.allclose(model(given=stored).logits, model(given=states).logits, atol=0.1)


def test_a_companions_quantity_is_stored_by_its_content(clip, images, tmp_path):
    model, other = (build("promptkd", clip, ["cat", "dog"]) for _ in range(2))
    teacher = build("coop", clip, ["cat", "dog"])
    states = model.states(images, training=True)
    stores = Stores(tmp_path, model, ["teacher:image"], "evaluation")
    stores.put(["a", "b", "c"], {"teacher:image": states["teacher:image"]})
    assert "a" in Stores(tmp_path, other, ["teacher:image"], "evaluation")
    other.companions["teacher"] = teacher
    assert "a" not in Stores(tmp_path, other, ["teacher:image"], "evaluation")
