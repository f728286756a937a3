"""Published values of MaPLe, VPT, IVLP, PromptSRC, ProVP and SkipTuning, as data."""

import pytest
import torch
from torch import nn

from dear.engine.optim import epoch_weights, make_optimiser, rate
from dear.methods.recipe import Case, resolve, special_config
from dear.methods.registry import get_method
from dear.methods.skiptuning import chances

ALIKE = {
    "optimiser": "sgd",
    "momentum": 0.9,
    "decay": 5e-4,
    "drop_last": True,
    "crop": (0.08, 1.0),
    "schedule": "epoch",
}
WARM = {"warmup_epochs": 1, "warmup_lr": 1e-5}
MAPLE = {"lr": 3.5e-3, "epochs": 5, "batch_size": 4, "average": None, **WARM}
VPT = {"lr": 2.5e-3, "epochs": 5, "batch_size": 4, "average": None, **WARM}
SRC = {"lr": 2.5e-3, "epochs": 20, "batch_size": 4, "average": "gaussian", **WARM}
DEEP = {"context": 2, "depth": 9}
BOTH = {"text_context": 4, "image_context": 4, "text_weight": 25, "image_weight": 10, "logits_weight": 1}
NINE, THREE = {"text_depth": 9, "image_depth": 9}, {"text_depth": 3, "image_depth": 3}
LATE, WIDE = {"epochs": 50, "gaussian": (45, 5)}, {"epochs": 50, "gaussian": (30, 30)}
PROVP = {"lr": 0.1, "epochs": 100, "batch_size": 32, "decay": 1e-3, "average": None, **WARM}
FIFTY = {"context": 50, "carry": 0.01, "reformation": 1}
SKIP = {"batch_size": 4, "one_class": True, "lr": 2e-5, "groups": {"visual.*": 5e-6}, "epochs": 20}
SLOW = {"lr": 1e-5, "groups": {"visual.*": 1e-6}, "warmup_lr": 1e-8}
FEW = {"lr": 1e-5, "groups": {}, "warmup_epochs": 0, "epochs": 40}
CLASSES = {"first_layer": 7, "top": 0.5, "most": 50, "falloff": 0.3, "redraw": False}

PUBLISHED = [
    ("maple", Case("base-to-novel", "dtd"), MAPLE, DEEP),
    ("maple", Case("few-shot", "dtd", 4), {**MAPLE, "epochs": 50}, DEEP),
    ("maple", Case("cross-dataset", "imagenet"), {**MAPLE, "lr": 2.6e-3, "epochs": 2}, {"context": 2, "depth": 3}),
    ("maple", Case("domain", "imagenet"), {**MAPLE, "lr": 2.6e-3, "epochs": 2}, {"context": 2, "depth": 3}),
    ("vpt", Case("base-to-novel", "eurosat"), VPT, {"context": 8, "depth": 12}),
    ("vpt", Case("cross-dataset", "imagenet"), {**VPT, "epochs": 2}, {"context": 8, "depth": 12}),
    (
        "ivlp",
        Case("base-to-novel", "eurosat"),
        MAPLE,
        {"text_context": 2, "image_context": 2, "text_depth": 12, "image_depth": 12, "words": "a photo of a"},
    ),
    ("promptsrc", Case("base-to-novel", "dtd"), {**SRC, "gaussian": (15, 1)}, {**BOTH, **NINE}),
    ("promptsrc", Case("cross-dataset", "imagenet"), {**SRC, "gaussian": (6, 10)}, {**BOTH, **THREE}),
    ("promptsrc", Case("domain", "imagenet"), {**SRC, "gaussian": (6, 10)}, {**BOTH, **THREE}),
    *(
        ("promptsrc", Case("few-shot", data, shots), {**SRC, **WIDE}, {**BOTH, **NINE})
        for data in ("imagenet", "caltech101", "oxford_pets", "food101", "ucf101", "sun397", "photos", None)
        for shots in (1, 16)
    ),
    *(
        ("promptsrc", Case("few-shot", data), {**SRC, **LATE}, {**BOTH, **NINE})
        for data in ("stanford_cars", "oxford_flowers", "fgvc_aircraft", "dtd", "eurosat")
    ),
    ("provp", Case("base-to-novel", "dtd"), PROVP, {"context": 16, "carry": 0.01, "reformation": 1}),
    ("provp", Case("few-shot", "dtd", 1), {**PROVP, "epochs": 50}, FIFTY),
    ("provp", Case("few-shot", "dtd", 2), {**PROVP, "decay": 5e-4}, FIFTY),
    ("provp", Case("few-shot", "dtd", 4), {**PROVP, "decay": 5e-4}, FIFTY),
    ("provp", Case("few-shot", "dtd", 8), {**PROVP, "epochs": 200, "decay": 5e-4}, FIFTY),
    ("provp", Case("few-shot", "dtd", 16), {**PROVP, "epochs": 200, "decay": 5e-4}, FIFTY),
    ("provp", Case("few-shot", "imagenet", 16), {**PROVP, "lr": 5.0, "decay": 5e-3}, FIFTY),
    ("provp", Case("base-to-novel", "imagenet"), {**PROVP, "lr": 5.0, "decay": 5e-3}, {"context": 16}),
    ("skiptuning", Case("base-to-novel", "dtd"), {**SKIP, "warmup_epochs": 1, "warmup_lr": 1e-6}, CLASSES),
    ("skiptuning", Case("cross-dataset", "imagenet"), {**SKIP, **SLOW, "warmup_epochs": 1, "epochs": 5}, CLASSES),
    ("skiptuning", Case("domain", "imagenet"), {**SKIP, **SLOW, "warmup_epochs": 1, "epochs": 5}, CLASSES),
    ("skiptuning", Case("cross-dataset", "dtd"), {**SKIP, **SLOW, "warmup_epochs": 1}, CLASSES),
    ("skiptuning", Case("few-shot", "dtd", 1), {**SKIP, **FEW}, CLASSES),
    *(
        case
        for data in ("imagenet", "sun397", "food101")
        for case in (
            ("skiptuning", Case("base-to-novel", data), {**SKIP, "epochs": 5}, CLASSES),
            ("skiptuning", Case("few-shot", data), {**SKIP, **FEW, "epochs": 10}, CLASSES),
        )
    ),
]


