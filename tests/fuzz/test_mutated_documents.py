"""Every JSON, YAML and text document that DeAR reads, mutated: taken or refused in one sentence, without a hang."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

import dear
from dear.backbone.origin import _license
from dear.data.catalog import _ADDED, add_catalog
from dear.data.descriptions import read_descriptions
from dear.data.names import read_names
from dear.data.open import open_dataset
from dear.data.readers import read_aircraft, read_class_names, read_list, read_split_file
from dear.data.shots_file import listed_shots
from dear.data.splits import Shots
from dear.engine.run_folder import read_metrics, read_run
from dear.errors import DearError
from dear.evaluation.choice import read_choice
from dear.evaluation.choice_words import notes, section, summary, table
from dear.evaluation.results import CellResult
from dear.evaluation.tables import to_csv, to_markdown, to_text
from dear.evaluation.test_data import data_of_run
from dear.model.calibration import Calibration
from dear.model.sharing import published_card, shareable
from dear.options.parts import Train
from dear.options.reading import as_yaml, read
from dear.reports.compare_data import make_comparison
from dear.reports.compare_page import page
from dear.reports.role_figure import role_figure
from dear.reports.role_page import role_page
from dear.retrieval.index import read_index
from dear.retrieval.search import find
from dear.roles.compare import compare_maps
from dear.roles.grid import role_grid
from dear.roles.rolemap import RoleMap
from dear.storage.locks import check_ours, locked
from dear.workflows.auto_search import StoredAnswers
from dear.workflows.export import ClassFeatures, ExportedModel, _is_export
from dear.workflows.push import _results
from dear.workflows.report_data import _curves
from fuzzing import fuzz_bytes, fuzz_json, small_choice
from tiny_foreign import WORDS, clip_model, write_images, write_words

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["few", "many"]),
]


def test_manifests(place, many):
    path, image = place.run / "adapter_config.json", place.photos / "ant" / "0.png"
    numbers = dict.fromkeys(("temperature", "reject_below", "label_scale", "label_bias"), 0.5)
    kinds = {str: "photos", int: 30, float: 0.5}
    facts = {name: kinds.get(one.annotation, 0.5) for name, one in Calibration.model_fields.items()}
    fitted = Calibration(**{**facts, **numbers})
    model = dear.load(place.run, place.clip)
    model.calibration = fitted
    model.save_pretrained(place.run, overwrite=True)

    def use():
        with suppress(DearError):  # a tiny CLIP in a folder cannot be published
            published_card(shareable(place.run), "some/body", [])
        dear.load(place.run, place.clip).predict([image])

    fuzz_json(path, use, many=many, examples=70)


def test_records_of_runs(place, many):
    def use():
        read_run(place.run)
        data_of_run(place.run, place.photos).halves()
        check_ours(place.run, "run", resume=True, overwrite=False)

    fuzz_json(place.run / "run.json", use, many=many)


def test_lists_of_shots(place, many):
    data = open_dataset(place.photos)

    def use():
        with suppress(DearError):
            data_of_run(place.run, place.photos).items()
        listed_shots(data, place.run / "shots.json", shots=2)

    fuzz_json(place.run / "shots.json", use, many=many, seal=Shots.seal)


def test_logs(place, many):
    fuzz_bytes(place.run / "metrics.jsonl", lambda: _curves(read_metrics(place.run)), many=many)


def test_role_maps(place, many):
    path, shown = place.run / "roles.json", RoleMap.load(place.run / "roles.json")

    def use():
        roles = RoleMap.load(path)
        role_grid(roles)
        role_page(roles, title="x")
        role_figure(roles).svg()
        compare_maps(roles, shown)
        dear.DeAR(place.clip, roles)

    fuzz_json(path, use, many=many)


def test_manifests_of_indexes(place, many):
    thing = place.model.for_classes(["thing"])
    fuzz_json(
        place.root / "index" / "index.json", lambda: find(thing, read_index(place.root / "index"), "x"), many=many
    )


def test_cells(place, many):
    other = CellResult.read(place.root / "cell.json").model_copy(update={"method": "zero_shot"})

    def use():
        cells = [CellResult.read(place.root / "cell.json"), other]
        to_csv(cells), to_markdown(cells), to_text(cells)
        page(make_comparison(cells, {}))

    fuzz_json(place.root / "cell.json", use, many=many)


def test_folders_and_locks(place, many):
    fuzz_json(
        place.run / "dear-folder.json", lambda: check_ours(place.run, "run", resume=True, overwrite=False), many=many
    )

    def lock():
        with locked(place.run, "run"):
            pass

    lock()
    fuzz_bytes(place.run / ".dear.lock", lock, many=many, examples=20)


def test_choices(tmp_path, many, monkeypatch):
    monkeypatch.setattr("dear.evaluation.choice_ranking.RESAMPLES", 20)
    monkeypatch.setattr("dear.evaluation.choice_ranking.FEWEST_RESAMPLES", 20)
    small_choice().write(tmp_path / "auto.json")

    def use():
        found = read_choice(tmp_path)
        summary(found), table(found), notes(found), section(found)

    fuzz_json(tmp_path / "auto.json", use, many=many, examples=100)
    path = tmp_path / "answers.json"
    StoredAnswers(mark="x", answers=[1, 2], bytes=3, seconds=1.0).write(path)
    fuzz_json(path, lambda: StoredAnswers.read(path), many=many, examples=20)


def test_exports(tmp_path, many):
    size = {"height": 4, "width": 4, "resize": "shortest", "interpolation": "bicubic", "fill": 0}
    ExportedModel(
        method="coop", backbone="x", adapter="0", classes=["a", "b"], bias=0.0, input="images", opset=20,
        preprocessing={**size, "mean": [0.5] * 3, "std": [0.5] * 3}, outputs={"classifier.onnx": "logits"},
        no_image_encoder="", versions={}, files={"classifier.onnx": {"bytes": 1, "sha256": "0", "precision": "fp32",
        "difference": 0.0}},
    ).write(tmp_path / "model.json")  # fmt: skip
    ClassFeatures(adapter="0", classes=["a"], features=[[1.0, 2.0]]).write(tmp_path / "class_features.json")

    def use():
        _is_export(tmp_path)
        ExportedModel.read(tmp_path / "model.json")

    fuzz_json(tmp_path / "model.json", use, many=many, examples=30)
    features = tmp_path / "class_features.json"
    fuzz_json(features, lambda: ClassFeatures.read(features), many=many, examples=30)


def test_configurations_of_backbones(place, many):
    path = place.root / "clip" / "open_clip_config.json"
    image = dear.data.images.open_image(place.photos / "ant" / "0.png")

    def use():
        clip = dear.load_clip(f"local-dir:{path.parent}", "random")
        assert clip.preprocess_eval(image).isfinite().all()

    fuzz_json(path, use, many=many, examples=40)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign")
    clip_model("gelu", 2, kind="MetaClip2", vocab=len(WORDS)).save_pretrained(folder)
    write_words(folder)
    write_images(folder)
    return folder


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_folders_of_transformers(foreign, name, many):
    fuzz_json(foreign / name, lambda: dear.load_clip(f"local-dir:{foreign}"), many=many, examples=10)


def test_lists_and_splits(tmp_path, many):
    rows, split = [["a.png", "ant"], ["b.png", "bee"]], [["a.png", 0, "ant"], ["b.png", 1, "bee"]]
    dicts = [{"path": path, "label": label} for path, label in rows]
    for name, content, use in (
        ("list.json", rows, read_list),
        ("dicts.json", dicts, read_list),
        ("split.json", {"train": split, "val": split, "test": split}, read_split_file),
        ("names.json", {"n01": "tench", "n02": "goldfish"}, read_names),
        (
            "descriptions.json",
            {"cat": ["A cat purrs."], "dog": ["A dog barks."]},
            read_descriptions,
        ),
    ):
        (tmp_path / name).write_text(json.dumps(content))
        fuzz_json(tmp_path / name, lambda path=tmp_path / name, use=use: use(path), many=many)
    for name, text, use in (
        ("list.csv", 'path,label\na.png,ant\nb.png,"bee, honey"\n', read_list),
        ("classnames.txt", "n01 tench\nn02 goldfish\n", read_class_names),
        ("names.txt", "n01 tench\nn02,goldfish\n", read_names),
    ):
        (tmp_path / name).write_text(text)
        fuzz_bytes(tmp_path / name, lambda path=tmp_path / name, use=use: use(path), many=many)


def test_aircraft(tmp_path, many):
    (tmp_path / "variants.txt").write_text("707\nA380\n")
    for split in ("train", "val", "test"):
        (tmp_path / f"images_variant_{split}.txt").write_text("0001 707\n0002 A380\n")
    for name in ("variants.txt", "images_variant_val.txt"):
        fuzz_bytes(tmp_path / name, lambda: read_aircraft(tmp_path), many=many, examples=30)


def test_catalogues(place, many):
    path = place.root / "catalog.json"
    path.write_text(
        json.dumps([{"name": "mine", "folder": "photos", "layout": "class folders", "template": "a photo of a {}."}])
    )

    def use():
        try:
            for name in add_catalog(path):
                open_dataset(name)
        finally:
            _ADDED.clear()

    fuzz_json(path, use, many=many)


def test_config_files(tmp_path, many):
    path = tmp_path / "config.yaml"
    path.write_text("data: photos\nmethod: dear\nlr: 1e-3\nshots: 4\nset:\n  beta: 0.5\n  mask: all_mixed\n")
    fuzz_bytes(path, lambda: as_yaml(read(Train, {"out": "x"}, path)), many=many, examples=150)


def test_cards(place, many):
    path = place.run / "README.md"
    assert path.read_text().startswith("---")

    def use():
        _license(path)
        shared = shareable_of(place)
        published_card(shared._replace(card=path.read_bytes().decode("utf-8", "replace")), "some/body", [])

    fuzz_bytes(path, use, many=many)


def shareable_of(place):
    """A published form of the run, as if its CLIP had a name."""
    if not hasattr(place, "shared"):
        from helpers import rewrite

        manifest = place.run / "adapter_config.json"
        backbone = json.loads(manifest.read_text())["backbone"]
        rewrite(manifest, backbone={**backbone, "name": "ViT-B-32", "pretrained": "openai"})
        place.shared = shareable(place.run)
    return place.shared


def test_scores_for_a_card(place, many):
    path, manifest = place.run / "eval.json", shareable_of(place).manifest
    sha = manifest.files["adapter_model.safetensors"].sha256
    scored = json.loads((Path(__file__).parents[1] / "golden" / "v0_2" / "eval.json").read_text())
    adapted = scored.get("adapted", scored)
    path.write_text(json.dumps({"adapted": adapted, "adapter_sha256": sha}))
    fuzz_json(path, lambda: _results(place.run, None, manifest), many=many)
