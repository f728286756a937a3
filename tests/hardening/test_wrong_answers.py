"""Wrong answers that nobody would notice, crashes, and what should have been refused before it was begun."""

import csv
import io
import json
import os
import shutil
from dataclasses import replace

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import dear
from cells import cell as made_up_cell
from dear.cli import app
from dear.data.images import folder_images
from dear.data.open import open_dataset
from dear.engine.feature_cache import row_key
from dear.engine.run import run_job
from dear.engine.settings import TrainSettings
from dear.errors import ConfigError, DataError, DearError, TrainingError
from dear.evaluation.cells import make_cells
from dear.evaluation.evaluate import evaluate_items
from dear.evaluation.grid import run_grid
from dear.evaluation.tables import to_csv
from dear.evaluation.test_data import data_of_run
from dear.retrieval.index import read_index
from dear.retrieval.update import update_index
from dear.roles.moments import collect_moments
from helpers import make_photos
from small_runs import grid_on, job_on, small_grid
from toys import Toy


@pytest.mark.covers("W2")
def test_a_discovery_is_not_resumed_on_replaced_images(clip, photos, tmp_path):
    collect_moments(clip, folder_images(photos), first_layer=5, checkpoint=tmp_path)
    path = photos / "ant" / "0.png"
    Image.new("RGB", (36, 40), "white").save(path)
    with pytest.raises(DearError, match="belongs to other images"):
        collect_moments(clip, folder_images(photos), first_layer=5, checkpoint=tmp_path)


