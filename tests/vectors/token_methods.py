"""MMRL, MMRL++, TAC, PromptKD: `settings` in the JSON → a case."""

import copy

import torch

import dear
from dear.methods.base import Batch
from dear.methods.recipe import Recipe
from dear.model.load import make_method, restore
from vectors.compare import Case, classes_of, words
from vectors.prompt_words import number_after
from vectors.tiny_clip import tiny_clip

TOKENS = ("input/token",)


def constant(facts, **other) -> Recipe:
    """The optimiser that the file names, at its constant rate; the total after its step becomes what is compared."""
    second = facts["second_step"]
    kind = second["optimizer"].split(",")[0].lower()
    facts["second_step"] = second["loss"]
    usual = {"weight decay": 5e-4, "momentum": 0.9}
    decay, momentum = (number_after(word, second["optimizer"], default) for word, default in usual.items())
    same = {"schedule": "constant", "warmup_epochs": 0}
    return Recipe(optimiser=kind, lr=second["lr"], decay=decay, momentum=momentum, **same, **other)


def weigh(tensors, **weights):
    """Our terms of a loss bear their weights, those of these files do not."""
    for name, weight in weights.items():
        tensors[f"loss/{name}"] = tensors[f"loss/{name}"] * weight


def trained(run, rows=None):
    """What a training step sees, without one."""
    labels = run.tensors["input/labels"]
    batch = Batch(labels, size=len(run.tensors["input/images"]), given=run.case.draws)
    pictures = run.tensors["input/images"].float()
    with torch.no_grad():
        states = run.model.states(pictures, training=True, plain_images=run.tensors.get("input/images_plain"))
        return run.model(given=states, batch=batch)


def representations(facts, tensors, method, **config) -> Case:
    settings = facts["settings"]
    config |= {
        "tokens": settings["n_tokens"],
        "width": settings["rep_dim"],
        "layers": settings["layers_one_based"],
        "alpha": settings["alpha"],
        "reg_weight": settings["reg_weight"],
    }
    alpha, reg = settings["alpha"], settings["reg_weight"]
    weigh(tensors, ce=alpha, ce_rep=1 - alpha, reg_image=reg, reg_text=reg)

    def found(run):
        named = {}
        with torch.no_grad():
            after = run.model(tensors["input/images"])
        for out, end in ((trained(run), ""), (after, "_eval")):
            named[f"out/logits{end}"] = out.readouts["logits"]
            named[f"out/logits_rep{end}"] = out.rest["representation"]
            named[f"out/logits_fused{end}"] = out.readouts["fused"]
        out = trained(run)
        return named | {
            "out/features_image": out.features["cls"],
            "out/features_image_rep": out.features["representation"],
            "out/features_image_frozen": out.rest["plain_image"],
            "out/features_text": out.classes,
            "out/features_text_frozen": out.rest["plain_classes"],
        }

    return Case(method, config, classes_of(facts, template=facts["template"]), constant(facts), found=found)


def mmrl(facts, tensors) -> Case:
    return representations(facts, tensors, "mmrl")


def mmrlpp(facts, tensors) -> Case:
    settings = facts["settings"]
    own = {"beta": settings["beta"], "rank": settings["aligner_rank"], "projection_rank": settings["projection_rank"]}
    return representations(facts, tensors, "mmrlpp", **own)


def renamed(tensors, old, new):
    """A parameter list of a file by our name: a method cannot have one called as one of its functions."""
    for name in [name for name in tensors if name.startswith((f"param/{old}.", f"grad/{old}."))]:
        group, rest = name.split("/", 1)
        tensors[f"{group}/{new}{rest.removeprefix(old)}"] = tensors.pop(name)


