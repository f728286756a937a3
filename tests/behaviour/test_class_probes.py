"""TaskRes, CLAP, GDA and LP++ after a real training: sizes, new classes, choices, and slow oracles of what is fast."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import dear
from dear.data.prompts import class_list
from dear.engine.job import make_job
from dear.engine.run import run_job
from dear.engine.settings import TrainSettings
from dear.errors import ConfigError, CorruptArtefactError
from dear.methods.base import Draw, unit
from dear.methods.gda import fit_new, fit_trained
from dear.methods.lppp import Probe, Training, correct
from dear.methods.parts.class_features import EIGHT, SEVEN, raw_class_features
from helpers import build, plain_images
from toys import CLASSES, Toy

SMALL = {"gda": {"passes": 2, "neighbours": 5}, "clap": {"passes": 2}, "lppp": {"epochs": 25}}
TEMPLATE = "a photo of a {}."


def trained(name, clip, data="toy", shots=4, **config):
    dataset = replace(Toy(per_class=4).dataset, name=data)
    settings = {**SMALL.get(name, {}), **config}
    train = TrainSettings(epochs=2, batch_size=4, lr=0.1, warmup_epochs=0)
    job = make_job(dataset, shots=shots, seed=1, method=name, config=settings, train=train)
    return run_job(job, clip, workers=0)[0]


def random_rows(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("name", "per_class", "stored"), [("taskres", 0, 0), ("clap", 0, 1), ("lppp", 2, 0), ("linear_probe", 1, 0)]
)
def test_numbers_per_class(name, per_class, stored, clip):
    """C·E for TaskRes and CLAP, C·(E + 1) for the linear probe, C·(E + 2) for LP++; E is 512 on ViT-B/16."""
    model, count = trained(name, clip), len(CLASSES)
    width = clip.geometry.embed_dim
    assert sum(p.numel() for p in model.trainable().values()) == count * (width + per_class)
    assert dear.get_method(name).about.trained == f"{512 + per_class} per class"
    buffers = sum(b.numel() for n, b in model.method.named_buffers() if n not in ("trained_data", "C_pen"))
    assert buffers == stored * count


def test_gda_stores_as_little_as_published(clip):
    """C·(E + 1) numbers and α; the views too, if new classes can follow."""
    width, count = clip.geometry.embed_dim, len(CLASSES)
    for neighbours, views in ((0, 0), (5, 2 * 9)):
        method = trained("gda", clip, neighbours=neighbours).method
        assert not method.trained
        sizes = {name: buffer.numel() for name, buffer in method.named_buffers() if name != "trained_data"}
        assert sizes == {"weight": count * width, "bias": count, "views": views * width, "alpha": 1}


@pytest.mark.parametrize("name", ["taskres", "clap"])
def test_new_classes_are_zero_shot(name, clip):
    model, shown = trained(name, clip, data="dtd").requires_grad_(False), plain_images(clip, 5)
    base = model(shown).logits
    wide = model.for_classes(class_list(["owl", *CLASSES, "a kite"], TEMPLATE, dataset="dtd"))
    plain = clip.temperature * clip.encode_image(shown) @ unit(raw_class_features(clip, wide.classes)).T
    assert torch.allclose(wide(shown).logits[:, 1:4], base, atol=1e-4)
    assert torch.allclose(wide(shown).logits[:, [0, 4]], plain[:, [0, 4]], atol=1e-4)
    assert not torch.allclose(base, plain[:, 1:4], atol=1e-4)
    elsewhere = model.for_classes(class_list(CLASSES, TEMPLATE, dataset="caltech101"))
    assert torch.allclose(elsewhere(shown).logits, plain[:, 1:4], atol=1e-4)


@torch.no_grad()
def test_raw_features_are_averaged_and_imagenet_has_eight_templates(clip):
    classes = class_list(["cat", "golden_retriever"], TEMPLATE, dataset="imagenet_a")
    assert (*SEVEN, TEMPLATE) == EIGHT
    for at, name in enumerate(classes.names):  # underscores stay
        raw = clip.model.encode_text(clip.tokenizer([one.replace("{}", name) for one in EIGHT]))
        assert torch.allclose(raw_class_features(clip, classes)[at], raw.mean(0), atol=1e-5)
    one = replace(classes, dataset="dtd", template="{} texture.")
    expected = clip.model.encode_text(clip.tokenizer(one.prompts()))
    assert torch.allclose(raw_class_features(clip, one), expected, atol=1e-5)


@torch.no_grad()
def test_multipliers_of_clap_are_mean_probabilities(clip):
    method = build("clap", clip, CLASSES).method
    views, labels = random_rows(3, 5, clip.geometry.embed_dim), torch.tensor([2, 0, 2, 1, 2])
    classes = class_list(CLASSES, TEMPLATE)
    method.begin(clip, Draw({"feature": views}, labels, classes))
    text = unit(raw_class_features(clip, classes))
    found = (clip.temperature * unit(views) @ text.T).softmax(-1)
    for label in range(3):
        assert torch.allclose(method.multipliers[label], found[:, labels == label, label].mean(), atol=1e-6)


# Gaussians -----------------------------------------------------------------------------------------------------------


def test_gaussians_are_those_of_the_definition():
    """Against loops over classes, with unequal numbers of images; a class without any has its text as its mean."""
    views, labels, text = (
        unit(random_rows(3, 7, 6)),
        torch.tensor([0, 2, 2, 0, 2, 1, 1]),
        unit(random_rows(4, 6, seed=1)),
    )
    rows, owners = views.flatten(0, 1).double(), labels.repeat(3)
    means = [rows[owners == c].mean(0) for c in range(3)]
    around = torch.cat([rows[owners == c] - means[c] for c in range(3)])
    scatter = around.T @ around
    shrunk = scatter + scatter.trace() / 20 * torch.eye(6)
    pooled = fit_trained(views, labels, text, "pooled")
    assert torch.allclose(pooled.means[:3].double(), torch.stack(means), atol=1e-6)
    assert torch.equal(pooled.means[3], text[3])
    assert torch.allclose(pooled.precision, 6 * torch.linalg.inv(shrunk), rtol=1e-4, atol=1e-4)
    own = torch.stack([torch.cov(rows[owners == c].T) for c in range(3)]).mean(0)
    by_class = fit_trained(views, labels, text, "by_class").precision
    assert torch.allclose(by_class, torch.linalg.pinv(own, rtol=6 * 1.2e-7), rtol=1e-3)
    weight, bias = pooled.linear()
    assert torch.allclose(weight.double(), pooled.means.double() @ pooled.precision, rtol=1e-5, atol=1e-4)
    assert torch.allclose(bias.double(), -0.5 * (weight * pooled.means).sum(1).double(), atol=1e-4)


@pytest.mark.parametrize("neighbours", [5, 100])
def test_gaussians_of_new_classes_are_those_of_the_definition(neighbours):
    """Against whole inverses; with fewer views than neighbours, all of them are taken."""
    views, text = unit(random_rows(12, 9)), unit(random_rows(3, 9, seed=1))
    count, precisions = min(neighbours, 12), []
    found = fit_new(views, text, neighbours, 4)
    for at, one in enumerate(text.double()):
        near = views.double()[(views.double() @ one).argsort(descending=True)[:count]]
        scatter = (near - one).T @ (near - one)
        precisions.append(9 * torch.linalg.inv(scatter + scatter.trace() / (count - 1) * torch.eye(9)))
        assert torch.allclose(found.means[at].double(), torch.cat([near, one.expand(4, -1)]).mean(0), atol=1e-6)
    assert torch.allclose(found.precision, torch.stack(precisions).mean(0), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_one_view_of_one_shot_is_zero_shot(clip):
    """Without any spread the pseudo-inverse is zero."""
    model, shown = trained("gda", clip, shots=1, passes=1), plain_images(clip, 3)
    assert torch.allclose(model.method.weight, torch.zeros(()))
    assert torch.allclose(model(shown).logits.softmax(1), build("zero_shot", clip, CLASSES)(shown).logits.softmax(1))
    assert float(model.method.alpha) == pytest.approx(0.1)


@torch.no_grad()
def test_gda_on_trained_and_new_classes(clip):
    model, shown = trained("gda", clip, data="dtd"), plain_images(clip, 5)
    model.method.alpha.fill_(1.0)
    both = model.for_classes(class_list(["owl", *CLASSES, "a kite"], TEMPLATE, dataset="dtd"))
    new = model.for_classes(class_list(["owl", "a kite"], TEMPLATE, dataset="dtd"))
    wide, prior = both(shown).logits, torch.tensor([5.0, 3.0, 2.0]).log()
    assert torch.allclose(wide[:, 1:4], model(shown).logits + prior[1] - prior[0], atol=1e-3)
    assert torch.allclose(wide[:, [0, 4]], new(shown).logits + prior[2] - prior[0], atol=1e-3)
    with pytest.raises(ConfigError, match="gda predicts only classes it was trained on"):
        trained("gda", clip, neighbours=0).for_classes(["owl", *CLASSES])(shown)


# LP++ ----------------------------------------------------------------------------------------------------------------


def test_lppp_descends_as_autograd_does():
    """Gradients and updates against PyTorch's, with α's gradient never cleared."""
    x, labels, text = unit(random_rows(9, 6)), torch.arange(9) % 3, unit(random_rows(3, 6, seed=1))
    training = Training(x, labels, text)
    start = training.start(torch.tensor([0.1, -0.2, 0.3]))
    weight, bias, alpha = (one.clone().requires_grad_() for one in start)
    optimiser = torch.optim.SGD([weight, bias], lr=training.rates.weight, momentum=0.9)
    for number, step in enumerate(training.steps(start, 7, 3), start=1):
        optimiser.zero_grad()
        loss = F.cross_entropy(F.linear(x, weight, bias) + alpha * (x @ text.T), labels)
        loss.backward()
        assert torch.allclose(step.loss, loss.detach(), atol=1e-5)
        assert torch.allclose(step.gradient.alpha, alpha.grad, atol=1e-5)
        optimiser.step()
        if number % 3 == 0:
            alpha.data -= training.rates.alpha * alpha.grad
        for ours, theirs in zip(step.after, (weight, bias, alpha), strict=True):
            assert torch.allclose(ours, theirs.detach(), rtol=1e-4, atol=1e-4)


def test_of_equally_good_epochs_the_last_one_counts(clip, monkeypatch):
    from dear.methods import lppp

    seen, scores = [], iter([1, 3, 2, 3, 2])

    def count(probe, text, held):
        seen.append(Probe(*(one.clone() for one in probe)))
        return next(scores)

    monkeypatch.setattr(lppp, "correct", count)
    method = trained("lppp", clip, epochs=5).method
    assert torch.equal(method.weight, seen[3].weight)
    assert not torch.equal(method.weight, seen[1].weight)


@torch.no_grad()
def test_without_held_out_images_the_last_epoch_counts(clip):
    few, more = (trained("lppp", clip, shots=1, epochs=epochs).method for epochs in (24, 25))
    assert not torch.equal(few.weight, more.weight)
    assert more.weight.shape[0] == len(CLASSES)


@torch.no_grad()
def test_lppp_knows_no_other_classes(clip):
    model, shown = trained("lppp", clip, data="dtd"), plain_images(clip, 3)
    logits = model(shown).logits
    assert torch.allclose(model.for_classes(CLASSES[1:])(shown).logits, logits[:, 1:], atol=1e-5)
    held = Draw({"feature": clip.stock_feature(shown)}, logits.argmax(1), model.required_classes())
    method = model.method
    probe = Probe(method.weight, method.bias, method.alpha)
    assert correct(probe, method.classes(clip, held.classes).weights, held) == 3
    for other in (["red thing", "owl"], class_list(CLASSES, TEMPLATE, dataset="caltech101")):
        with pytest.raises(ConfigError, match="lppp predicts only classes it was trained on"):
            model.for_classes(other)(shown)


@pytest.mark.parametrize(
    ("name", "spoilt"), [("taskres", "residuals"), ("clap", "multipliers"), ("gda", "bias"), ("lppp", "alpha")]
)
@pytest.mark.filterwarnings("ignore")
def test_a_trained_one_is_exported_and_saved(name, spoilt, clip, tmp_path):
    model, shown = trained(name, clip).eval().requires_grad_(False), plain_images(clip, 5)
    free = {"images": {0: torch.export.Dim("batch")}}
    exported = torch.export.export(model.baked().eval(), (plain_images(clip, 3),), dynamic_shapes=free, strict=False)
    assert torch.allclose(exported.module()(shown), model(shown).logits, atol=1e-3)
    loaded = dear.load(model.save_pretrained(tmp_path / "saved"), clip=clip)
    assert torch.equal(loaded(shown).logits, model(shown).logits)
    getattr(model.method, spoilt).data = torch.ones(2, 7)
    with pytest.raises(CorruptArtefactError, match=r"do not fit together|not of width"):
        dear.load(model.save_pretrained(tmp_path / "broken"), clip=clip)