@pytest.mark.covers("W2")
def test_a_cell_is_not_reused_for_replaced_test_images(photos, tiny_folders, tmp_path):
    first = grid_on(photos, tiny_folders, tmp_path / "out")[0]
    tested = next(path for path in sorted(photos.rglob("*.png")) if path.name == "3.png")
    before = tested.stat()
    data = bytearray(tested.read_bytes())
    data[-1] ^= 1  # as large, and as old
    tested.write_bytes(bytes(data))
    os.utime(tested, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert grid_on(photos, tiny_folders, tmp_path / "out", resume=True)[0].fingerprint != first.fingerprint


@pytest.mark.covers("W4")
def test_nothing_infinite_is_trained(clip, photos, tmp_path):
    wild = replace(job_on(photos), train=TrainSettings(epochs=3, batch_size=2, lr=1e30, warmup_epochs=0))
    with pytest.raises(TrainingError, match=r"not finite|infinite"):
        run_job(wild, clip, tmp_path / "run")
    assert not (tmp_path / "run" / "adapter_config.json").exists()


@pytest.mark.covers("W1")
def test_two_folders_of_one_name_share_no_rows(model, tmp_path):
    places = [tmp_path / part / "photos" for part in ("one", "two")]
    for place, colors in zip(places, (("red", "blue"), ("blue", "red")), strict=True):
        for name, color in zip(("a", "b"), colors, strict=True):
            (place / name).mkdir(parents=True)
            Image.new("RGB", (36, 40), color).save(place / name / "0.bmp")  # all of one size
            os.utime(place / name / "0.bmp", (1, 1))
    one, two = map(open_dataset, places)
    assert one.name == two.name
    assert row_key(one, one.train[0]) != row_key(two, two.train[0])
    view, cache = model.for_classes(one.class_names), tmp_path / "cache"
    for data in (one, two):
        without = evaluate_items(view, data, data.train).picks
        assert evaluate_items(view, data, data.train, cache=cache).picks.tolist() == without.tolist()


@pytest.mark.covers("W1", "W2")
def test_an_image_replaced_in_place_is_another_image(tmp_path):
    photos = make_photos(tmp_path / "photos", ["a", "b"], 1)

    def key_of(color):
        Image.new("RGB", (36, 40), color).save(photos / "a" / "0.png", compress_level=0)
        os.utime(photos / "a" / "0.png", (1, 1))
        data = open_dataset(photos)
        return row_key(data, data.train[0]), folder_images(photos).sha256

    assert not set(key_of("red")) & set(key_of("blue"))
    assert key_of("red") == key_of("red")


@pytest.mark.covers("W2")
def test_a_run_is_not_resumed_on_replaced_images(clip, photos, tmp_path):
    run_job(job_on(photos), clip, tmp_path / "run")
    item = job_on(photos).items[0]
    before = (photos / item.id).stat()
    Image.new("RGB", (36, 40), "white").save(photos / item.id)
    os.utime(photos / item.id, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ConfigError, match="other training images under the same names"):
        run_job(job_on(photos), clip, tmp_path / "run", if_exists="resume")


@pytest.mark.covers("W2")
def test_copied_images_are_the_same_images(clip, photos, tmp_path):
    trained, _ = run_job(job_on(photos), clip, tmp_path / "run")
    for path in photos.rglob("*.png"):
        os.utime(path)
    resumed, _ = run_job(job_on(photos), clip, tmp_path / "run", if_exists="resume")
    before = trained.trainable()
    assert all(torch.equal(value, before[name]) for name, value in resumed.trainable().items())


@pytest.mark.covers("W6")
def test_learned_images_are_not_tested_under_another_name(clip, photos, tmp_path):
    job = job_on(photos)
    run_job(job, clip, tmp_path / "run")
    elsewhere = shutil.copytree(photos, tmp_path / "elsewhere" / "copy")
    for path in sorted(elsewhere.rglob("*.png")):
        path.rename(path.with_name(f"renamed-{path.name}"))
    data = data_of_run(tmp_path / "run", str(elsewhere))
    assert len(data.items()) == 16 - len(job.items)


@pytest.mark.covers("W8")
def test_data_that_vanishes_stops_the_training(clip, tmp_path):
    toy = Toy()

    def vanish(metrics):
        if metrics["step"] == 3:
            toy.bad = {item.id for item in toy.dataset.train}

    with pytest.raises(DataError, match="None of the 9 training images could be read in epoch 2"):
        run_job(toy.job(), clip, tmp_path / "run", on_step=vanish, workers=0)
    assert not (tmp_path / "run" / "adapter_config.json").exists()


@pytest.mark.covers("W9")
def test_flipped_bytes_of_an_index_are_seen(model, photos, tmp_path):
    update_index(model, photos, tmp_path / "index")
    for path in ((tmp_path / "index" / "index.json"), *(tmp_path / "index").glob("features-*")):
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[-20] ^= 1
        path.write_bytes(bytes(flipped))
        with pytest.raises(DataError):
            read_index(tmp_path / "index")
        path.write_bytes(whole)
    read_index(tmp_path / "index")


@pytest.mark.covers("W9")
def test_flipped_bytes_of_moments_are_seen(clip, photos, tmp_path):
    collect_moments(clip, folder_images(photos), first_layer=5, checkpoint=tmp_path)
    path = tmp_path / "moments.safetensors"
    flipped = bytearray(path.read_bytes())
    flipped[-20] ^= 1
    path.write_bytes(bytes(flipped))
    with pytest.raises(DearError, match="is damaged"):
        collect_moments(clip, folder_images(photos), first_layer=5, checkpoint=tmp_path)


@pytest.mark.covers("W11")
def test_classes_in_another_order_are_not_scored(model, photos):
    dataset = open_dataset(photos)
    wrong = model.for_classes(dataset.class_names[::-1])
    with pytest.raises(ConfigError, match="differ from the all classes of photos or from their order"):
        evaluate_items(wrong, dataset, dataset.train)


@pytest.mark.covers("W11")
@pytest.mark.parametrize("name", ["a <END_OF_TEXT> b", "<start_of_text>"])
def test_special_tokens_are_no_class_names(model, name):
    with pytest.raises(DearError, match="must be words"):
        model.for_classes(["cat", name])


@pytest.mark.covers("W11", "C3")
@pytest.mark.parametrize("value", [True, [1], {"a": 1}, "x"])
def test_settings_of_odd_types_are_refused_in_one_sentence(clip, value):
    with pytest.raises(ConfigError, match="threshold"):
        dear.DeAR(clip, mask="all_mixed", threshold=value)


@pytest.mark.covers("C3")
def test_a_grid_takes_settings_of_any_type_to_the_check(photos):
    cells = make_cells(
        "few-shot", [str(photos)], methods=["dear"], seeds=[1], shots=[1], choices={"beta": [[1], [1], {"a": 2}]}
    )
    assert [cell.variant for cell in cells] == ["beta=[1]", 'beta={"a": 2}']


@pytest.mark.covers("C6")
@pytest.mark.parametrize("words", [("--jobs", "99999999999"), ("--cached-views", "99999999999"), ("--workers", "9999")])
def test_absurd_numbers_are_refused_by_the_command(words, tmp_path):
    result = CliRunner().invoke(app, ["bench", "few-shot", "--out", str(tmp_path / "out"), *words])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith(f"{words[0]} is {words[1]}: give a whole number from ")
    assert not (tmp_path / "out").exists()


@pytest.mark.covers("C6")
def test_absurd_amounts_are_refused(clip):
    for changes in ({"text_tokens": 10**9}, {"tokens_per_attribute": 10**9}, {"projection_rank": 10**9}):
        with pytest.raises(ConfigError, match=next(iter(changes))):
            dear.DeAR(clip, mask="all_mixed", **changes)
    with pytest.raises(DearError, match="cannot be used on this machine"):
        dear.load_clip("world", device="meta")


@pytest.mark.covers("W11")
@pytest.mark.parametrize(
    "words",
    [("--roles", ""), ("--template="), ("--out", " "), ("--cache", ""), ("--data-root", "")],
    ids=lambda words: "".join(words).strip("-= "),
)
def test_an_empty_option_is_no_default(words, tmp_path):
    asked = ["train", "world-blooms", "--out", str(tmp_path / "run"), *([words] if isinstance(words, str) else words)]
    result = CliRunner().invoke(app, asked)
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).endswith("is empty: give a value, or leave it out.")


