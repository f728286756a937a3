"""Published values of CoOp, KgCoOp, CoCoOp, ProGrad, ATPrompt and TCP, as data."""

import pytest

import dear
from dear.data.prompts import class_list
from dear.engine.optim import rate
from dear.methods.atprompt import ATTRIBUTES
from dear.methods.kgcoop import target_template
from dear.methods.prograd import TEMPLATES, words_of
from dear.methods.recipe import Case, resolve, special_config
from dear.methods.tcp import FROZEN, frozen_template, learned_template

ALL = {
    *("imagenet", "caltech101", "oxford_pets", "stanford_cars", "oxford_flowers", "food101", "fgvc_aircraft"),
    *("sun397", "dtd", "eurosat", "ucf101", "imagenetv2", "imagenet_sketch", "imagenet_a", "imagenet_r"),
}
NOVEL, FEW, CROSS, DOMAIN = "base-to-novel", "few-shot", "cross-dataset", "domain"
MAPLE = {"base": "maple"}
SGD = {"optimiser": "sgd", "lr": 2e-3, "momentum": 0.9, "decay": 5e-4, "batch_size": 32, "drop_last": True}
OTHERS = {"crop": (0.08, 1.0), "warmup_epochs": 1, "warmup_lr": 1e-5, "schedule": "epoch", "last_lr": 0.0}


def published(name, *case, **asked):
    """Recipe and config for (protocol, data set, shots), as a job makes them."""
    method, which = dear.get_method(name), Case(*case, asked)
    recipe = resolve(method.recipe, method.special, "own", which)
    return recipe, method.Config(**{**special_config(method.special, "own", which), **asked})


@pytest.mark.parametrize(
    ("name", "differing"),
    [
        ("coop", {"epochs": 200}),
        ("kgcoop", {"batch_size": 128, "epochs": 100}),
        ("cocoop", {"batch_size": 1, "epochs": 10}),
        ("prograd", {"epochs": 100}),
        ("atprompt", {"epochs": 100}),
        ("tcp", {"optimiser": "adam", "eps": 1e-3, "betas": (0.9, 0.999), "epochs": 50}),
    ],
)
def test_the_training_that_all_share(name, differing):
    published = dear.get_method(name).recipe.model_dump()
    expected = {**SGD, **OTHERS, "average": None, "clip_norm": None, "groups": {}, **differing}
    assert {field: published[field] for field in expected} == expected


EPOCHS = [
    *[("coop", (NOVEL, "dtd", 16), 200), ("coop", (NOVEL, "imagenet", 16), 50)],
    *[("coop", (FEW, "dtd", shots), epochs) for shots, epochs in ((16, 200), (8, 200), (4, 100), (2, 100), (1, 50))],
    *[("coop", (FEW, "imagenet", shots), 50) for shots in (16, 4, 1)],
    *[("coop", (protocol, "imagenet", 16), 50) for protocol in (CROSS, DOMAIN)],
    *[
        ("kgcoop", (protocol, data, shots), 100)
        for protocol in (NOVEL, FEW)
        for data in ("dtd", "imagenet")
        for shots in (4, 16)
    ],
    *[("cocoop", (protocol, "imagenet", 16), 10) for protocol in (NOVEL, CROSS, DOMAIN)],
    *[("prograd", (FEW, "sun397", shots), epochs) for shots, epochs in ((16, 200), (8, 200), (4, 100), (2, 100))],
    *[("prograd", (FEW, "sun397", 1), 50), ("prograd", (FEW, "imagenet", 16), 50)],
    *[("prograd", (NOVEL, "sun397", 4), 100), ("prograd", (NOVEL, "imagenet", 4), 50)],
    *[("prograd", (protocol, "imagenet", 4), 50) for protocol in (CROSS, DOMAIN)],
    *[("atprompt", (NOVEL, "dtd", 16), 100), ("atprompt", (NOVEL, "imagenet", 16), 10)],
    *[("atprompt", (protocol, "imagenet", 16), 10) for protocol in (CROSS, DOMAIN)],
    *[("tcp", (NOVEL, "dtd", 16), 50), ("tcp", (NOVEL, "imagenet", 16), 25), ("tcp", (NOVEL, "sun397", 16), 25)],
    *[("tcp", (protocol, "imagenet", 16), 25) for protocol in (CROSS, DOMAIN)],
    *[("tcp", (None, "mine", 3), 50), ("coop", (None, "mine", 3), 200)],
]


@pytest.mark.parametrize(("name", "case", "epochs"), EPOCHS)
def test_epochs(name, case, epochs):
    assert published(name, *case)[0].epochs == epochs


@pytest.mark.parametrize(
    ("protocol", "words", "length"),
    [(NOVEL, "a photo of a", 4), (CROSS, "a photo of a", 4), (DOMAIN, "a photo of a", 4), (FEW, "", 16)],
)
def test_context_of_coop(protocol, words, length):
    config = published("coop", protocol, "imagenet", 16)[1]
    assert (config.words, config.length, config.position, config.per_class) == (words, length, "end", False)


def test_context_of_cocoop():
    config = published("cocoop", NOVEL, "dtd", 16)[1]
    assert (config.words, config.length) == ("a photo of a", 4)


