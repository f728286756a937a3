"""Methods on finished features after a real training: caches, probes, patience, and classes that were not trained."""

import json
from dataclasses import replace

import pytest
import torch

import dear
from dear.data.dataset import Item
from dear.data.prompts import class_list
from dear.engine import run as runs
from dear.engine.job import make_job
from dear.engine.loop import train
from dear.engine.run import run_job
from dear.engine.settings import TrainSettings
from dear.errors import ClassListError, ConfigError, CorruptArtefactError
from dear.evaluation.cells import make_cells
from dear.evaluation.grid import run_grid
from dear.methods.parts.class_features import text_weights
from dear.methods.recipe import Recipe
from dear.model.load import make_method
from dear.progress.display import watched
from helpers import make_photos, plain_images
from small_runs import small_grid
from toys import CLASSES, KilledError, Toy, adapter_hash

CACHES = ("tip_adapter", "tip_adapter_f", "ape", "ape_t")
CONFIG = {
    "tip_adapter": {"passes": 2, "search_steps": (5, 4)},
    "tip_adapter_f": {"passes": 2, "search_steps": (5, 4)},
    "ape": {"passes": 2, "search_steps": (5, 4, 3)},
    "ape_t": {"passes": 2, "search_steps": (5, 4)},
}


def trained(name, clip, toy=None, shots=4, **others):
    toy = toy or Toy(per_class=4)
    job = make_job(
        toy.dataset,
        shots=shots,
        seed=1,
        method=name,
        config={**CONFIG.get(name, {}), **others.pop("config", {})},
        train=TrainSettings(epochs=2, batch_size=4),
        **others,
    )
    return run_job(job, clip, workers=0)[0]


@pytest.mark.parametrize("name", CACHES)
@torch.no_grad()
def test_a_cache_adds_nothing_to_other_classes(name, clip):
    toy = Toy(per_class=4)
    toy.dataset = replace(toy.dataset, name="dtd")
    model, shown = trained(name, clip, toy), plain_images(clip, 5)
    assert model.method.keys.shape[0] == 9  # one of four shots of each class is held out
    base = model(shown).logits
    wide = model.for_classes(class_list(["owl", *CLASSES, "a kite"], "a photo of a {}.", dataset="dtd"))
    found = wide(shown).logits
    assert torch.allclose(found[:, 1:4], base, atol=1e-4)
    weights = text_weights(clip, wide.classes)
    plain = clip.temperature * clip.encode_image(shown) @ weights.T
    assert torch.allclose(found[:, [0, 4]], plain[:, [0, 4]], atol=1e-4)
    assert not torch.allclose(found[:, 1:4], plain[:, 1:4], atol=1e-2)
    elsewhere = model.for_classes(
        class_list(CLASSES, "a photo of a {}.", dataset="caltech101")
    )  # equal names, other things
    assert torch.allclose(elsewhere(shown).logits, plain[:, 1:4], atol=1e-4)
    unnamed = model.for_classes(list(reversed(CLASSES)))
    assert torch.allclose(unnamed(shown).logits, base.flip(1), atol=1e-4)


@torch.no_grad()
def test_variants_of_imagenet_share_its_keys(clip):
    toy = Toy(per_class=4)
    toy.dataset = replace(toy.dataset, name="imagenet")
    model, shown = trained("tip_adapter", clip, toy), plain_images(clip, 3)
    variant = model.for_classes(class_list(CLASSES[1:], "a photo of a {}.", dataset="imagenet_r"))
    assert torch.allclose(variant(shown).logits, model(shown).logits[:, 1:], atol=1e-4)


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_is_built_from_as_many_views_as_asked(name, clip):
    toy = Toy(per_class=4)
    trained(name, clip, toy, config={"passes": 3})
    opened = {item: count for item, count in toy.opened.items() if item.startswith("train")}
    epochs = 2 if name in ("tip_adapter_f", "ape_t") else 0
    assert sorted(opened.values()) == [1] * 3 + [3 + epochs] * 9  # held-out images once


