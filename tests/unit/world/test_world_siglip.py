"""The world's CLIP of the other kind: its training forward pass is open_clip's, its losses are SigLIP's."""

import json
import shutil
import string
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import dear
from dear.backbone.own_trunk import TRUNK
from dear.errors import BackboneError
from dear.model.explanation import explain_image
from dear.model.load import make_method
from dear.world import siglip
from dear.world.clip import assets_folder, build, config, load_tokenizer, read_folder, write_folder, write_tokenizer
from dear.world.losses import UNKNOWN, also_true, prompts_are_true, total_loss
from dear.world.pretrain import Learner, PretrainSettings, make_batch, pretrain
from dear.world.samples import held_out_image
from dear.world.vocabulary import NAMES

TINY = PretrainSettings(seed=3, steps=2, shard=10, captions=6, gray=2, warmup=2, dense_from=0, kind="siglip")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return load_tokenizer(folder)


def test_training_forward_equals_open_clips(tokenizer):
    model = build(1, "siglip").eval()
    batch = make_batch(TINY, 0, 0, tokenizer)
    with torch.no_grad():
        features = siglip.image_features(model, batch.images, None)
        assert torch.allclose(features[:, 0], model.encode_image(batch.images, normalize=True), atol=1e-6)
        assert features.shape == (TINY.shard, 65, 128)
        assert not torch.allclose(features[:, 0], features[:, 1:].mean(dim=1), atol=1e-2)
        texts = siglip.text_features(model, batch.tokens)
        assert torch.allclose(texts, model.encode_text(batch.tokens, normalize=True), atol=1e-6)
        some = torch.arange(24).expand(TINY.shard, -1)
        assert siglip.image_features(model, batch.images, some).shape == (TINY.shard, 25, 128)


def test_a_run_writes_a_folder_that_is_read_back(tmp_path):
    assert pretrain(tmp_path / "run", TINY, checkpoint_every=1) == 2
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert "stray" not in lines[-1]  # no loss assigns heads to attributes
    model, _ = read_folder(tmp_path / "run" / "clip")
    assert model.text.attn_mask is None
    assert json.loads((tmp_path / "run" / "clip" / "open_clip_config.json").read_text()) == config("siglip")
    write_folder(model, tmp_path / "again", "siglip")
    again, _ = read_folder(tmp_path / "again")
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())


def test_sigmoid_loss_counts_each_pair_by_itself():
    logits = torch.tensor([[2.0, -1.0], [0.5, 3.0]])
    own, all_of_them = torch.eye(2, dtype=torch.bool), torch.ones(2, 2, dtype=torch.bool)
    by_hand = [torch.tensor(x).sigmoid().log() for x in (2.0, 1.0, -0.5, 3.0)]
    assert siglip.pairwise_sigmoid(logits, own, all_of_them) == pytest.approx(float(-sum(by_hand) / 2))
    one_less = all_of_them.clone()
    one_less[1, 0] = False
    without = [by_hand[0], by_hand[1], by_hand[3]]
    assert siglip.pairwise_sigmoid(logits, own, one_less) == pytest.approx(float(-sum(without) / 2))


def test_true_texts_of_other_images_and_unknown_colors_are_not_negatives():
    truth = torch.tensor([[0, 1, 2, 3, 4], [0, 9, 9, 9, 9]])
    mentioned = torch.tensor([[True, False, False, False, False], [True, True, False, False, False]])
    assert also_true(truth, mentioned).tolist() == [[False, False], [True, False]]
    truth[1, 0] = UNKNOWN
    is_true, known = prompts_are_true(truth, [0])
    assert is_true[0].nonzero().flatten().tolist() == [0]
    assert known[0].all()
    assert not known[1].any()


def test_plain_kind_is_the_same_model_without_assigned_heads(tokenizer):
    batch = make_batch(TINY, 0, 0, tokenizer)
    learner = Learner(1, "plain")
    with torch.no_grad():
        plain, terms = total_loss(learner.clip, learner.anchors, batch, 1.0, "plain")
        assigned, more = total_loss(learner.clip, learner.anchors, batch, 1.0, "clip")
    assert set(more) - set(terms) == {"stray"}
    assert float(assigned - plain) == pytest.approx(float(more["stray"]), abs=1e-4)
    ours = build(1, "clip").state_dict()
    assert all(torch.equal(ours[name], value) for name, value in build(1, "plain").state_dict().items())


