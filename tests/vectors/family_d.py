"""CLIP-Adapter, Tip-Adapter(-F), APE(-T), Multi-Modal Adapter, linear probe: `settings` in the JSON → a case."""

import copy

import numpy as np
import torch

from dear.methods.base import Draw, unit
from dear.methods.linear_probe import Probe, published_draw
from dear.methods.recipe import Recipe
from vectors.compare import Case, classes_of, words
from vectors.mistakes_d import SPOILT as SPOILT

STEP = {"step1": 1e-6, "step2": 1e-6}
EXACT = 0.0
FIXED = {"schedule": "constant", "warmup_epochs": 0}
BY_STEP = {"schedule": "step", "warmup_epochs": 0}


def logits_of(run, names):
    """Logits of the step's images among other classes."""
    model = run.model.for_classes(words(names))
    return model(run.tensors["input/images"].float()).logits


def raw_features(run, name="input/images"):
    return run.model.clip.stock_feature(run.tensors[name].float())


# Adapters on features ------------------------------------------------------------------------------------------------


def clip_adapter(facts, tensors) -> Case:
    told = facts["settings"]
    recipe = Recipe(optimiser="sgd", lr=told["lr"], momentum=0.9, decay=5e-4, **FIXED)

    def found(run):
        return {
            "out/image_features_raw": raw_features(run),
            "out/text_features": run.model.class_features(),
            "out/logits_novel": logits_of(run, facts["novel_classes"]),
        }

    config = {"ratio": told["ratio"], "reduction": told["reduction"]}
    classes = classes_of(facts, template=told["template"])
    return Case("clip_adapter", config, classes, recipe, found=found, tolerance=STEP)


def mm_adapter(facts, tensors) -> Case:
    told, bias = facts["settings"], "step2/mha.in_proj_bias"
    config = {
        "variant": told["variant"],
        "width": told["attention_width"],
        "heads": told["heads"],
        "image_ratio": float(told["image_ratio"]),
        "text_ratio": float(told["text_ratio"]),
        **({"hidden": told["hidden"]} if told["hidden"] else {}),
    }
    recipe = Recipe(optimiser="adam", lr=told["lr"], decay=told["weight_decay"], **FIXED)
    allowed = torch.full(tensors[bias].shape, 2e-5)
    third = allowed.shape[0] // 3
    allowed[third : 2 * third] = 5e-4  # keys' bias: no gradient but rounding, which Adam amplifies

    def found(run):
        return {
            "out/image_features": unit(raw_features(run)),
            "out/text_features": run.model.class_features(),
            "out/logits_novel": logits_of(run, facts["novel_classes"]),
            "out/logits_all": logits_of(run, [*facts["classes"], *facts["novel_classes"]]),
        }

    classes = classes_of(facts, template=told["template"])
    tolerance = {"step1": 2e-5, "step2": 2e-5, bias: allowed}
    return Case("mm_adapter", config, classes, recipe, found=found, tolerance=tolerance)


# Caches --------------------------------------------------------------------------------------------------------------


def cache_config(told) -> dict:
    return {
        "templates": tuple(told["templates"]),
        "passes": told["augment_epoch"],
        "init_alpha": float(told["init_alpha"]),
        "init_beta": float(told["init_beta"]),
    }


def search_config(told, count) -> dict:
    return {
        "search_scale": tuple(float(one) for one in told["search_scale"][:count]),
        "search_steps": tuple(told["search_step"][:count]),
    }


def features(run, name) -> Draw:
    """Stored validation or test features as a draw."""
    tensors = run.tensors
    labels = tensors[f"input/{name}_labels"]
    return Draw({"feature": tensors[f"input/{name}_features"]}, labels, run.model.required_classes())


def stored_logits(run, name):
    return run.model(given=features(run, name).image).logits


def set_numbers(method, **numbers):
    for name, value in numbers.items():
        getattr(method, name).fill_(value)


def searched(run) -> dict:
    """The grid of a search, and what it finds."""
    method, clip, held = run.model.method, run.model.clip, features(run, "val")
    right = method.accuracies(clip, held)
    grid = torch.zeros(*right.shape, *stored_logits(run, "val").shape)
    values = dict(zip(method.numbers, method.tried(), strict=True))
    for place in np.ndindex(right.shape):
        chosen = {name: values[name][at] for name, at in zip(method.numbers, place, strict=True)}
        set_numbers(method, **chosen)
        grid[place] = stored_logits(run, "val")
    initial = {name: getattr(method.config, f"init_{name}") for name in method.numbers}
    set_numbers(method, **initial)
    found = method.choose(clip, held)
    return {
        "out/acc_val_grid": torch.from_numpy(right) * 100 / held.labels.shape[0],
        "out/logits_val_grid": grid,
        "found": torch.tensor([found[name] for name in method.numbers], dtype=torch.float64),
        **{f"search/{name}": torch.tensor(one) for name, one in values.items()},
    }


