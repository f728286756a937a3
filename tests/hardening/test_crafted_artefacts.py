"""Artefacts that somebody made on purpose: one sentence each, nothing read outside, no hang and no large allocation."""

import gzip
import io
import json
import os
import sys

import pytest
from PIL import Image
from safetensors.torch import save_file

import dear
from dear.backbone.foreign_inputs import FileTokenizer
from dear.backbone.load import load_clip
from dear.backbone.origin import _license
from dear.data.images import folder_images, open_image
from dear.data.open import open_dataset
from dear.data.packed import open_shard
from dear.errors import ArtefactError, BackboneError, ConfigError, DataError, ImageError, RoleMapError
from dear.evaluation.choice import read_choice
from dear.model.artefact import read_manifest
from dear.model.load import load, make_method
from dear.model.sharing import Shared, published_card, shareable
from dear.options.parts import Train
from dear.options.reading import read
from dear.reports.role_figure import role_figure
from dear.roles.grid import role_grid
from dear.roles.rolemap import HeadRole, Provenance, Role, RoleMap, Stability
from dear.storage.files import sha256, write_atomic
from dear.storage.user_cache import size_of
from fuzzing import small_choice
from helpers import TINY_CONFIGS, make_photos, rewrite

MERGE_BOMB = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [*a{n - 1} , *a{n - 1} , *a{n - 1} , *a{n - 1} ]}}\n" for n in range(1, 16)
)
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(9)
)


@pytest.fixture
def adapter(model, tmp_path):
    return model.save_pretrained(tmp_path / "adapter")


def add_file(folder, name, data):
    """Put a file into an adapter, and let the manifest vouch for it."""
    (folder / name).write_bytes(data)
    files = json.loads((folder / "adapter_config.json").read_text())["files"]
    rewrite(folder / "adapter_config.json", files={**files, name: {"bytes": len(data), "sha256": sha256(data)}})


@pytest.mark.parametrize("name", ["roles.json", "extra.txt"])
def test_a_text_of_an_adapter_that_is_not_utf8(adapter, model, name):
    add_file(adapter, name, b"\xff\xfe\0")
    with pytest.raises(ArtefactError, match="has a file that is not text in UTF-8"):
        load(adapter, model.clip)


@pytest.mark.parametrize(
    "data", [b"{", b"\xff", b"[" * 5000 + b"]" * 5000, b"[" * 900 + b"]" * 900, b'{"a": 1e999, "b": "/x/y"}']
)
def test_a_json_file_of_an_adapter_that_cannot_be_published(adapter, data):
    manifest = adapter / "adapter_config.json"
    backbone = json.loads(manifest.read_text())["backbone"]
    rewrite(manifest, backbone={**backbone, "name": "ViT-B-32", "pretrained": "openai"})
    add_file(adapter, "extra.json", data)
    with pytest.raises(ArtefactError, match=r"extra\.json (is not JSON|cannot be published)"):
        shareable(adapter)


def test_saving_beside_a_file_of_a_terabyte(model, tmp_path):
    with (tmp_path / "roles.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ArtefactError, match="already exists with other content"):
        model.save_pretrained(tmp_path)


def test_a_link_to_itself_is_one_sentence(tmp_path, dear_):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OSError, match="loop"):
        write_atomic(tmp_path / "loop", b"x")
    code, _, said = dear_("train", "world-blooms", "--out", tmp_path / "loop")
    assert (code, said.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS + "lr: *j\n",
        MERGE_BOMB,
        "lr: &a [*a ]",
        "shots: 0x" + "f" * 6000,
        "lr: " + "1:" * 300 + "1.5",
        "[" * 20_000,
    ],
    ids=["laughs", "merges", "itself", "hexadecimal", "sexagesimal", "deep"],
)
def test_config_files_that_unfold(tmp_path, text):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match="is not valid YAML"):
        read(Train, {"data": "x", "out": "y"}, tmp_path / "c.yaml")


def test_config_files_without_end(tmp_path):
    (tmp_path / "c.yaml").write_text("# x\n" * 100_000)
    with pytest.raises(ConfigError, match="it has 400,000 bytes, more than"):
        read(Train, {"data": "x", "out": "y"}, tmp_path / "c.yaml")
    (tmp_path / "c.yaml").write_text("".join(f"k{n}: 1\n" for n in range(2000)))
    with pytest.raises(ConfigError, match="There are 1990 more problems"):
        read(Train, {"data": "x", "out": "y"}, tmp_path / "c.yaml")


