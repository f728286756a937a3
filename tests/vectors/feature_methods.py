"""CLIP-Adapter, Tip-Adapter(-F), APE(-T), Multi-Modal Adapter, linear probe: `settings` in the JSON → a case."""

import copy

import numpy as np
import torch

from dear.methods.base import Draw, unit
from dear.methods.recipe import Recipe
from vectors.compare import Case, classes_of, optimiser_numbers, words
from vectors.feature_mistakes import SPOILT as SPOILT
from vectors.linear_probe import linear_probe

STEP = {"step1": 1e-6, "step2": 1e-6}
EXACT = 0.0
FIXED = {"schedule": "constant", "warmup_epochs": 0}
BY_STEP = {"schedule": "step", "warmup_epochs": 0}


def other_logits(run, name, names) -> dict:
    """Logits of the step's images among other classes, if the file has them."""
    if name not in run.tensors:
        return {}
    model = run.model.for_classes(words(names))
    return {name: model(run.tensors["input/images"].float()).logits}


def raw_features(run, name="input/images"):
    return run.model.clip.stock_feature(run.tensors[name].float())


# Adapters on features ------------------------------------------------------------------------------------------------


def clip_adapter(facts, tensors) -> Case:
    settings = facts["settings"]
    numbers = {"momentum": 0.9, "decay": 5e-4, **optimiser_numbers(facts)}
    recipe = Recipe(optimiser="sgd", lr=settings["lr"], **numbers, **FIXED)

    def found(run):
        return {
            "out/image_features_raw": raw_features(run),
            "out/text_features": run.model.class_features(),
            **other_logits(run, "out/logits_novel", facts.get("novel_classes", ())),
        }

    config = {"ratio": settings["ratio"], "reduction": settings["reduction"]}
    classes = classes_of(facts, template=settings["template"])
    return Case("clip_adapter", config, classes, recipe, found=found, tolerance=STEP)


def mm_adapter(facts, tensors) -> Case:
    settings, bias = facts["settings"], "step2/mha.in_proj_bias"
    config = {
        "variant": settings["variant"],
        "width": settings["attention_width"],
        "heads": settings["heads"],
        "image_ratio": float(settings["image_ratio"]),
        "text_ratio": float(settings["text_ratio"]),
        **({"hidden": settings["hidden"]} if settings["hidden"] else {}),
    }
    numbers = {**optimiser_numbers(facts), "decay": settings["weight_decay"]}
    recipe = Recipe(optimiser="adam", lr=settings["lr"], **numbers, **FIXED)
    novel = facts.get("novel_classes", ())
    allowed = torch.full(tensors[bias].shape, 2e-5)
    third = allowed.shape[0] // 3
    allowed[third : 2 * third] = 5e-4  # keys' bias: no gradient but rounding, which Adam amplifies

    def found(run):
        return {
            "out/image_features": unit(raw_features(run)),
            "out/text_features": run.model.class_features(),
            **other_logits(run, "out/logits_novel", novel),
            **other_logits(run, "out/logits_all", [*facts["classes"], *novel]),
        }

    classes = classes_of(facts, template=settings["template"])
    tolerance = {"step1": 2e-5, "step2": 2e-5, bias: allowed}
    return Case("mm_adapter", config, classes, recipe, found=found, tolerance=tolerance)


# Caches --------------------------------------------------------------------------------------------------------------


def cache_config(settings) -> dict:
    return {
        "templates": tuple(settings["templates"]),
        "passes": settings["augment_epoch"],
        "init_alpha": float(settings["init_alpha"]),
        "init_beta": float(settings["init_beta"]),
    }