def test_words_of_prograd():
    assert set(TEMPLATES) == ALL
    for name, count in {"oxford_pets": 8, "food101": 7, "dtd": 3, "eurosat": 5, "ucf101": 6, "imagenet": 4}.items():
        config = published("prograd", NOVEL, name, 4)[1]
        assert config.words == words_of(TEMPLATES[name])
        assert len(config.words.split()) == count
        assert (config.length, config.strength, config.temperature) == (16, 1.0, 1.0)
    assert published("prograd", NOVEL, "mine", 4)[1].words == "a photo of a"


@pytest.mark.parametrize("name", sorted(ALL))
def test_strength_of_prograd(name):
    weaker = name in ("oxford_flowers", "dtd", "eurosat")
    for shots in (8, 16):
        assert published("prograd", FEW, name, shots)[1].strength == (0.8 if weaker else 1.0)
    assert published("prograd", FEW, name, 4)[1].strength == 1.0
    assert published("prograd", NOVEL, name, 16)[1].strength == 1.0


def test_attributes_and_lengths_of_atprompt():
    assert set(ATTRIBUTES) == ALL
    lengths = {name: published("atprompt", NOVEL, name, 16)[1].context for name in ALL}
    assert {name for name, length in lengths.items() if length != 2} == {"dtd"}
    assert lengths["dtd"] == published("atprompt", CROSS, "imagenet", 16)[1].context == 4
    assert published("atprompt", DOMAIN, "imagenet", 16)[1].before_each == 4


MAPLE_CASES = {
    **dict.fromkeys(("caltech101", "oxford_pets", "oxford_flowers", "eurosat"), (4, 10)),
    **dict.fromkeys(("imagenet", "stanford_cars", "food101", "sun397", "dtd"), (4, 5)),
    **dict.fromkeys(("fgvc_aircraft", "ucf101"), (2, 5)),
}


@pytest.mark.parametrize("name", MAPLE_CASES)
def test_atprompt_on_maple(name):
    recipe, config = published("atprompt", NOVEL, name, 16, **MAPLE)
    assert (recipe.lr, recipe.batch_size, config.depth) == (3.5e-3, 4, 9)
    assert (config.context, recipe.epochs) == MAPLE_CASES[name]


@pytest.mark.parametrize("protocol", [CROSS, DOMAIN])
def test_atprompt_on_maple_at_the_source(protocol):
    recipe, config = published("atprompt", protocol, "imagenet", 16, **MAPLE)
    assert (recipe.lr, recipe.batch_size, recipe.epochs) == (2.6e-3, 4, 2)
    assert (config.depth, config.context, config.before_each) == (3, 4, 4)


def test_what_was_asked_for_wins():
    assert published("atprompt", NOVEL, "dtd", 16, context=7)[1].context == 7
    assert published("atprompt", NOVEL, "dtd", 16, base="coop")[0].lr == 2e-3


TCP_PROMPTS = {
    "oxford_pets": ("a photo of a {}, a type of pet.", "X X X X {}, a type of pet."),
    "oxford_flowers": ("a photo of a {}, a type of flower.", "X X X X {}, a type of flower."),
    "fgvc_aircraft": ("a photo of an aircraft {}.", "X X X X {}, a type of aircraft."),
    "dtd": ("a photo of a {}, a type of texture.", "X X X X {} texture."),
    "eurosat": ("a centered satellite photo of {}.", "X X X X {}."),
    "stanford_cars": ("a photo of a {}.", "X X X X {}, a type of car"),
    "food101": ("a photo of a {}, a type of food.", "X X X X {}, a type of food."),
    "sun397": ("a photo of a {}.", "X X X X {}."),
    "caltech101": ("a photo of a {}.", "X X X X {}."),
    "ucf101": ("a photo of a person doing {}.", "a photo of a person doing {}."),
    "imagenet": ("a photo of a {}.", "a photo of a {}."),
    "imagenet_r": ("a photo of a {}.", "a photo of a {}."),
    "mine": ("an x-ray of {} in a child.", "X X X X {} in a child."),
}


@pytest.mark.parametrize("name", TCP_PROMPTS)
def test_prompts_of_tcp(name):
    assert set(FROZEN) == ALL
    classes = dear.data.prompts.class_list(["a"], "an x-ray of {} in a child.", dataset=name)
    assert (frozen_template(classes), learned_template(classes)) == TCP_PROMPTS[name]


def test_templates_that_kgcoop_stays_near():
    def of(data, template="a photo of a {}."):
        return target_template(class_list(["cat"], template, dataset=data))

    assert of("dtd", "{} texture.") == "a photo of a {}, a type of texture."
    assert of("oxford_pets", "a photo of a {}, a type of pet.") == "a photo of a {}, a type of pet."
    assert of("imagenet") == of("imagenet_a") == "a photo of a {}."
    assert of(None, "my {}.") == "my {}."
    assert dear.get_method("kgcoop").Config().weight == 8


def test_the_first_rates():
    recipe = published("cocoop", NOVEL, "dtd", 16)[0]
    found = [rate(recipe, recipe.lr, epoch * 7, 7, 70) for epoch in range(10)]
    assert [float(f"{one:.4g}") for one in found[:4]] == [1e-5, 2e-3, 1.951e-3, 1.809e-3]
    assert found[-1] == pytest.approx(1.910e-4, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "count"),
    [("coop", 2_048), ("kgcoop", 2_048), ("cocoop", 35_360), ("prograd", 8_192), ("atprompt", 4_096), ("tcp", 331_904)],
)
def test_parameters_told(name, count):
    assert dear.get_method(name).about.parameters == count
