"""Published settings of MMRL, MMRL++, TAC, PromptKD by protocol, data set and shots, and their sizes on ViT-B/16."""

from types import SimpleNamespace

import pytest
import torch

import dear
from dear.engine.optim import rate, total_steps
from dear.methods.recipe import SHARED, Case, resolve, special_config

BASE, FEW, CROSS, DOMAIN = "base-to-novel", "few-shot", "cross-dataset", "domain"
DASSL = {"momentum": 0.9, "decay": 5e-4, "warmup_lr": 1e-5, "schedule": "epoch", "drop_last": True, "clip_norm": None}


def recipe_of(method, protocol=BASE, data="dtd", shots=16):
    method = dear.get_method(method)
    return resolve(method.recipe, method.special, "own", Case(protocol, data, shots))


def config_of(method, protocol=BASE, data="dtd", shots=16):
    method = dear.get_method(method)
    return method.Config(**special_config(method.special, "own", Case(protocol, data, shots)))


def rates(recipe):
    last = total_steps(recipe, 1, 16)
    return [float(f"{rate(recipe, recipe.lr, step, 1, last):.3g}") for step in range(last)]


def shown(values, published):
    return {name: getattr(values, name) for name in published}


RECIPES = [
    ("mmrl", BASE, "dtd", {"optimiser": "adamw", "lr": 1e-3, "batch_size": 4, "epochs": 10, "warmup_epochs": 1}),
    ("mmrl", BASE, "imagenet", {"batch_size": 32, "epochs": 5, "lr": 1e-3, "warmup_epochs": 1}),
    ("mmrl", FEW, "dtd", {"batch_size": 32, "epochs": 50, "lr": 1e-3, "warmup_epochs": 1}),
    ("mmrl", FEW, "imagenet", {"batch_size": 32, "epochs": 5, "lr": 1e-3, "warmup_epochs": 1}),
    ("mmrl", CROSS, "imagenet", {"batch_size": 32, "epochs": 1, "lr": 1e-3, "warmup_epochs": 0}),
    ("mmrl", DOMAIN, "imagenet", {"batch_size": 32, "epochs": 1, "lr": 1e-3, "warmup_epochs": 0}),
    ("mmrl", BASE, "dtd", {**DASSL, "crop": (0.5, 1.0), "betas": (0.9, 0.999), "eps": 1e-8, "average": None}),
    ("mmrlpp", BASE, "dtd", {"optimiser": "adamw", "lr": 1e-3, "batch_size": 4, "epochs": 10, "warmup_epochs": 1}),
    ("mmrlpp", BASE, "imagenet", {"batch_size": 32, "epochs": 5, "lr": 1e-3}),
    ("mmrlpp", FEW, "dtd", {"batch_size": 32, "epochs": 100, "lr": 2e-3}),
    ("mmrlpp", FEW, "imagenet", {"batch_size": 32, "epochs": 5, "lr": 1e-3}),
    ("mmrlpp", CROSS, "imagenet", {"batch_size": 32, "epochs": 1, "lr": 1e-3, "warmup_epochs": 0}),
    ("tac", BASE, "dtd", {**DASSL, "optimiser": "sgd", "lr": 2.5e-3, "batch_size": 8, "epochs": 20}),
    ("tac", BASE, "dtd", {"crop": (0.4, 1.0), "average": "equal", "warmup_epochs": 1}),
    ("tac", FEW, "dtd", {"epochs": 20, "crop": (0.4, 1.0)}),
    ("tac", CROSS, "imagenet", {"epochs": 5, "crop": (0.8, 1.0), "batch_size": 8, "average": "equal"}),
    ("promptkd", BASE, "dtd", {**DASSL, "optimiser": "sgd", "lr": 5e-3, "batch_size": 8, "epochs": 20}),
    ("promptkd", CROSS, "imagenet", {"crop": (0.08, 1.0), "average": None, "warmup_epochs": 1, "epochs": 20}),
]


@pytest.mark.parametrize(("method", "protocol", "data", "published"), RECIPES)
def test_published_recipes(method, protocol, data, published):
    assert shown(recipe_of(method, protocol, data), published) == published


