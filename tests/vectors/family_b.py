"""MaPLe, VPT, IVLP, PromptSRC, ProVP, SkipTuning: `settings` in the JSON → a case."""

import torch

from dear.engine.optim import Average, epoch_weights
from dear.methods.recipe import Recipe
from vectors.compare import Case, classes_of


def features(run):
    """Unit features of the step's images and classes."""
    out = run.model(run.tensors["input/images"])
    return {"out/image_features": out.features["cls"], "out/text_features": out.classes}


def maple(facts, tensors) -> Case:
    told = facts["settings"]
    config = {"words": told["ctx_init"] or "", "context": told["n_ctx"], "depth": told["prompt_depth"]}

    def found(run):
        return {**features(run), "out/vision_prompt_0": run.model.method.image_rows()[0]}

    return Case("maple", config, classes_of(facts), found=found)


def vpt(facts, tensors) -> Case:
    told = facts["settings"]
    config = {"context": told["n_ctx_vision"], "depth": told["prompt_depth_vision"]}
    return Case("vpt", config, classes_of(facts, template=facts["template"]), found=features)


def of_both_towers(told):
    """What IVLP and PromptSRC are told alike."""
    return {
        "words": told["ctx_init"] or "",
        "text_context": told["n_ctx_text"],
        "image_context": told["n_ctx_vision"],
        "text_depth": told["prompt_depth_text"],
        "image_depth": told["prompt_depth_vision"],
    }


def ivlp(facts, tensors) -> Case:
    return Case("ivlp", of_both_towers(facts["settings"]), classes_of(facts), found=features)


def promptsrc(facts, tensors) -> Case:
    told = facts["settings"]
    weights = {"text_weight": told["text_loss_weight"], "image_weight": told["image_loss_weight"]}

    def found(run):
        from dear.methods import promptsrc, templates

        clip = run.model.clip
        assert sorted(facts["templates"]) == sorted(templates.SIXTY)
        text = promptsrc.averaged_features(clip, run.case.classes)
        image = clip.encode_image(tensors["input/images"])
        plain = {"image_features": image, "text_features": text, "logits": clip.temperature * image @ text.T}
        return {**features(run), **averages(told, tensors), **{f"out/zs_{name}": one for name, one in plain.items()}}

    return Case("promptsrc", {**of_both_towers(told), **weights}, classes_of(facts), found=found)


def averages(told, tensors):
    """Gaussian weights of every published setting, and the average of the file's states."""
    published = [name for name in tensors if name.startswith("gpa/weights_")]
    settings = {name: [int(part) for part in name.split("_")[-3:]] for name in published}
    settings["gpa/weights"] = [told["epochs"], told["gpa_mean"], told["gpa_std"]]
    found, made = {}, {}
    for name, (epochs, mean, deviation) in settings.items():
        made[name] = epoch_weights(Recipe(average="gaussian", gaussian=(mean, deviation)), epochs)
        found[name] = torch.tensor(made[name], dtype=torch.float64)
    average = Average(made["gpa/weights"])
    for epoch, state in enumerate(tensors["gpa/snapshots"]):
        average.add(epoch, {"state": state})
    return {**found, "gpa/snapshots": tensors["gpa/snapshots"], "gpa/aggregate": average.sums["state"]}


READERS = {"maple": maple, "vpt": vpt, "ivlp": ivlp, "promptsrc": promptsrc}


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

    monkeypatch.setattr(ivlp, "deep_words", lambda layers: lambda layer, rows: rows)


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
}