def best_test_logits(run, found):
    """Test logits after a search, which then is undone."""
    method = run.model.method
    before = {name: float(getattr(method, name)) for name in method.numbers}
    method.finish(run.model.clip, None, features(run, "val"))
    for name, value in zip(method.numbers, found.tolist(), strict=True):
        assert abs(float(getattr(method, name)) - value) < 1e-6
    logits = stored_logits(run, "test")
    set_numbers(method, **before)
    return logits


def told_found(facts) -> dict:
    return {"found": torch.tensor(facts["found"], dtype=torch.float64)}


@torch.no_grad()
def cached(run):
    """Give the cache of the file to the method, keeping the file's parameters."""
    method, tensors = run.model.method, run.tensors
    given = {name: p.detach().clone() for name, p in method.named_parameters()}
    labels = tensors["cache/values"].argmax(1)
    keys = given["keys"] if "keys" in given else tensors["cache/keys"].T.contiguous()
    method.remember(run.model.clip, keys, labels, run.model.required_classes())
    for name, parameter in method.named_parameters():
        parameter.data = given[name]


def weights_of(run):
    """(E, C) text weights."""
    return run.model.class_features().T


def zero_shot(run, name):
    return 100 * run.tensors[f"input/{name}_features"] @ weights_of(run)


def tip_adapter(facts, tensors) -> Case:
    told = facts["settings"]

    def prepare(run):
        passes = range(told["augment_epoch"])
        views = torch.stack([raw_features(run, f"input/cache_images.{k}") for k in passes])
        draw = Draw({"feature": views}, tensors["input/cache_labels"], run.model.required_classes())
        run.model.method.begin(run.model.clip, draw)

    @torch.no_grad()
    def found(run):
        method = run.model.method
        ours = {
            "cache/keys": method.keys.T,
            "cache/values": torch.nn.functional.one_hot(method.labels, len(facts["classes"])).float(),
            "out/clip_weights": weights_of(run),
            "out/zero_shot_val": zero_shot(run, "val"),
            "out/zero_shot_test": zero_shot(run, "test"),
            "out/logits_val_init": stored_logits(run, "val"),
            **searched(run),
        }
        return {**ours, "out/logits_test_best": best_test_logits(run, ours["found"])}

    config = {**cache_config(told), **search_config(told, 2)}
    tolerance = {"found": EXACT, "cache": 1e-5, "search": 1e-6, "out/acc_val_grid": 1e-4}
    how = {"prepare": prepare, "found": found, "told": told_found(facts), "tolerance": tolerance}
    return Case("tip_adapter", config, classes_of(facts), **how)


def tip_adapter_f(facts, tensors) -> Case:
    told = facts["settings"]
    recipe = Recipe(optimiser="adamw", lr=told["lr"], eps=1e-4, decay=0.01, **BY_STEP)

    @torch.no_grad()
    def found(run):
        ours = {
            "input/clip_weights": weights_of(run),
            "out/batch_features": unit(raw_features(run)),
            "found": searched(run)["found"],
        }
        later = copy.copy(run)
        later.model = copy.deepcopy(run.model)
        later.model.method.keys.data = tensors["step1/keys"].clone()
        return {**ours, "out/logits_test_epoch1": stored_logits(later, "test")}

    config = {**cache_config(told), **search_config(told, 2)}
    how = {
        "found": found,
        "told": told_found(facts),
        "steps": told["total_steps"],
        "prepare": cached,
        "unread": ("cache/",),
    }
    return Case("tip_adapter_f", config, classes_of(facts), recipe, **how, tolerance={**STEP, "found": EXACT})


def described(facts):
    sentences = {name: tuple(said) for name, said in facts["settings"]["cupl_prompts"].items()}
    return classes_of(facts, descriptions=sentences)


def ape(facts, tensors) -> Case:
    told = facts["settings"]

    @torch.no_grad()
    def found(run):
        from dear.methods.ape import similarity

        method, keys = run.model.method, run.model.method.keys
        ours = {
            "input/clip_weights": weights_of(run),
            "out/similarity": similarity(weights_of(run).T, keys, method.labels),
            "out/channels": method.channels,
            "out/zero_shot_test": zero_shot(run, "test"),
            "out/logits_test_init": stored_logits(run, "test"),
            **searched(run),
        }
        return {**ours, "out/logits_test_best": best_test_logits(run, ours["found"])}

    config = {
        **cache_config(told),
        **search_config(told, 3),
        "init_gamma": float(told["init_gamma"]),
        "channels": told["channels"],
        "w": tuple(told["w"]),
    }
    tolerance = {"found": EXACT, "out/channels": EXACT, "search": 1e-6, "out/similarity": 1e-6}
    how = {"found": found, "told": told_found(facts), "prepare": cached, "unread": ("cache/",), "tolerance": tolerance}
    return Case("ape", config, described(facts), **how)