def search_config(settings, count) -> dict:
    return {
        "search_scale": tuple(float(one) for one in settings["search_scale"][:count]),
        "search_steps": tuple(settings["search_step"][:count]),
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


def found_by(method, right) -> list[float]:
    """What the published search finds: the first best, 0 if nothing is right. Ours keeps the initial numbers if all
    are equally good, but is otherwise the same.
    """
    first = np.unravel_index(right.argmax(), right.shape)
    return [tried[at] if right.any() else 0.0 for tried, at in zip(method.tried(), first, strict=True)]


def undecided(right) -> bool:
    return right.min() == right.max()


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
    found = found_by(method, right) if undecided(right) else list(method.choose(clip, held).values())
    return {
        "out/acc_val_grid": torch.from_numpy(right) * 100 / held.labels.shape[0],
        "out/logits_val_grid": grid,
        "found": torch.tensor(found, dtype=torch.float64),
        **{f"search/{name}": torch.tensor(one) for name, one in values.items()},
    }


def best_test_logits(run, found):
    """Test logits after a search, which then is undone."""
    method = run.model.method
    before = {name: float(getattr(method, name)) for name in method.numbers}
    theirs = dict(zip(method.numbers, found.tolist(), strict=True))
    method.finish(run.model.clip, None, features(run, "val"))
    if undecided(method.accuracies(run.model.clip, features(run, "val"))):
        set_numbers(method, **theirs)
    for name, value in theirs.items():
        kept = getattr(method, name)
        assert float(kept) == float(torch.tensor(value, dtype=kept.dtype))
    logits = stored_logits(run, "test")
    set_numbers(method, **before)
    return logits


def expected_numbers(facts) -> dict:
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
    settings = facts["settings"]

    def prepare(run):
        passes = range(settings["augment_epoch"])
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

    config = {**cache_config(settings), **search_config(settings, 2)}
    tolerance = {"found": EXACT, "cache": 1e-5, "search": 1e-6, "out/acc_val_grid": 1e-4}
    how = {"prepare": prepare, "found": found, "expected": expected_numbers(facts), "tolerance": tolerance}
    return Case("tip_adapter", config, classes_of(facts), **how)


def tip_adapter_f(facts, tensors) -> Case:
    settings = facts["settings"]
    recipe = Recipe(
        optimiser="adamw", lr=settings["lr"], **{"eps": 1e-4, "decay": 0.01, **optimiser_numbers(facts)}, **BY_STEP
    )

    def after(run, step):
        later = copy.copy(run)
        later.model = copy.deepcopy(run.model)
        later.model.method.keys.data = tensors[f"step{step}/keys"].clone()
        return later

    @torch.no_grad()
    def found(run):
        epoch = settings.get("selected_epoch_by_peer", settings["total_steps"] - 1)  # from 0, of one step each
        return {
            "input/clip_weights": weights_of(run),
            "out/batch_features": unit(raw_features(run)),
            "found": searched(after(run, epoch + 1))["found"],
            "out/logits_test_epoch1": stored_logits(after(run, 1), "test"),
        }

    config = {**cache_config(settings), **search_config(settings, 2)}
    how = {
        "found": found,
        "expected": expected_numbers(facts),
        "steps": settings["total_steps"],
        "prepare": cached,
        "unread": ("cache/",),
    }
    return Case("tip_adapter_f", config, classes_of(facts), recipe, **how, tolerance={**STEP, "found": EXACT})


def described(facts):
    """Classes with their sentences, if the file has any."""
    sentences = facts["settings"].get("cupl_prompts") or {}
    return classes_of(facts, descriptions={name: tuple(said) for name, said in sentences.items()})


def ape(facts, tensors) -> Case:
    settings = facts["settings"]

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
        **cache_config(settings),
        **search_config(settings, 3),
        "init_gamma": float(settings["init_gamma"]),
        "channels": settings["channels"],
        "w": tuple(settings["w"]),
    }
    tolerance = {"found": EXACT, "out/channels": EXACT, "search": 1e-6, "out/similarity": 1e-6}
    how = {
        "found": found,
        "expected": expected_numbers(facts),
        "prepare": cached,
        "unread": ("cache/",),
        "tolerance": tolerance,
    }
    return Case("ape", config, described(facts), **how)


def ape_t(facts, tensors) -> Case:
    settings = facts["settings"]
    numbers = {"decay": 0.1, **optimiser_numbers(facts), "eps": settings["eps"]}
    recipe = Recipe(optimiser="adamw", lr=settings["lr"], **numbers, **BY_STEP)

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
            "out/channels_after_ape": best_channels(weights, with_images, method.config.w, settings["channels"]),
        }
        later = copy.copy(run)
        later.model = copy.deepcopy(run.model)
        for name in ("res", "value_weights"):
            getattr(later.model.method, name).data = tensors[f"step1/{name}"].clone()
        return {**ours, "out/logits_val_epoch1": stored_logits(later, "val")}

    config = {
        **cache_config(settings),
        **search_config(settings, 2),
        "channels": settings["channels"],
        "w": tuple(settings["w"]),
    }
    tolerance = {**STEP, "out/channels": EXACT, "out/channels_after_ape": EXACT, "out/similarity": 1e-6}
    how = {
        "found": found,
        "steps": settings["total_steps"],
        "prepare": cached,
        "unread": ("cache/",),
        "tolerance": tolerance,
    }
    return Case("ape_t", config, described(facts), recipe, **how)


READERS = {
    "ape": ape,
    "ape_t": ape_t,
    "clip_adapter": clip_adapter,
    "linear_probe": linear_probe,
    "mm_adapter": mm_adapter,
    "tip_adapter": tip_adapter,
    "tip_adapter_f": tip_adapter_f,
}
