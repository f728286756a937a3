"""Published values of MaPLe, VPT, IVLP and PromptSRC, as data."""

import pytest

from dear.engine.optim import epoch_weights, rate
from dear.methods.recipe import Case, resolve, special_config
from dear.methods.registry import get_method

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
    found, told = resolved(name, case)
    assert {key: getattr(found, key) for key in {**ALIKE, **recipe}} == {**ALIKE, **recipe}
    assert {key: getattr(told, key) for key in config} == config


@pytest.mark.parametrize(
    ("name", "protocol", "expected"),
    [
        ("maple", "base-to-novel", [1e-5, 3.5e-3, 3.1658e-3, 2.2908e-3, 1.2092e-3]),
        ("maple", "cross-dataset", [1e-5, 2.6e-3]),
        ("vpt", "cross-dataset", [1e-5, 2.5e-3]),
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


@pytest.mark.parametrize(("name", "count"), [("maple", 3_555_072), ("vpt", 73_728), ("ivlp", 30_720)])
def test_published_sizes(name, count):
    assert get_method(name).about.parameters == count


def test_sixty_templates():
    from dear.methods.templates import SIXTY

    assert len(set(SIXTY)) == 60
    assert all(template.count("{}") == 1 for template in SIXTY)
    assert not {"a good photo of a {}.", "itap of a {}.", "a toy {}.", "the plushie {}."} & set(SIXTY)
