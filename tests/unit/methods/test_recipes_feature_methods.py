"""Published values of the methods on finished features, as data."""

import pytest

import dear
from dear.data.prompts import class_list
from dear.engine.optim import rate
from dear.methods.gda import ALPHAS
from dear.methods.parts.class_features import SEVEN, usual_templates
from dear.methods.recipe import Case, Recipe, resolve, special_config

TIP = """
imagenet 1.17 7 3
caltech101 3 12 5
oxford_pets 1.17 7 3
stanford_cars 3 20 10
oxford_flowers 10 50 50
food101 1.17 10 10
fgvc_aircraft 5 30 30
sun397 1.17 12 10
dtd 2 13 13
eurosat 2 12 10
ucf101 3 7 3
textures 1.17 7 3
"""
# channels of 1024 of ape and ape_t, w, initial α, scales of β, α, γ, then rate, eps and epochs of ape_t
APE = """
imagenet 500 500 .7 .3 2 7 7 0.5 1e-4 .001 20
caltech101 800 900 .5 .5 1 7 7 1 1e-3 .001 30
oxford_pets 800 800 .7 .3 2 7 7 1 1e-4 .002 30
stanford_cars 500 800 .6 .4 1 10 7 1 1e-3 .005 30
oxford_flowers 700 800 .4 .6 3 7 7 1 1e-3 .001 60
food101 700 900 .3 .7 0.8 7 7 1 1e-4 .001 30
fgvc_aircraft 800 900 .1 .9 5 20 10 1 1e-3 .001 30
sun397 800 800 .7 .3 1 10 7 1 1e-4 .001 30
dtd 400 700 .5 .5 3 7 7 1 1e-3 .001 20
eurosat 700 900 .9 .1 1 30 5 1.5 1e-3 .001 200
ucf101 700 800 .3 .7 2 10 7 1.5 1e-3 .002 30
textures 512 512 .7 .3 2 7 7 0.5 1e-4 .001 20
"""


def rows(text):
    return [(name, *map(float, numbers)) for name, *numbers in map(str.split, text.strip().splitlines())]


def resolved(name, protocol=None, data=None, shots=16, which="own"):
    """Recipe and config as a training would have them."""
    method, case = dear.get_method(name), Case(protocol, data, shots)
    config = method.Config(**special_config(method.special, which, case))
    return resolve(method.recipe, method.special, which, case), config


@pytest.mark.parametrize(("data", "alpha", "beta_scale", "alpha_scale"), rows(TIP))
def test_tip_adapter(data, alpha, beta_scale, alpha_scale):
    for name in ("tip_adapter", "tip_adapter_f"):
        for shots in (1, 16):
            recipe, config = resolved(name, "few-shot", data, shots)
            assert (config.init_alpha, config.init_beta, config.passes) == (alpha, 1, 10)
            assert config.search_scale == (beta_scale, alpha_scale)
            assert config.search_steps == (200, 20)
            assert recipe.crop == (0.5, 1.0)
    assert recipe == Recipe(
        optimiser="adamw",
        lr=1e-3,
        eps=1e-4,
        decay=0.01,
        batch_size=256,
        epochs=100 if data == "eurosat" else 20,
        warmup_epochs=0,
        schedule="step",
    )


