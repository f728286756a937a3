"""MaPLe, VPT, IVLP, PromptSRC, ProVP, SkipTuning: `settings` in the JSON → a case."""

import torch

from dear.engine.optim import Average, epoch_weights
from dear.methods.base import Batch
from dear.methods.recipe import Recipe
from vectors.compare import Case, classes_of
from vectors.prompt_words import DATA_SETS, start_words


def features(run):
    """Unit features of the step's images and classes."""
    out = run.model(run.tensors["input/images"])
    return {"out/image_features": out.features["cls"], "out/text_features": out.classes}


def maple(facts, tensors) -> Case:
    settings = facts["settings"]
    config = {"words": start_words(settings), "context": settings["n_ctx"], "depth": settings["prompt_depth"]}

    def found(run):
        return {**features(run), "out/vision_prompt_0": run.model.method.image_rows()[0]}

    return Case("maple", config, classes_of(facts), found=found)


def vpt(facts, tensors) -> Case:
    settings = facts["settings"]
    config = {"context": settings["n_ctx_vision"], "depth": settings["prompt_depth_vision"]}
    return Case("vpt", config, classes_of(facts, template=facts["template"]), found=features)


def of_both_towers(settings):
    """Settings that IVLP and PromptSRC share."""
    return {
        "words": start_words(settings),
        "text_context": settings["n_ctx_text"],
        "image_context": settings["n_ctx_vision"] or 1,  # 0 beside a depth of 0
        "text_depth": settings["prompt_depth_text"],
        "image_depth": settings["prompt_depth_vision"],
    }


def ivlp(facts, tensors) -> Case:
    return Case("ivlp", of_both_towers(facts["settings"]), classes_of(facts), found=features)


def promptsrc(facts, tensors) -> Case:
    settings = facts["settings"]
    weights = {"text_weight": settings["text_loss_weight"], "image_weight": settings["image_loss_weight"]}

    def found(run):
        from dear.methods import promptsrc
        from dear.methods.parts import templates

        clip = run.model.clip
        assert sorted(facts.get("templates", templates.SIXTY)) == sorted(templates.SIXTY)
        text = promptsrc.averaged_features(clip, run.case.classes)
        image = clip.encode_image(tensors["input/images"])
        plain = {"image_features": image, "text_features": text, "logits": clip.temperature * image @ text.T}
        return {
            **features(run),
            **averages(settings, tensors),
            **{f"out/zs_{name}": one for name, one in plain.items()},
        }

    return Case("promptsrc", {**of_both_towers(settings), **weights}, classes_of(facts), found=found)


def averages(settings, tensors):
    """Gaussian weights of every published setting, and the average of the file's states."""
    published = [name for name in tensors if name.startswith("gpa/weights_")]
    schedules = {name: [float(part) for part in name.split("_")[-3:]] for name in published}
    schedules["gpa/weights"] = [settings["epochs"], settings["gpa_mean"], settings["gpa_std"]]
    found, made = {}, {}
    for name, (epochs, mean, deviation) in schedules.items():
        made[name] = epoch_weights(Recipe(average="gaussian", gaussian=(mean, deviation)), int(epochs))
        found[name] = torch.tensor(made[name], dtype=torch.float64)
    if "gpa/snapshots" not in tensors:
        return found
    average = Average(made["gpa/weights"])
    for epoch, state in enumerate(tensors["gpa/snapshots"]):
        average.add(epoch, {"state": state})
    return {**found, "gpa/snapshots": tensors["gpa/snapshots"], "gpa/aggregate": average.sums["state"]}


def classes_of_data(facts):
    """Classes of a data set whose published template the method knows: the file's would hide a wrong one."""
    data = DATA_SETS.get(facts["settings"].get("dataset_name"))
    return classes_of(facts, dataset=data) if data else classes_of(facts, template=facts["template"])


def unweighted(tensors, weight) -> bool:
    """Whether a file's second term, unlike ours, does not bear its weight: its total tells."""
    ce, term, total = (tensors[f"loss/{name}"] for name in ("ce", "ref", "total"))
    return bool((ce + weight * term - total).abs() < (ce + term - total).abs())


def provp(facts, tensors) -> Case:
    settings = facts["settings"]
    config = {"context": settings["n_ctx"], "carry": settings["alpha"], "reformation": settings["lam"]}
    if "loss/ref" in tensors and not settings["lam"]:
        tensors.pop("loss/ref")
    elif "loss/ref" in tensors and unweighted(tensors, settings["lam"]):
        tensors["loss/ref"] = tensors["loss/ref"] * settings["lam"]

    def found(run):
        clip = run.model.clip
        plain = clip.encode_image(tensors["input/images"])
        logits = clip.temperature * plain @ run.model.class_features().T
        return {**features(run), "out/zs_image_features": plain, "out/zs_logits": logits}

    return Case("provp", config, classes_of_data(facts), found=found)


def skiptuning(facts, tensors) -> Case:
    settings = facts["settings"]
    if settings.get("drop_ratio"):
        raise ValueError("rows of images are never dropped here")
    config = {
        "first_layer": settings["start_layer"] + 1,
        "top": settings["top_ratio"],
        "most": settings["max_top"],
        "falloff": settings["lambda"],
    }
    draws = {"ranks": tensors["input/uniform_draws"]}

    def found(run):
        model, labels = run.model, tensors["input/labels"]
        assert sorted(model.trainable()) == sorted(facts.get("trainable", model.trainable()))
        out = model(tensors["input/images"], batch=Batch(labels, 0, 1, None, labels.shape[0], draws))
        ((_, frozen),) = model.frozen_parts()
        rows = frozen.rows
        return {
            "out/class_prototypes": frozen.prototypes,
            "out/image_features": out.features["cls"],
            "out/image_prefix": next(iter(model.states(tensors["input/images"]).values())),
            "out/kept_classes": out.rest["kept"],
            "out/kept_labels": out.rest["labels"],
            "out/reserve_mask": out.rest["ranks"],
            "out/text_features": out.classes,
            "out/text_prefix_eot": rows.words[torch.arange(rows.end.shape[0]), rows.end],
        }

    return Case("skiptuning", config, classes_of_data(facts), draws=draws, found=found)