@pytest.mark.parametrize("name", CACHES)
def test_with_one_shot_the_initial_numbers_stay(name, clip):
    method = trained(name, clip, shots=1).method
    assert method.keys.shape[0] == 3
    for number in method.numbers:
        assert float(getattr(method, number)) == pytest.approx(getattr(method.config, f"init_{number}"))


@pytest.mark.parametrize("name", [*CACHES, "linear_probe"])
@pytest.mark.filterwarnings("ignore")
def test_a_trained_one_is_exported_and_saved(name, clip, tmp_path):
    model, shown = trained(name, clip).eval(), plain_images(clip, 5)
    with torch.no_grad():
        free = {"images": {0: torch.export.Dim("batch")}}
        baked = model.baked().eval()
        exported = torch.export.export(baked, (plain_images(clip, 3),), dynamic_shapes=free, strict=False).module()
        assert torch.allclose(exported(shown), model(shown).logits, atol=1e-3)
        chunked = model.for_classes(model.classes, chunk=2)
        assert torch.allclose(chunked(shown).logits, model(shown).logits, atol=1e-4)
        loaded = dear.load(model.save_pretrained(tmp_path / "saved"), clip=clip)
        assert torch.equal(loaded(shown).logits, model(shown).logits)
        spoilt = "intercept" if name == "linear_probe" else "labels"
        tensor = getattr(model.method, spoilt)
        tensor.data = torch.full((2,), 7).to(tensor.dtype)
        with pytest.raises(CorruptArtefactError, match="do not fit together"):
            dear.load(model.save_pretrained(tmp_path / "broken"), clip=clip)


def test_too_many_channels_are_refused(clip):
    with pytest.raises(ConfigError, match="channels is 25, but this backbone has 24 channels: choose at most 24"):
        trained("ape", clip, config={"channels": 25})


def test_what_is_no_template_is_refused_at_once(clip):
    with pytest.raises(ClassListError, match=r"must contain '\{\}' exactly once"):
        make_method("tip_adapter", clip, {"templates": ["a photo"]})


# Held-out images -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", ["all", "base", "novel"])
def test_a_validation_split_of_the_same_half_is_chosen_on(half):
    toy = Toy(per_class=6)
    val = tuple(Item(f"val/{label}/{i}", label) for label in range(3) for i in range(9))
    toy.dataset = replace(toy.dataset, val=val)
    for shots, expected in ((1, 1), (2, 2), (6, 4)):
        job = make_job(toy.dataset, shots=shots, seed=1, half=half, method="linear_probe")
        kept, held = job.held()
        assert kept == job.items
        labels = {"all": {0, 1, 2}, "base": {0, 1}, "novel": {2}}[half]
        assert {int(item.id.split("/")[1]) for item in held} == labels
        assert {item.label for item in held} == set(range(len(labels)))
        assert len(held) == expected * len(labels)
        assert all(item.id.startswith("val/") for item in held)


def test_other_images_to_choose_on_are_another_run(clip):
    from dear.engine.job import describe

    toy = Toy(per_class=4)
    jobs = [make_job(toy.dataset, shots=shots, seed=1, method="tip_adapter") for shots in (1, 4)]
    described = [describe(job, job.build(clip)) for job in jobs]
    assert ["held_sha256" in one for one in described] == [False, True]


# Linear probe ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_probe_knows_no_other_classes(clip):
    toy = Toy(per_class=4)
    toy.dataset = replace(toy.dataset, name="dtd")
    model, shown = trained("linear_probe", clip, toy), plain_images(clip, 3)
    assert model.method.coef.shape == (3, clip.geometry.embed_dim)
    logits = model(shown).logits
    assert torch.equal(model.for_classes(CLASSES[1:])(shown).logits, logits[:, 1:])
    sentence = r"predicts only classes it was trained on: leave out the others, or test the half .* half='base'\."
    with pytest.raises(ConfigError, match=sentence):
        model.for_classes(["red thing", "owl"])(shown)
    with pytest.raises(ConfigError, match=sentence):
        model.for_classes(class_list(CLASSES, "a photo of a {}.", dataset="caltech101"))(shown)