@pytest.mark.parametrize("top", [MERGE_BOMB, LAUGHS], ids=["merges", "laughs"])
def test_the_page_of_a_repository_cannot_unfold(tmp_path, top, adapter):
    (tmp_path / "README.md").write_text(f"---\n{top}license: mit\n---\nx")
    assert _license(tmp_path / "README.md") is None
    with pytest.raises(ArtefactError, match=r"The metadata at the top of README\.md cannot be read"):
        published_card(Shared(read_manifest(adapter), {}, f"---\n{top}\n---\nx", {}), "some/body", [])


@pytest.mark.parametrize("text", ["9" * 400 + "GB", "9" * 5000, "1e5", "-1", "nan"])
def test_sizes_that_are_not_sizes(text):
    with pytest.raises(ConfigError, match="is not a size") as error:
        size_of(text)
    assert len(str(error.value)) < 120


def backbone_folder(folder, **changes):
    config = json.loads(json.dumps(TINY_CONFIGS["shallow"]))
    for name, value in changes.items():
        if name in config:
            config[name] |= value
        elif name == "multimodal_cfg":
            config[name] = value
    images = {"preprocess_cfg": changes["preprocess_cfg"]} if "preprocess_cfg" in changes else {}
    folder.mkdir(exist_ok=True)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, **images}))
    return f"local-dir:{folder}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"vision_cfg": {"layers": 100_000}},
            "sets 'layers' in its vision_cfg to 100000, but a CLIP has at most 1,000",
        ),
        ({"text_cfg": {"context_length": 100_000}}, "'context_length' in its text_cfg to 100000"),
        ({"vision_cfg": {"mlp_ratio": 1e6}}, "'mlp_ratio' in its vision_cfg"),
        (
            {"vision_cfg": {"image_size": 10_000}},
            "'image_size' in its vision_cfg to 10000, but a CLIP has at most 2,000",
        ),
        ({"vision_cfg": {"image_size": 2_000, "patch_size": 1}}, "cuts 2000 pixels into patches of 1"),
        ({"vision_cfg": {"image_size": [900, 900], "patch_size": [1, 1]}}, "cuts 900 pixels into patches of 1"),
        (
            {"vision_cfg": {"pos_embed_type": "sin_cos_2d", "width": 900_000, "image_size": 32}},
            "cuts 32 pixels into patches of 8",
        ),
        ({"multimodal_cfg": {"context_length": 100_000}}, "'context_length' in its multimodal_cfg to 100000"),
        ({"multimodal_cfg": {"layers": 1_000_000}}, "'layers' in its multimodal_cfg to 1000000"),
        ({"multimodal_cfg": {"hf_model_name": "/etc"}}, "paths that a configuration names are never opened"),
        ({"multimodal_cfg": {"trust_remote_code": True}}, "sets 'trust_remote_code' in its multimodal_cfg"),
        ({"multimodal_cfg": [1]}, "The multimodal_cfg of .* is not a mapping"),
        ({"vision_cfg": {"width": 900_000, "head_width": 60}}, "parameters, more than can be checked"),
        ({"preprocess_cfg": {"std": [0, 1, 1]}}, r"The preprocess_cfg of .* std: must be positive|std"),
        ({"preprocess_cfg": {"mean": ["a"]}}, "The preprocess_cfg of"),
        ({"preprocess_cfg": {"mean": ["0.5", "0.5", "0.5"]}}, "The preprocess_cfg of"),
        ({"preprocess_cfg": {"fill_color": "0"}}, "The preprocess_cfg of"),
        ({"preprocess_cfg": {"interpolation": "x"}}, "The preprocess_cfg of"),
        ({"preprocess_cfg": [1]}, "The preprocess_cfg of"),
        ({"text_cfg": {"hf_model_name": "/etc"}}, "paths that a configuration names are never opened"),
        ({"text_cfg": {"hf_tokenizer_name": "../tokenizer"}}, "paths that a configuration names are never opened"),
    ],
    ids=str,
)
def test_configurations_that_ask_for_too_much(tmp_path, changes, said):
    with pytest.raises(BackboneError, match=said):
        load_clip(backbone_folder(tmp_path / "clip", **changes), "random")


def test_a_folder_of_the_working_directory_is_not_a_model_of_the_hub(tmp_path, monkeypatch):
    (tmp_path / "bert").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BackboneError, match="or is a path here"):
        load_clip(backbone_folder(tmp_path / "clip", text_cfg={"hf_model_name": "bert"}), "random")


