"""Pre-training in miniature: the same seed gives the same losses, and a killed run goes on as if it had not been."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from dear.errors import BackboneError, ConfigError, OverwriteError
from dear.world.clip import build, load_tokenizer, read_folder, write_folder, write_tokenizer
from dear.world.losses import (
    PROMPT_COUNTS,
    UNKNOWN,
    contrastive,
    image_features,
    per_prompt,
    strayed,
    text_features,
)
from dear.world.pretrain import PretrainSettings, learning_rate, make_batch, pretrain, remaining

pytestmark = pytest.mark.xdist_group("pretrain")  # one whole run for all
TINY = PretrainSettings(seed=3, steps=6, shard=10, captions=6, gray=2, warmup=2, dense_from=2)


def losses(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["clip"], line["grad"]) for line in lines if "loss" in line]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "whole"
    assert pretrain(out, TINY, checkpoint_every=4) == 6
    return out


def test_interrupted_and_resumed_equals_uninterrupted(whole_run, tmp_path):
    out = tmp_path / "parts"

    class Killed(Exception):
        pass

    def kill(step, _metrics):
        if step == 5:  # one step after the checkpoint
            raise Killed

    with pytest.raises(Killed):
        pretrain(out, TINY, checkpoint_every=4, on_step=kill)
    assert pretrain(out, TINY, resume=True, checkpoint_every=4) == 6
    assert losses(out) == losses(whole_run)
    a, b = (load_file(folder / "clip" / "open_clip_model.safetensors") for folder in (out, whole_run))
    assert all(torch.equal(a[name], b[name]) for name in b)


def test_a_short_run_gives_the_same_losses_twice(whole_run, tmp_path):
    assert pretrain(tmp_path / "a", TINY, stop_after=2) == 2
    assert losses(tmp_path / "a") == losses(whole_run)[:2]
    other = replace(TINY, seed=4)
    pretrain(tmp_path / "b", other, stop_after=1)
    assert losses(tmp_path / "b")[0] != losses(whole_run)[0]


def test_a_run_is_not_resumed_with_other_settings(whole_run):
    for other in (replace(TINY, steps=8), replace(TINY, seed=9)):
        with pytest.raises(ConfigError, match="other settings"):
            pretrain(whole_run, other, resume=True)


@pytest.mark.slow
def test_the_length_may_change_before_the_cool_down_only(whole_run, tmp_path):
    longer = replace(TINY, steps=20)
    out = tmp_path / "run"
    pretrain(out, longer, stop_after=3)
    assert pretrain(out, TINY, resume=True, stop_after=4) == 4
    assert losses(out) == losses(whole_run)[:4]


def test_folder_rules(whole_run, tmp_path):
    with pytest.raises(OverwriteError, match="is not empty: resume with resume=True"):
        pretrain(whole_run, TINY)
    with pytest.raises(ConfigError, match="no checkpoint"):
        pretrain(tmp_path / "nothing", TINY, resume=True)
    with pytest.raises(BackboneError, match=r"has no open_clip_config\.json"):
        read_folder(tmp_path)


def test_the_result_is_a_plain_open_clip_folder(whole_run):
    import open_clip

    folder = whole_run / "clip"
    theirs = open_clip.create_model(f"local-dir:{folder}").eval()
    ours, tokenizer = read_folder(folder)
    image = make_batch(TINY, 0, 0, tokenizer).images
    tokens = tokenizer(["a red star", "in the desert"])
    with torch.inference_mode():
        assert torch.equal(theirs.encode_image(image), ours.encode_image(image))
        assert torch.equal(theirs.encode_text(tokens), ours.encode_text(tokens))


def test_training_forward_equals_open_clips(tmp_path):
    write_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    model = build(1).eval()
    batch = make_batch(replace(TINY, dense_from=0), 0, 0, tokenizer)
    assert batch.visible is None
    with torch.no_grad():
        never, always = (
            torch.zeros(len(batch.images), dtype=torch.bool),
            torch.ones(len(batch.images), dtype=torch.bool),
        )
        plain = model.encode_image(batch.images, normalize=True)
        assert torch.allclose(image_features(model, batch.images, None, never)[0][:, 0], plain, atol=1e-5)
        assert not torch.allclose(image_features(model, batch.images, None, always)[0][:, 0], plain, atol=1e-3)
        ours = text_features(model, batch.tokens)
        assert torch.allclose(ours, model.encode_text(batch.tokens, normalize=True), atol=1e-5)


def test_batches_depend_on_seed_and_step_alone(tmp_path):
    write_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    a, b = make_batch(TINY, 1, 1, tokenizer), make_batch(TINY, 1, 1, tokenizer)
    assert torch.equal(a.images, b.images)
    assert torch.equal(a.visible, b.visible)
    assert a.visible.shape == (TINY.shard, TINY.kept)
    assert not torch.equal(a.images, make_batch(TINY, 1, 0, tokenizer).images)
    assert make_batch(TINY, 2, 0, tokenizer).visible is None


def test_a_true_caption_is_never_a_negative():
    truth = torch.tensor([[0, 1, 2, 3, 4], [0, 9, 9, 9, 9]])
    mentioned = torch.tensor([[True, False, False, False, False], [True, True, False, False, False]])
    logits = torch.tensor([[1.0, -3.0], [50.0, 1.0]])  # caption 0 is true of image 1 as well
    loss = contrastive(logits, truth, mentioned)
    assert float(loss) == pytest.approx((0.0181499 + 0.0181499) / 4, abs=1e-4)


def test_prompts_find_their_anchors():
    blocks = list(torch.split(torch.eye(84), PROMPT_COUNTS))
    assert float(per_prompt(torch.eye(84), blocks, torch.tensor(1000.0))) < 1e-6


def test_schedule():
    settings = PretrainSettings(steps=100, warmup=10, lr=1.0, cooldown=0.3)
    assert learning_rate(0, settings) == pytest.approx(0.1)
    assert learning_rate(40, settings) == 1.0
    assert settings.plateau == 70
    assert remaining(70, settings) == 1.0
    assert remaining(85, settings) == pytest.approx(0.5)
    assert 0 < learning_rate(99, settings) < 0.05


def test_written_weights_are_read_back_exactly(tmp_path):
    model = build(2)
    write_folder(model, tmp_path)
    again, _ = read_folder(tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value.half().float())


def test_heads_that_keep_to_their_attribute_do_not_stray():
    anchors = [torch.eye(8)[:3], torch.eye(8)[3:6]]
    values = torch.randint(0, 3, (50,), generator=torch.Generator().manual_seed(0))
    first, second = torch.eye(8)[values], torch.eye(8)[values + 3]
    free = torch.randn(50, 8, generator=torch.Generator().manual_seed(1))
    assert strayed([torch.stack([first, second, free], dim=1)], anchors) < 1e-6
    assert strayed([torch.stack([second, first, free], dim=1)], anchors) > 1 - 1e-6
    assert abs(strayed([torch.stack([first + second, second, free], dim=1)], anchors) - 0.25) < 0.05


def test_gray_images_have_no_colour_and_no_caption(tmp_path):
    write_tokenizer(tmp_path)
    batch = make_batch(TINY, 0, 0, load_tokenizer(tmp_path))
    gray = (batch.images[:, 0] == batch.images[:, 1]).flatten(1).all(dim=1)
    assert gray.tolist() == [False] * (TINY.shard - TINY.gray) + [True] * TINY.gray
    assert (batch.truth[:, 0] == UNKNOWN).tolist() == gray.tolist()
    with pytest.raises(ConfigError, match="do not fit"):
        replace(TINY, gray=TINY.shard)