@torch.no_grad()
def test_a_probe_of_two_classes_and_of_one(clip):
    toy = Toy(per_class=4)
    model = trained("linear_probe", clip, toy, half="base")
    items = [item for item in toy.dataset.test if item.label < 2]
    shown = torch.stack([clip.preprocess_eval(toy.open(item.id)) for item in items])
    assert model(shown).logits.argmax(1).tolist() == [item.label for item in items]
    with pytest.raises(ConfigError, match="linear_probe needs images of at least two classes"):
        trained("linear_probe", clip, half="novel")


@pytest.mark.parametrize("protocol", ["base-to-novel", "few-shot"])
def test_grids_do_not_ask_it_about_other_classes(protocol, tiny_folders, tmp_path):
    photos = make_photos(tmp_path / "photos", ["ant", "bee", "cow", "dog"], 4)
    cells = make_cells(protocol, [str(photos)], methods=["zero_shot", "linear_probe"], seeds=[1], shots=[2])
    options = small_grid(tmp_path / "out", tiny_folders, workers=0, threads=1)
    if protocol == "few-shot":
        assert [one.method for one in run_grid(cells, options)] == ["zero_shot", "linear_probe"]
        return
    sentence = "linear_probe knows only the classes it was trained on, but base-to-novel tests others: leave it out."
    with pytest.raises(ConfigError) as error:
        run_grid(cells, options)
    assert str(error.value) == sentence
    assert not (tmp_path / "out").exists()


# Patience and no augmentation ------------------------------------------------------------------------------------


def test_images_without_augmentation_are_read_once(clip):
    toy = Toy(per_class=4)
    trained("mm_adapter", clip, toy)
    assert set(toy.opened.values()) == {1}
    assert len(toy.opened) == 12