def ape_t(facts, tensors) -> Case:
    told = facts["settings"]
    recipe = Recipe(optimiser="adamw", lr=told["lr"], eps=told["eps"], decay=0.1, **BY_STEP)

    @torch.no_grad()
    def found(run):
        from dear.methods.ape import best_channels, similarity

        method, keys = run.model.method, run.model.method.keys
        weights = weights_of(run).T
        with_images = similarity(weights, keys, method.labels)
        ours = {
            "input/clip_weights": weights.T,
            "out/batch_features": unit(raw_features(run)),
            "out/similarity": similarity(weights),
            "out/channels": method.channels,
            "out/channels_after_ape": best_channels(weights, with_images, method.config.w, told["channels"]),
        }
        later = copy.copy(run)
        later.model = copy.deepcopy(run.model)
        for name in ("res", "value_weights"):
            getattr(later.model.method, name).data = tensors[f"step1/{name}"].clone()
        return {**ours, "out/logits_val_epoch1": stored_logits(later, "val")}

    config = {
        **cache_config(told),
        **search_config(told, 2),
        "channels": told["channels"],
        "w": tuple(told["w"]),
    }
    tolerance = {**STEP, "out/channels": EXACT, "out/channels_after_ape": EXACT, "out/similarity": 1e-6}
    how = {
        "found": found,
        "steps": told["total_steps"],
        "prepare": cached,
        "unread": ("cache/",),
        "tolerance": tolerance,
    }
    return Case("ape_t", config, described(facts), recipe, **how)


# Linear probe --------------------------------------------------------------------------------------------------------


def linear_probe(facts, tensors) -> Case:
    """Features in the place of images: the method's own functions are asked."""
    told, names = facts["settings"], ("tried", "accuracy", "chosen", "test")
    keys = dict(zip(names, ("C_of_fits", "val_acc_of_fits", "chosen_C_per_step", "test_acc_per_step"), strict=True))
    config = {"coarse": tuple(float(C) for C in told["coarse_C"]), "steps": told["num_step"]}
    x, y = ({part: tensors[f"input/{part}_{kind}"].numpy() for part in ("train", "val", "test")} for kind in KINDS)
    theirs = {
        f"{name}.{run['shots']}shot.seed{run['seed']}": torch.tensor(run[keys[name]], dtype=torch.float64)
        for run in facts["runs"]
        for name in names
    }

    def found(run):
        ours = {}
        for one in facts["runs"]:
            where = f"{one['shots']}shot.seed{one['seed']}"
            rows, held = published_draw(
                y["train"], y["val"], one["shots"], one["seed"], told["val_shots"][str(one["shots"])]
            )
            ours |= {
                f"draw/train_index.{where}": torch.from_numpy(rows),
                f"draw/val_index.{where}": torch.from_numpy(held),
            }
            probe = Probe(x["train"][rows], y["train"][rows])
            got = probe.search(x["val"][held], y["val"][held], config["coarse"], config["steps"])
            shown = x["test"].astype(np.float64)
            right = [100 * np.mean(probe.fit(C).predict(shown) == y["test"]) for C in got.chosen]
            values = (got.tried, got.accuracy, got.chosen, right)
            ours |= {
                f"{name}.{where}": torch.tensor(value, dtype=torch.float64)
                for name, value in zip(names, values, strict=True)
            }
            if (one["shots"], one["seed"]) == (4, 1):
                ours |= full_fits(run, probe, x, y, rows)
        return ours

    tolerance = {name: EXACT for name in (*theirs, *tensors) if not name.startswith(("fit/", "input/"))}
    tolerance |= {name: 1e-9 for name in theirs if name.startswith("test")}
    tolerance |= {name: 1e-3 for name in tensors if name.startswith("fit/") and not name.endswith("objective")}
    tolerance |= {name: 1e-4 * float(t) for name, t in tensors.items() if name.endswith(".objective")}
    how = {"found": found, "told": theirs, "tolerance": tolerance}
    return Case("linear_probe", config, classes_of(facts), **how)


KINDS = ("features", "labels")


def full_fits(run, probe, x, y, rows) -> dict:
    """Fits as the method keeps and uses them."""
    ours, model = {}, run.model
    for name in sorted({name.split(".")[0] for name in run.tensors if name.startswith("fit/")}):
        C = float(name.removeprefix("fit/C"))
        fit = probe.fit(C)
        model.method.remember(fit, model.required_classes())
        trained = torch.from_numpy(fit.decision_function(x["train"][rows].astype(np.float64)))
        crossed = torch.nn.functional.cross_entropy(trained, torch.from_numpy(y["train"][rows]), reduction="sum")
        ours |= {
            f"{name}.coef": model.method.coef.clone(),
            f"{name}.intercept": model.method.intercept.clone(),
            f"{name}.decision_test": model(given={"feature": run.tensors["input/test_features"]}).logits,
            f"{name}.objective": 0.5 * torch.from_numpy(fit.coef_).square().sum() + C * crossed,
        }
    return ours


READERS = {
    "ape": ape,
    "ape_t": ape_t,
    "clip_adapter": clip_adapter,
    "linear_probe": linear_probe,
    "mm_adapter": mm_adapter,
    "tip_adapter": tip_adapter,
    "tip_adapter_f": tip_adapter_f,
}