def resolved(name, case):
    method = get_method(name)
    recipe = resolve(method.recipe, method.special, "own", case)
    return recipe, method.Config(**special_config(method.special, "own", case))


@pytest.mark.parametrize(
    ("name", "case", "recipe", "config"),
    PUBLISHED,
    ids=[f"{name}-{case.protocol}-{case.data}-{case.shots}" for name, case, _, _ in PUBLISHED],
)
def test_published_values(name, case, recipe, config):
    found, values = resolved(name, case)
    assert {key: getattr(found, key) for key in {**ALIKE, **recipe}} == {**ALIKE, **recipe}
    assert {key: getattr(values, key) for key in config} == config


@pytest.mark.parametrize(
    ("name", "protocol", "expected"),
    [
        ("maple", "base-to-novel", [1e-5, 3.5e-3, 3.1658e-3, 2.2908e-3, 1.2092e-3]),
        ("maple", "cross-dataset", [1e-5, 2.6e-3]),
        ("vpt", "cross-dataset", [1e-5, 2.5e-3]),
        ("skiptuning", "cross-dataset", [1e-8, 1e-5, 9.0451e-6, 6.5451e-6, 3.4549e-6]),
    ],
)
def test_rates_of_the_first_epochs(name, protocol, expected):
    recipe, _ = resolved(name, Case(protocol, "imagenet"))
    assert [rate(recipe, recipe.lr, epoch, 1, recipe.epochs) for epoch in range(recipe.epochs)] == pytest.approx(
        expected, rel=1e-4
    )


def test_the_average_leans_on_the_fifteenth_epoch():
    recipe, _ = resolved("promptsrc", Case("base-to-novel", "dtd"))
    weights = epoch_weights(recipe, recipe.epochs)
    assert max(range(20), key=weights.__getitem__) == 14  # counted from 0
    assert sum(weights) == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("maple", 3_555_072),
        ("vpt", 73_728),
        ("ivlp", 30_720),
        ("promptsrc", 46_080),
        ("provp", 147_456),
        ("skiptuning", 62_099_456),
    ],
)
def test_published_sizes(name, count):
    assert get_method(name).about.parameters == count


def test_sixty_templates():
    from dear.methods.parts.templates import SIXTY

    assert len(set(SIXTY)) == 60
    assert all(template.count("{}") == 1 for template in SIXTY)
    assert not {"a good photo of a {}.", "itap of a {}.", "a toy {}.", "the plushie {}."} & set(SIXTY)


def test_two_rates_in_two_protocols_and_one_in_the_third():
    named = {name: nn.Parameter(torch.zeros(1)) for name in ("visual.proj", "text_projection", "ln_final.weight")}
    found = {}
    for protocol in ("base-to-novel", "cross-dataset", "few-shot"):
        groups = make_optimiser(resolved("skiptuning", Case(protocol, "dtd"))[0], named).param_groups
        found[protocol] = [(group["base_lr"], len(group["params"])) for group in groups]
    assert found == {
        "base-to-novel": [(5e-6, 1), (2e-5, 2)],
        "cross-dataset": [(1e-6, 1), (1e-5, 2)],
        "few-shot": [(1e-5, 3)],
    }


def test_chances_of_ranks():
    """Five hundred classes keep 50 and about 27 more, a thousand 50 and about 57 more."""
    found = chances(12, 6, 0.3)
    assert found[:7].tolist() == [1] * 7
    assert found[-1] == 0
    assert (found[6:].diff() < 0).all()
    assert chances(2, 1, 0.3).tolist() == [1, 0]
    assert chances(3, 3, 0.3).tolist() == [1, 1, 1]
    assert [round(float(chances(count, 50, 0.3)[50:].sum())) for count in (500, 1000)] == [27, 57]