def tac(facts, tensors) -> Case:
    settings = facts["settings"]
    config = {
        "clusters": settings["n_clusters"],
        "text_context": settings["n_ctx_text"],
        "vision_context": settings["n_ctx_vision"],
        "text_depth": settings["depth_text"],
        "vision_depth": settings["depth_vision"],
        "text_weight": float(settings["text_weight"]),
        "image_weight": float(settings["image_weight"]),
        "dropout": settings["dropout"],
        "views": settings["views"],
    }
    renamed(tensors, "text", "text_prompts")
    weigh(tensors, l1_text=settings["text_weight"], l1_image=settings["image_weight"])
    tensors["buffer/centres"] = tensors["input/cluster_centers"]
    tensors["input/labels"] = tensors["input/labels"].repeat(settings["views"])
    draws = {
        "adapted": tensors["input/keep_adapted"],
        "frozen": tensors["input/keep_frozen"].repeat(settings["views"], 1),
    }
    first = facts["random"]["kmeans_first_centers"]

    def found(run):
        from dear.methods.tac import MOST_WORDS, cluster_centres, described

        model, out = run.model, trained(run)
        fresh = type(model.method)(model.clip, model.method.config)
        with torch.no_grad():
            named = {
                "input/cluster_centers": cluster_centres(described(model.clip, model.classes), first),
                "out/features_image": out.features["cls"],
                "out/features_image_frozen": out.rest["plain_image"],
                "out/features_text": out.classes,
                "out/features_text_frozen": out.rest["target"],
                "out/logits": out.logits,
            }
            if settings["n_ctx_text"] <= MOST_WORDS:  # more of them start at random
                named["out/text_start"] = fresh.text_prompts[0]
            if other := facts.get("novel_classes"):
                novel = model.for_classes(classes_of(facts, template=facts["template"], names=other))
                named["out/logits_novel_eval"] = novel(tensors["input/images"]).logits
        return named

    classes = classes_of(facts, template=facts["template"], descriptions=facts["descriptions"])
    return Case("tac", config, classes, constant(facts), draws=draws, found=found)


def teacher_of(facts, tensors):
    """The teacher of a file: independent prompts of both towers, on a CLIP of its own."""
    settings = facts["settings"]
    clip = tiny_clip(facts["teacher_clip_seed"], facts["teacher_clip"].get("constants", {}).get("EMBED", 64))
    config = {
        "text_context": settings["teacher_n_ctx_text"],
        "image_context": settings["teacher_n_ctx_vision"],
        "text_depth": settings["teacher_depth_text"],
        "image_depth": settings["teacher_depth_vision"],
    }
    method = make_method("ivlp", clip, config)
    given = {name.removeprefix("teacher/"): t for name, t in tensors.items() if name.startswith("teacher/")}
    places = {"text": "text_prompts", "vision": "vision_prompts"}
    restore(method, {f"{places[name.split('.')[0]]}.{name.split('.')[1]}": t for name, t in given.items()})
    return dear.Model(clip, method, classes_of(facts, template=facts["template"])).eval().requires_grad_(False)


def promptkd(facts, tensors) -> Case:
    settings, teacher = facts["settings"], teacher_of(facts, tensors)
    config = {
        "context": settings["n_ctx_vision"],
        "depth": settings["depth_vision"],
        "temperature": float(settings["temperature"]),
        "weight": float(settings["kd_weight"]),
    }
    rows, names = tensors["input/images"].shape[0], words(facts["classes"])
    share = settings["kd_weight"] * settings["temperature"] ** 2 / (rows * len(names))
    tensors["loss/kl"] = tensors.pop("loss/kl_sum") * share

    def found(run):
        model, out = run.model, trained(run)
        halves = {"base": names[: facts["n_base"]], "novel": names[facts["n_base"] :]}
        norm = copy.deepcopy(model.method.project.norm)
        norm.remember(out.rest["mean"], out.rest["var"])
        with torch.no_grad():
            logits = {
                half: model.for_classes(listed)(tensors["input/images"]).logits
                for half, listed in halves.items()
                if listed
            }
            return {
                "out/features_image": out.features["cls"],
                "out/features_image_eval": model(tensors["input/images"]).features["cls"],
                "out/features_image_teacher": teacher.image_features(tensors["input/images"]),
                "out/features_image_unprojected": out.rest["own"],
                "out/features_text_teacher": out.classes,
                "out/logits": out.logits,
                "out/logits_teacher": out.rest["teacher"],
                "out/running_mean_after": norm.running_mean,
                "out/running_var_after": norm.running_var,
                **{f"out/logits_{half}_eval": one for half, one in logits.items()},
            }

    classes = classes_of(facts, template=facts["template"])
    return Case("promptkd", config, classes, constant(facts), companions={"teacher": teacher}, found=found)