@pytest.mark.covers("U3")
@pytest.mark.parametrize(
    ("name", "written"),
    [("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"), ("\r=1+2", "'\r=1+2"), ("\n@x", "'\n@x"), ("a\r=1+2", "a\r=1+2")],
)
def test_a_name_is_no_formula(name, written):
    """Python before 3.11.9 did not quote a carriage return, so it split the row, and its rest could be a formula."""
    (row,) = csv.DictReader(io.StringIO(to_csv([made_up_cell(data=name)]), newline=""))
    assert row["data"] == written
    assert float(row["base"]) == 80.0


@pytest.mark.covers("U4")
def test_a_run_inside_the_data_folder_is_refused(clip, photos):
    with pytest.raises(ConfigError, match=r"is inside the data folder .* and would become a class"):
        run_job(job_on(photos), clip, photos / "run")
    assert not (photos / "run").exists()


@pytest.mark.covers("U4")
def test_neither_is_a_grid_nor_a_cache(clip, photos, tiny_folders, tmp_path):
    with pytest.raises(ConfigError, match="would become a class"):
        grid_on(photos, tiny_folders, photos / "grid")
    with pytest.raises(ConfigError, match="would become a class"):
        run_job(job_on(photos), clip, tmp_path / "run", cache=photos / "cache")
    assert sorted(path.name for path in photos.iterdir()) == ["ant", "bee", "cow", "dog"]


@pytest.mark.covers("U5")
def test_so_is_a_class_that_a_grid_will_test(photos, tiny_folders, tmp_path):
    other = make_photos(tmp_path / "other", ["a", ("z " * 120).strip()], 2)
    options = small_grid(tmp_path / "out", tiny_folders)
    cells = make_cells("domain", [str(other)], methods=["zero_shot"], seeds=[1], shots=[1], source=str(photos))
    with pytest.raises(DearError, match="do not fit the text tower"):
        run_grid(cells, options)
    assert not (tmp_path / "out").exists()


@pytest.mark.covers("U5")
def test_a_novel_class_that_is_no_prompt_is_found_before_training(clip, photos, tmp_path):
    (photos / "dog").rename(photos / ("z " * 120).strip())
    with pytest.raises(DearError, match="do not fit the text tower"):
        run_job(job_on(photos, half="base"), clip, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.covers("W5")
def test_other_threads_do_not_see_this_one_s_switch(model, clip):
    from concurrent.futures import ThreadPoolExecutor

    images = torch.randn(1, 3, clip.geometry.image_size, clip.geometry.image_size)
    with torch.inference_mode():
        mine = model(images).logits
    with model.disabled(), ThreadPoolExecutor(1) as pool:

        def elsewhere():
            with torch.inference_mode():
                return model(images).logits

        assert torch.equal(pool.submit(elsewhere).result(), mine)


@pytest.mark.covers("C2")
def test_a_name_that_is_no_text_is_trained_tested_found_and_reported(clip, photos, tmp_path):
    shutil.copy(photos / "ant" / "0.png", os.fsencode(photos / "ant") + b"/\xff\x1b[31m.png")
    train = TrainSettings(epochs=1, batch_size=8)
    how = {"shots": 5, "train": train, "mask": "all_mixed", "cached_views": 1, "cache": tmp_path / "cache"}
    model = dear.fit(photos, clip, out=tmp_path / "run", **how)
    dear.fit(photos, clip, out=tmp_path / "run", resume=True, **how)
    assert dear.evaluate(model, photos).scores.images == 17
    assert len(update_index(model, photos, tmp_path / "index")[0].images) == 17
    assert update_index(model, photos, tmp_path / "index")[1] == 0
    assert "\x1b" not in (tmp_path / "run" / "shots.json").read_text()


@pytest.mark.covers("C2", "U1")
@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_command_prints_no_escapes(clip, photos, tmp_path, words):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[31m.png")
    shutil.copy(photos / "ant" / "0.png", name)
    run_job(job_on(photos), clip, tmp_path / "run")
    result = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), name, *words])
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert (json.loads(result.output)["image"] == name) if words else ("\N{REPLACEMENT CHARACTER}" in result.output)


@pytest.mark.covers("C4")
def test_a_list_of_classes_may_be_long(clip, photos, tmp_path):
    run_job(job_on(photos), clip, tmp_path / "run")
    names = [f"class number {number}" for number in range(60)]
    asked = ["predict", str(tmp_path / "run"), str(photos / "ant" / "0.png"), "--json", "-k", "60", "--classes"]
    result = CliRunner().invoke(app, [*asked, ",".join(names)])
    assert result.exit_code == 0, result.output
    assert sorted(name for name, _ in json.loads(result.output)["top"]) == sorted(names)