def test_a_run_of_one_kind_is_not_resumed_as_another(tmp_path):
    pretrain(tmp_path / "run", TINY, stop_after=1, checkpoint_every=1)
    with pytest.raises(Exception, match="other settings"):
        pretrain(tmp_path / "run", replace(TINY, kind="plain"), resume=True)


@pytest.fixture(scope="module")
def shipped():
    return dear.load_clip("world-siglip")


def test_the_shipped_weights_load_by_name_and_from_their_folder(shipped, tmp_path):
    """timm learns one name by loading, also in a process that never imported `dear.world`."""
    folder = shutil.copytree(assets_folder("world-siglip"), tmp_path / "clip")
    assert json.loads((folder / "open_clip_config.json").read_text()) == config("siglip")
    assert (shipped.geometry.pool, shipped.geometry.causal, shipped.geometry.prefix_rows) == ("map", False, 0)
    code = f"import dear; print(dear.load_clip('local-dir:{folder}').weights_sha256)"
    alone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert alone.stdout.split() == [shipped.weights_sha256]


def test_only_our_own_trunk_is_known_to_timm(tmp_path):
    folder = shutil.copytree(assets_folder("world-siglip"), tmp_path / "clip")
    settings = (folder / "open_clip_config.json").read_text().replace(TRUNK, "dear_world_siglip2")
    (folder / "open_clip_config.json").write_text(settings)
    with pytest.raises(BackboneError, match="dear_world_siglip2"):
        dear.load_clip(f"local-dir:{folder}")


def test_all_weights_of_the_package_are_small():
    weights = assets_folder().parent.glob("*/*.safetensors")
    assert sum(path.stat().st_size for path in weights) < 20 * 1024 * 1024


def test_roles_features_search_and_explanation_work_without_a_cls_token(shipped, tmp_path):
    """The shipped map fits, its features sum to the embedding, images are found and answers are split exactly."""
    folder = tmp_path / "scenes"
    folder.mkdir()
    for number in range(12):
        Image.fromarray(held_out_image(number)[0]).save(folder / f"{number:02d}.png")
    pixels = torch.stack([shipped.preprocess_eval(Image.open(path)) for path in sorted(folder.iterdir())])
    parts = dear.attribute_features(shipped, None, pixels)
    assert set(parts) == {"color", "shape", "texture", "object", "location", "mixed", "rest"}
    assert torch.allclose(sum(parts.values()), shipped.encode_image(pixels), atol=1e-5)
    index = dear.index_images(folder, tmp_path / "index", clip=shipped, workers=0)
    assert set(index.kinds) == {"cls", *NAMES}
    hits = dear.search(shipped, folder / "03.png", index=index.out, by="location", top_k=3)
    assert hits[0].path.name == "03.png"
    model = dear.Model(shipped, make_method("zero_shot", shipped)).for_classes([*NAMES["location"]])
    found = explain_image(model, pixels[3])
    assert found.sums() == pytest.approx(list(found.logits), abs=1e-4)
    scene = held_out_image(3)[1]
    assert found.classes[0] == scene.location


def test_roles_are_discovered_without_a_cls_token(shipped, tmp_path, monkeypatch):
    """With a stand-in for the sentence model: its vectors are the counts of letters."""

    def encode(texts):
        return np.array([[text.count(letter) + 1e-3 for letter in string.ascii_lowercase] for text in texts])

    monkeypatch.setattr("dear.workflows.discover.load_encoder", lambda name: encode)
    out = tmp_path / "roles"
    roles = dear.discover_roles(shipped, "world", out=out, pool="world", phrases=3, max_images=48, examples=8)
    assert {head.layer for head in roles.heads} == {9, 10, 11, 12}
    assert len({head.phrases for head in roles.heads}) > 16
    assert "Layer 12, head 7" in (out / "index.html").read_text(encoding="utf-8")