READERS = {
    "maple": maple,
    "vpt": vpt,
    "ivlp": ivlp,
    "promptsrc": promptsrc,
    "provp": provp,
    "skiptuning": skiptuning,
}


def prompts_dropped_after_the_depth(monkeypatch):
    """Image rows are removed where no new ones come in."""
    from dear.methods import ivlp, maple

    def dropped(clip, rows, layers):
        count = rows.shape[1]

        def edit(layer, x):
            if layer > len(layers):
                return x[:, :count]
            fresh = clip.vision.norm_in(layers[0]) if layer == 1 else layers[layer - 1]
            return torch.cat([x[:, :count], fresh.expand(len(x), -1, -1)], 1)

        return clip.vision.read(clip.vision.run(rows, edit=edit)[:, 0])

    monkeypatch.setattr(maple, "prompted_image", dropped)
    monkeypatch.setattr(ivlp, "prompted_image", dropped)


def no_input_norm(monkeypatch):
    """The first layer's rows do not pass the input norm."""
    from dear.backbone.vision import VisionTower

    right = VisionTower.norm_in
    monkeypatch.setattr(VisionTower, "norm_in", lambda self, x: x if x.ndim == 2 else right(self, x))


def words_in_the_first_layer_only(monkeypatch):
    """Learned words of later layers are not put in."""
    from dear.methods import ivlp

    monkeypatch.setattr(ivlp, "deep_words", lambda layers, at: lambda layer, rows: rows)


def unit_before_the_average(monkeypatch):
    """Each template's feature is made unit length before they are averaged."""
    from dear.methods import promptsrc
    from dear.methods.base import unit

    def wrong(clip, classes, templates=promptsrc.SIXTY):
        return unit(sum(unit(clip.text.encode(classes.prompts(one))) for one in templates))

    monkeypatch.setattr(promptsrc, "averaged_features", wrong)


def divergence_per_image(monkeypatch):
    """The divergence is divided by the number of images, not of answers."""
    from dear.methods import promptsrc

    right = promptsrc.F.kl_div

    def wrong(found, wanted, **how):
        return right(found, wanted, **how) * found.shape[1]

    monkeypatch.setattr(promptsrc.F, "kl_div", wrong)


def epochs_from_zero(monkeypatch):
    """The weights of the average count epochs from 0."""
    import sys

    right = epoch_weights

    def wrong(recipe, epochs):
        mean, deviation = recipe.gaussian
        return right(Recipe(average="gaussian", gaussian=(mean + 1, deviation)), epochs)

    monkeypatch.setattr(sys.modules[__name__], "epoch_weights", wrong)


def nothing_carried(monkeypatch):
    """Rows of a layer are new ones alone, as in VPT."""
    from dear.methods.provp import ProVP

    right = ProVP.__init__

    def wrong(self, clip, config, **more):
        right(self, clip, config.model_copy(update={"carry": 0.0}), **more)

    monkeypatch.setattr(ProVP, "__init__", wrong)


def pairs_with_temperature(monkeypatch):
    """The term that holds features near plain CLIP's has a temperature."""
    from dear.methods.provp import ProVP

    right = ProVP.loss

    def wrong(self, out, batch):
        out.rest["pairs"].mul_(2)
        return right(self, out, batch)

    monkeypatch.setattr(ProVP, "loss", wrong)


def prototypes_of_trained_layers(monkeypatch):
    """Classes are ranked by the class features of the trained layers."""
    from dear.methods.skiptuning import SkipTuning

    right = SkipTuning.text

    def wrong(self, clip, frozen, batch=None):
        frozen.prototypes = self.class_features(clip, frozen.rows).detach()
        return right(self, clip, frozen, batch)

    monkeypatch.setattr(SkipTuning, "text", wrong)


def ranked_by_one_image(monkeypatch):
    """Classes are ranked by the first image of the batch alone."""
    from dear.methods.skiptuning import SkipTuning

    right = SkipTuning.selected
    monkeypatch.setattr(
        SkipTuning, "selected", lambda self, feature, text, labels: right(self, feature[:1], text, labels[:1])
    )


def another_template(monkeypatch):
    """Prompts are plain CLIP's."""
    from dear.methods import provp, skiptuning

    for method in (provp, skiptuning):
        monkeypatch.setattr(method, "TEMPLATES", {})


SPOILT = {
    "maple": {"prompts are dropped after the depth": prompts_dropped_after_the_depth},
    "vpt": {"the first rows skip the input norm": no_input_norm},
    "ivlp": {"later layers get no words": words_in_the_first_layer_only},
    "promptsrc": {
        "prompts are dropped after the depth": prompts_dropped_after_the_depth,
        "unit length before the average": unit_before_the_average,
        "divergence per image": divergence_per_image,
        "epochs count from 0": epochs_from_zero,
    },
    "provp": {
        "nothing is carried": nothing_carried,
        "a temperature": pairs_with_temperature,
        "another template": another_template,
    },
    "skiptuning": {
        "prototypes of the trained layers": prototypes_of_trained_layers,
        "ranked by one image": ranked_by_one_image,
        "another template": another_template,
    },
}