CONFIGS = [
    ("mmrl", BASE, "stanford_cars", {"reg_weight": 7.0, "width": 512, "tokens": 5, "alpha": 0.7}),
    ("mmrl", FEW, "eurosat", {"reg_weight": 0.01, "width": 2048}),
    ("mmrl", BASE, "imagenet", {"reg_weight": 0.5}),
    ("mmrl", CROSS, "imagenet", {"reg_weight": 0.2}),
    ("mmrl", BASE, "somebody's", {"reg_weight": 4.0, "layers": (6, 7, 8, 9, 10, 11, 12)}),
    ("mmrlpp", BASE, "food101", {"reg_weight": 1.0, "beta": 0.1, "rank": 4, "projection_rank": 64}),
    ("mmrlpp", FEW, "eurosat", {"reg_weight": 0.01, "beta": 0.2, "width": 512}),
    ("mmrlpp", DOMAIN, "imagenet", {"reg_weight": 0.1, "beta": 0.9}),
    ("mmrlpp", BASE, "somebody's", {"reg_weight": 3.0, "beta": 0.7}),
    ("tac", BASE, "dtd", {"clusters": 5, "text_context": 5, "vision_context": 5, "text_depth": 12, "views": 4}),
    ("tac", BASE, "dtd", {"text_weight": 20.0, "image_weight": 25.0, "dropout": 0.3, "vision_depth": 12}),
    ("promptkd", BASE, "food101", {"context": 4, "depth": 9, "temperature": 1.0, "weight": 1000.0}),
    *(("promptkd", BASE, data, {"weight": 200.0}) for data in ("fgvc_aircraft", "oxford_flowers", "dtd")),
    ("promptkd", CROSS, "dtd", {"depth": 3, "weight": 1000.0}),
    ("tac", DOMAIN, "imagenet", {"text_context": 10, "vision_context": 10, "clusters": 5}),
]


@pytest.mark.parametrize(("method", "protocol", "data", "published"), CONFIGS)
def test_published_configs(method, protocol, data, published):
    assert shown(config_of(method, protocol, data), published) == published


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("mmrl", {"reg_weight": [0.5, 0.5, 0.2, 7, 4, 5, 6, 6, 6, 0.01, 3]}),
        (
            "mmrlpp",
            {
                "reg_weight": [0.2, 3, 0.01, 6, 7, 1, 2, 3, 7, 0.01, 3],
                "beta": [0.9, 0.6, 0.7, 0.7, 0.4, 0.1, 0.9, 0.5, 0.9, 0.2, 0.9],
            },
        ),
    ],
)
def test_values_by_data_set(method, values):
    sets = ["imagenet", "caltech101", "oxford_pets", "stanford_cars", "oxford_flowers", "food101", "fgvc_aircraft"]
    sets += ["sun397", "dtd", "eurosat", "ucf101"]
    for field, published in values.items():
        assert [getattr(config_of(method, data=data), field) for data in sets] == published


@pytest.mark.parametrize(
    ("method", "protocol", "data", "first"),
    [
        ("mmrl", BASE, "dtd", [1e-5, 1e-3, 9.76e-4]),
        ("mmrl", CROSS, "imagenet", [1e-3]),
        ("mmrlpp", FEW, "dtd", [1e-5, 2e-3, 2e-3]),
        ("tac", BASE, "dtd", [1e-5, 2.5e-3, 2.48e-3]),
        ("promptkd", BASE, "dtd", [1e-5, 5e-3, 4.97e-3]),
    ],
)
def test_rates_of_the_first_epochs(method, protocol, data, first):
    assert rates(recipe_of(method, protocol, data))[: len(first)] == first


def test_the_shared_recipe_is_untouched():
    for name in ("mmrl", "mmrlpp", "tac", "promptkd"):
        method = dear.get_method(name)
        assert resolve(method.recipe, method.special, "shared", Case(CROSS, "imagenet")) == SHARED
        assert special_config(method.special, "shared", Case(CROSS, "imagenet")) == {}


class Sizes:
    """What a method asks of ViT-B/16 when it is made."""

    pool = SimpleNamespace(kind="token")
    vision = SimpleNamespace(width=768, depth=12, projection=torch.zeros(768, 512), rows=197, prefix=1, pool=pool)
    text = SimpleNamespace(
        width=512,
        depth=12,
        first=1,
        positions=torch.zeros(77, 512),
        tokenize=lambda prompts: SimpleNamespace(ids_CT=torch.zeros(1, 77, dtype=torch.int64)),
        embed=lambda ids: torch.zeros(*ids.shape, 512),
    )
    geometry = SimpleNamespace(embed_dim=512)
    model = SimpleNamespace(visual=SimpleNamespace(preprocess_cfg={"size": 224}))


def count(method, **config):
    method = dear.get_method(method)
    return sum(p.numel() for p in method(Sizes, method.Config(**config)).parameters())


@pytest.mark.parametrize("method", ["mmrl", "mmrlpp", "tac"])
def test_sizes_on_vit_b_16(method):
    assert count(method) == dear.get_method(method).about.parameters


def test_the_size_of_promptkd_with_a_larger_teacher():
    config = dear.get_method("promptkd").Config()
    teacher = SimpleNamespace(clip=SimpleNamespace(geometry=SimpleNamespace(embed_dim=768), model=Sizes.model))
    made = dear.get_method("promptkd")(Sizes, config, companions={"teacher": teacher})
    assert sum(p.numel() for p in made.parameters()) == 1_013_760


def test_the_size_on_eurosat():
    assert count("mmrl", width=2048) == 18_762_496