READERS = {"mmrl": mmrl, "mmrlpp": mmrlpp, "promptkd": promptkd, "tac": tac}


def tokens_behind_the_words(monkeypatch):
    """Text tokens enter one place too late."""
    from dear.backbone.rows import Rows

    right = Rows.insert
    monkeypatch.setattr(Rows, "insert", lambda self, at, new: right(self, at + 1, new))


def half_of_the_drift(monkeypatch):
    """The two terms of the drift are averaged, not added."""
    from dear.methods import mmrl

    right = mmrl.distance
    monkeypatch.setattr(mmrl, "distance", lambda a, b: right(a, b) / 2)


def reversed_beta(monkeypatch):
    """β weighs what came out of the layer before."""
    from dear.methods.mmrlpp import MMRLpp

    def carried(self, fresh, previous):
        return (1 - self.config.beta) * fresh + self.config.beta * previous

    monkeypatch.setattr(MMRLpp, "carried", carried)


def tokens_made_anew(monkeypatch):
    """Tokens of the image tower are made anew in every layer, as in MMRL."""
    from dear.methods.mmrlpp import MMRLpp

    monkeypatch.setattr(MMRLpp, "carries", False)


def open_mask(monkeypatch):
    """Patches read the cluster tokens."""
    from dear.methods.tac import TAC

    right = TAC._mask
    monkeypatch.setattr(TAC, "_mask", lambda self, originals: torch.ones_like(right(self, originals)))


def unit_sentences(monkeypatch):
    """Every sentence is normalised before the mean."""
    from dear.backbone.text import TextTower

    right = TextTower.encode
    monkeypatch.setattr(
        TextTower, "encode", lambda *args, **how: torch.nn.functional.normalize(right(*args, **how), dim=-1)
    )


def no_dropout_of_the_target(monkeypatch):
    """Plain CLIP's image features keep all their numbers."""
    from dear.methods.tac import TAC

    right = TAC._dropped
    monkeypatch.setattr(TAC, "_dropped", lambda self, x, b, name: x if name == "frozen" else right(self, x, b, name))


def mean_over_images(monkeypatch):
    """The divergence is a mean over images, not over images and classes."""
    from dear.methods.promptkd import PromptKD

    right = PromptKD.loss
    wrong = lambda self, out, batch: {"kl": right(self, out, batch)["kl"] * out.logits.shape[1]}  # noqa: E731
    monkeypatch.setattr(PromptKD, "loss", wrong)


def biased_variance(monkeypatch):
    """The running variance is that of the batch, biased."""
    from dear.methods.promptkd import Norm

    right = Norm.remember
    monkeypatch.setattr(Norm, "remember", lambda self, mean, var: right(self, mean, var * 0.75))


SPOILT = {
    "mmrl": {"tokens behind the first word": tokens_behind_the_words, "half of the drift": half_of_the_drift},
    "mmrlpp": {"the other beta": reversed_beta, "no flow in the image tower": tokens_made_anew},
    "promptkd": {"mean over images": mean_over_images, "biased variance": biased_variance},
    "tac": {
        "patches read clusters": open_mask,
        "unit sentences": unit_sentences,
        "no dropout of the target": no_dropout_of_the_target,
    },
}