@pytest.mark.parametrize(
    ("scores", "epochs", "best"),
    [([0.5, 0.7, 0.6, 0.7, 0.9], 4, 2), ([0.1, 0.2, 0.3, 0.4, 0.5], 5, 5), ([0.5, 0.5, 0.5], 3, 1)],
)
def test_patience_keeps_the_best_epoch(clip, tmp_path, monkeypatch, scores, epochs, best):
    """Two epochs without a strictly better one end a training; a kill at any step changes nothing."""
    recipe = Recipe(optimiser="sgd", lr=0.05, epochs=5, patience=2, warmup_epochs=0)
    monkeypatch.setattr(dear.get_method("clip_adapter"), "recipe", recipe)
    monkeypatch.setattr(dear.get_method("clip_adapter"), "special", ())
    monkeypatch.setattr(runs, "train", lambda *args, **kwargs: train(*args, **kwargs, checkpoint_every=1))
    job = replace(Toy().job(method="clip_adapter"), train=TrainSettings(batch_size=3))
    states = {}

    def run(folder, kill=None, **how):
        made = {}

        def judge(model, held):
            epoch = made["step"] // 2  # two steps per epoch
            states[epoch] = model.method.down.weight.detach().clone()
            return scores[epoch - 1]

        def on_step(metrics):
            made["step"] = metrics["step"]
            if kill == ("step", metrics["step"]):
                raise KilledError

        # the judge is asked before the step is reported
        right = runs.train

        def counted(model, feed, *args, **kwargs):
            inner = feed.batches

            def batches(first, last):
                for number, images in enumerate(inner(first, last), first + 1):
                    made["step"] = number
                    yield images

            feed.batches = batches
            return right(model, feed, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(runs, "_accuracy", judge)
            patch.setattr(runs, "train", counted)
            return run_job(job, clip, tmp_path / folder, workers=0, on_step=on_step, **how)

    model, progress = run("whole")
    assert progress.step == 2 * epochs
    assert list(progress.best) == [scores[best - 1], best]
    assert torch.equal(model.method.down.weight, states[best])
    for step in range(1, 2 * epochs + 1):
        with pytest.raises(KilledError):
            run(f"killed{step}", ("step", step))
        run(f"killed{step}", if_exists="resume")
        assert adapter_hash(tmp_path / f"killed{step}") == adapter_hash(tmp_path / "whole"), step
    resumed, again = run(f"killed{step}", if_exists="resume")  # after its end: nothing more is trained
    assert again.step == 2 * epochs
    assert torch.equal(resumed.method.down.weight, states[best])
    assert json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 2 * epochs


def test_without_held_out_images_patience_waits_for_nothing(clip):
    job = replace(Toy(per_class=1).job(method="mm_adapter"), shots=1)
    _, progress = run_job(job, clip, workers=0)
    assert (progress.step, progress.best) == (2, None)


def test_the_ratio_can_be_chosen(clip):
    model = trained("clip_adapter", clip, config={"choose_ratio": True})
    assert float(model.method.ratio) in [pytest.approx(one) for one in (0, 0.2, 0.4, 0.6, 0.8, 1)]
    assert trained("clip_adapter", clip).method.ratio == pytest.approx(0.2)


# Sentences -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_descriptions_join_templates_and_long_ones_are_cut(clip):
    said = {"cat": ("A cat has whiskers.", "a very long sentence " * 60)}
    classes = replace(class_list(["cat", "dog"], "a photo of a {}."), descriptions=said)
    found = text_weights(clip, classes, ("a photo of a {}.", "a drawing of a {}."), described=True)
    sentences = ["a photo of a cat.", "a drawing of a cat.", *said["cat"]]
    cut = torch.nn.functional.normalize(clip.model.encode_text(clip.tokenizer(sentences)), dim=-1)
    expected = torch.nn.functional.normalize(cut.mean(0), dim=-1)
    assert torch.allclose(found[0], expected, atol=1e-5)
    plain = text_weights(clip, class_list(["dog"], "a photo of a {}."), ("a photo of a {}.", "a drawing of a {}."))
    assert torch.allclose(found[1], plain[0], atol=1e-5)


@pytest.mark.parametrize("variant", ["additive", "blocked"])
@torch.no_grad()
def test_the_attention_is_that_of_all_tokens_together(variant, clip):
    """The exact saving against one sequence of all classes and the image, by PyTorch's own attention."""
    names = ["cat", "dog", "hot air balloon", "x"]
    method = dear.get_method("mm_adapter")(clip, dear.get_method("mm_adapter").Config(variant=variant, width=8), seed=1)
    model, shown = dear.Model(clip, method).for_classes(names), plain_images(clip, 3)
    feature, classes = clip.encode_image(shown), model.class_features()
    tokens = torch.cat([classes.expand(3, -1, -1), feature[:, None]], 1)
    cross = torch.zeros(5, 5, dtype=torch.bool)
    cross[:4, 4] = cross[4, :4] = True
    mask = cross.float() if variant == "additive" else torch.zeros(5, 5).masked_fill(~cross, -torch.inf)
    z = method.downsampler(tokens).transpose(0, 1)
    y = method.upsampler(method.mha(z, z, z, attn_mask=mask)[0]).transpose(0, 1)
    y = torch.nn.functional.normalize(y, dim=-1)
    mixed = torch.nn.functional.normalize(0.2 * y + 0.8 * tokens, dim=-1)
    expected = clip.temperature * (mixed[:, 4:] * mixed[:, :4]).sum(-1)
    assert torch.allclose(model(shown).logits, expected, atol=1e-4)


@pytest.mark.parametrize(("name", "stage", "count"), [("ape", "searching", 5), ("linear_probe", "fitting", 15)])
def test_a_search_says_how_far_it_is(name, stage, count, clip):
    """With many classes a search takes minutes."""
    heard = []
    with watched(lambda *event: heard.append(event)):
        trained(name, clip)
    assert [event for event in heard if event[0] == stage] == [(stage, done, count) for done in range(count + 1)]