def test_a_configuration_that_is_larger_than_its_weights(tmp_path, tiny_clips):
    name = backbone_folder(tmp_path / "clip", vision_cfg={"width": 6000, "head_width": 6, "layers": 1})
    save_file({"x": tiny_clips["plain"].model.logit_scale.detach()[None]}, tmp_path / "clip" / "model.safetensors")
    with pytest.raises(BackboneError, match=r"describes [\d,]+ parameters, but .* has only 1"):
        load_clip(name)


def test_merges_that_unpack_to_gigabytes(tmp_path):
    name = backbone_folder(tmp_path / "clip")
    (tmp_path / "clip" / "bpe_merges.txt.gz").write_bytes(gzip.compress(bytes(100 << 20), 1))
    with pytest.raises(BackboneError, match="has more than 64 MB when it is unpacked"):
        load_clip(name, "random")
    (tmp_path / "clip" / "bpe_merges.txt.gz").write_bytes(b"garbage")
    with pytest.raises(BackboneError, match=r"bpe_merges.txt.gz cannot be read"):
        load_clip(name, "random")


def heads_of(layers, heads):
    return tuple(HeadRole(layer=n + 1, head=m, role=Role.MIXED) for n in range(layers) for m in range(heads))


def test_maps_of_a_million_heads(tmp_path):
    head = '{"layer": %d, "head": %d, "role": "mixed"}'
    listed = ", ".join(head % (1 + n // 1000, n % 1000) for n in range(200_000))
    top = '{"format": "dear-roles", "format_version": 1, "provenance": {"source": "x"}, "heads": ['
    (tmp_path / "roles.json").write_text(f"{top}{listed}]}}")
    with pytest.raises(RoleMapError, match="at most 100000 items"):
        RoleMap.load(tmp_path / "roles.json")
    for entry in ('{"layer": 100000, "head": 0, "role": "mixed"}', head % (1, 10**9)):
        (tmp_path / "roles.json").write_text(f"{top}{entry}]}}")
        with pytest.raises(RoleMapError, match="less than or equal to 10000"):
            RoleMap.load(tmp_path / "roles.json")
    long = '{"layer": 1, "head": 0, "role": "core_attribute", "concept": "%s"}' % ("x" * 100_000)
    (tmp_path / "roles.json").write_text(f"{top}{long}]}}")
    with pytest.raises(RoleMapError, match="at most 200 characters"):
        RoleMap.load(tmp_path / "roles.json")


def test_large_maps_are_shown_in_linear_time(clip):
    """Every layer used to look at every head; counted here by looks, not by a clock."""
    roles = RoleMap(
        heads=heads_of(3000, 2),
        provenance=Provenance(source="x"),
        stability=Stability(kappas=(1.0,), same=(1.0,) * 6000),
    )
    looks = 0

    def count(frame, event, arg):
        nonlocal looks
        looks += 1
        assert looks < 3_000_000, "quadratic"

    sys.setprofile(count)
    try:
        role_grid(roles), role_figure(roles)
    finally:
        sys.setprofile(None)
    with pytest.raises(RoleMapError) as error:
        dear.DeAR(clip, roles)
    assert len(str(error.value)) < 2500


def test_a_choice_whose_answers_do_not_belong_to_its_photos(tmp_path):
    good = small_choice()
    good.write(tmp_path / "auto.json")
    assert read_choice(tmp_path) == good
    coop = good.candidates[1]
    for change in (
        {"labels": [0, 1]},
        {"labels": [0, 1, 0, 9]},
        {"chosen": "nobody"},
        {"candidates": good.candidates[1:]},
        {"candidates": [good.candidates[0], coop.model_copy(update={"answers": {"fold 1": [0]}})]},
        {"trials": [good.trials[0].model_copy(update={"images": [0, 99]}), *good.trials[1:]]},
        {"trials": [good.trials[2]], "curve": {}},
        {"curve": {"x": {}}},
        {"candidates": [good.candidates[0], good.candidates[0]]},
    ):
        good.model_copy(update=change).write(tmp_path / "auto.json")
        with pytest.raises(DataError, match="its answers do not belong to its photos"):
            read_choice(tmp_path)


def test_a_parquet_file_with_one_long_label_in_many_rows(tmp_path, monkeypatch):
    """A label of 100 kB, written once and repeated in 500 rows of a few bytes, 50 MB in all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dear.data import parquet_file

    table = pa.table({"image": pa.array([b"x"] * 500), "label": pa.array(["x" * 100_000] * 500)})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=False)
    assert (tmp_path / "a.parquet").stat().st_size < 500_000
    monkeypatch.setattr(parquet_file, "REMEMBERED", 10 << 20)
    with pytest.raises(DataError, match="has more than 10 MB of names and labels"):
        open_shard(tmp_path / "a.parquet")


def test_a_parquet_file_that_lies_about_its_rows(tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dear.data import parquet_file

    pq.write_table(pa.table({"image": pa.array([None] * 50_000, pa.binary())}), tmp_path / "a.parquet")
    monkeypatch.setattr(parquet_file, "MOST_ROWS", 10)
    with pytest.raises(DataError, match="is not a Parquet file, or it is damaged"):
        open_shard(tmp_path / "a.parquet")


def test_messages_have_an_end():
    long = DataError("It is " + "x" * 10**6 + " so change it.")
    assert len(str(long)) <= 2000
    assert str(long).endswith("so change it.")
    assert str(DataError("short")) == "short"


def test_names_with_line_breaks_stay_in_one_line(tmp_path, dear_):
    make_photos(tmp_path / "pho\ntos", ["one\ndear: all is well"], 2)
    code, _, said = dear_("train", tmp_path / "pho\ntos", "--out", tmp_path / "out")
    assert code == 2
    assert said.count("\n") == 1


def test_fifos_in_place_of_every_file_of_a_run(model, tmp_path):
    folder = model.save_pretrained(tmp_path / "adapter")
    for name in ("adapter_config.json", "adapter_model.safetensors", "roles.json"):
        whole = (folder / name).read_bytes()
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(ArtefactError, match="not a regular file"):
            load(folder, model.clip)
        (folder / name).unlink()
        (folder / name).write_bytes(whole)


def test_a_jpeg_with_thousands_of_scans(tmp_path):
    """Each scan of a few bytes takes as long as the whole image: 400 of them took more than a minute."""
    data = io.BytesIO()
    Image.effect_noise((64, 64), 50).convert("RGB").save(data, "JPEG", progressive=True)
    whole = data.getvalue()
    (tmp_path / "a.jpg").write_bytes(whole)
    assert open_image(tmp_path / "a.jpg").size == (64, 64)
    last = whole[whole.rindex(b"\xff\xda") : -2]
    (tmp_path / "a.jpg").write_bytes(whole[:-2] + 200 * last + whole[-2:])
    with pytest.raises(ImageError, match="far too many pixels"):
        open_image(tmp_path / "a.jpg")


def test_a_link_to_itself_among_photos_is_one_unreadable_image(tmp_path):
    photos = make_photos(tmp_path / "photos", ["ant", "bee"], 3)
    (photos / "ant" / "loop.jpg").symlink_to(photos / "ant" / "loop.jpg")
    assert len(open_dataset(photos).train) == len(folder_images(photos)) == 7


@pytest.mark.parametrize("settings", [{"rank": 10**9}, {"rank": 10**400}, {"rank": 4097}, {"alpha": 1e300}], ids=str)
def test_settings_that_ask_for_too_much(clip, settings):
    with pytest.raises(ConfigError, match=r"too large|less than or equal to 4096"):
        make_method("clip_lora", clip, settings)


def test_a_method_that_does_not_fit_into_memory(clip, monkeypatch):
    def full(*_, **__):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("dear.methods.clip_lora.ClipLora.__init__", full)
    with pytest.raises(ConfigError, match="clip_lora does not fit into memory with these settings"):
        make_method("clip_lora", clip, {})


@pytest.mark.parametrize(("name", "value"), [("seed", 2**64), ("shots", 10**400), ("lr", 1e300), ("decay", 1e39)])
def test_options_that_no_tensor_can_hold(name, value):
    with pytest.raises(ConfigError, match=f"{name} is "):
        dear.fit("world-blooms", **{name: value})


def test_a_tokenizer_that_panics(tmp_path):
    """The panic of a library in Rust is not an Exception."""

    class PanicException(BaseException):
        pass

    class Broken:
        def encode_batch(self, texts):
            raise PanicException("no entry found for key")

        def get_vocab(self):
            return {}

        def no_truncation(self):
            pass

        no_padding = no_truncation

    with pytest.raises(BackboneError, match="The tokenizer is damaged"):
        FileTokenizer(Broken(), context_length=4, pad=0, clean="whitespace")(["a"])