@pytest.mark.parametrize("row", rows(APE), ids=lambda row: row[0])
def test_ape(row):
    data, few, more, w0, w1, alpha, beta_scale, alpha_scale, gamma_scale, lr, eps, epochs = row
    recipe, config = resolved("ape", "few-shot", data)
    assert (config.count(1024), config.count(512), config.w) == (few, few // 2, (w0, w1))
    assert (config.init_alpha, config.init_beta, config.init_gamma, config.passes) == (alpha, 1, 0.1, 10)
    assert config.search_scale == (beta_scale, alpha_scale, gamma_scale)
    assert config.search_steps == (200, 20, 5 if data in ("imagenet", "textures") else 20)
    assert recipe.epochs == 0
    recipe, config = resolved("ape_t", "few-shot", data)
    assert (config.count(1024), config.w, config.init_alpha) == (more, (0.2, 0.8), alpha)
    assert (config.search_scale, config.search_steps) == ((beta_scale, alpha_scale), (200, 20))
    expected = {"lr": lr, "eps": eps, "epochs": int(epochs), "decay": 0.1, "batch_size": 256, "optimiser": "adamw"}
    assert recipe == Recipe(**expected, warmup_epochs=0, schedule="step")


@pytest.mark.parametrize(("shots", "eps"), [(1, 0.01), (2, 0.01), (4, 0.001)])
def test_ape_t_on_food(shots, eps):
    assert resolved("ape_t", "few-shot", "food101", shots)[0].eps == eps


def test_the_rate_falls_with_every_step():
    recipe, _ = resolved("tip_adapter_f")
    found = [rate(recipe, recipe.lr, step, 2, 4) for step in range(4)]
    assert found == pytest.approx([1e-3, 8.5355e-4, 5e-4, 1.4645e-4], rel=1e-4)


@pytest.mark.parametrize(
    ("protocol", "data", "shots", "epochs"),
    [
        ("base-to-novel", "dtd", 16, 200),
        ("few-shot", "dtd", 16, 200),
        ("few-shot", "dtd", 8, 200),
        ("few-shot", "dtd", 4, 100),
        ("few-shot", "dtd", 2, 100),
        ("few-shot", "dtd", 1, 50),
        ("few-shot", "imagenet", 16, 50),
        ("cross-dataset", "imagenet", 16, 50),
    ],
)
def test_clip_adapter(protocol, data, shots, epochs):
    recipe, config = resolved("clip_adapter", protocol, data, shots)
    assert (config.ratio, config.reduction) == (0.2, 4)
    published = {"optimiser": "sgd", "lr": 2e-3, "momentum": 0.9, "decay": 5e-4, "batch_size": 32, "drop_last": True}
    assert recipe == Recipe(**published, crop=(0.08, 1.0), epochs=epochs)
    assert [rate(recipe, 2e-3, step, 1, epochs) for step in (0, 1)] == [1e-5, 2e-3]


def test_mm_adapter():
    recipe, config = resolved("mm_adapter", "base-to-novel", "oxford_pets")
    published = {"optimiser": "adam", "lr": 5e-3, "decay": 1e-4, "batch_size": 256, "epochs": 200, "patience": 20}
    assert recipe == Recipe(**published, warmup_epochs=0, schedule="constant", augment=False)
    assert (config.variant, config.width, config.heads, config.hidden) == ("additive", 256, 4, 32)
    assert (config.image_ratio, config.text_ratio) == (0.2, 0.2)
    shared, config = resolved("mm_adapter", which="shared")
    assert (shared, config.width) == (Recipe(), 128)


def test_linear_probe():
    recipe, config = resolved("linear_probe")
    assert recipe.epochs == 0
    assert config.coarse == (1e6, 1e4, 1e2, 1, 1e-2, 1e-4, 1e-6)
    assert (config.steps, config.max_iter) == (8, 1000)


@pytest.mark.parametrize("protocol", ["few-shot", "base-to-novel", "domain"])
@pytest.mark.parametrize(
    ("data", "lr", "alpha"), [("imagenet", 2e-4, 0.5), ("oxford_flowers", 2e-3, 1.0), ("dtd", 2e-3, 0.5)]
)
def test_taskres(protocol, data, lr, alpha):
    published = {"optimiser": "adam", "decay": 5e-4, "batch_size": 256, "drop_last": True, "crop": (0.08, 1.0)}
    for shots, epochs in ((1, 100), (4, 100), (8, 200), (16, 200)):
        recipe, config = resolved("taskres", protocol, data, shots)
        assert recipe == Recipe(**published, lr=lr, epochs=epochs)
        assert config.alpha == alpha
    assert [rate(recipe, lr, step, 1, 200) for step in (0, 1)] == [1e-5, lr]
    assert resolved("taskres", data=data, which="shared") == (Recipe(), dear.get_method("taskres").Config())


def test_clap():
    published = {"optimiser": "sgd", "lr": 0.1, "momentum": 0.9, "decay": 0.0, "batch_size": 256, "drop_last": True}
    for protocol, data, shots in (("few-shot", "imagenet", 1), ("domain", "imagenet", 16), ("few-shot", "dtd", 8)):
        recipe, config = resolved("clap", protocol, data, shots)
        assert recipe == Recipe(**published, crop=(0.08, 1.0), epochs=300)
        assert config.passes == 20
    assert resolved("clap", which="shared")[1].passes == 10


@pytest.mark.parametrize(
    ("protocol", "estimator", "neighbours"),
    [("few-shot", "pooled", 0), ("base-to-novel", "by_class", 64), (None, "by_class", 64)],
)
def test_gda(protocol, estimator, neighbours):
    recipe, config = resolved("gda", protocol, "dtd")
    assert (recipe.epochs, recipe.crop, config.passes) == (0, (0.5, 1.0), 10)
    assert (config.estimator, config.neighbours, config.text_copies, config.alpha) == (estimator, neighbours, 16, 0.1)
    assert ALPHAS == (1e-4, 1e-3, 1e-2, 1e-1, 1, 10, 100)


def test_lppp():
    recipe, config = resolved("lppp", "few-shot", "imagenet", 1)
    assert (recipe.epochs, recipe.crop) == (0, (0.5, 1.0))
    assert (config.epochs, config.alpha_every) == (300, 10)


def test_templates_of_data_sets():
    def of(data, template="a photo of a {}.", given=()):
        return usual_templates(class_list(["cat"], template, dataset=data), given)

    assert len(SEVEN) == 7
    assert of("imagenet") == of("imagenet_sketch") == SEVEN
    assert of("dtd", "{} texture.") == ("{} texture.",)
    assert of(None, "my {}.") == ("my {}.",)
    assert of("imagenet", "my {}.") == ("my {}.",)
    assert of("imagenet", given=("a {}.",)) == ("a {}.",)
