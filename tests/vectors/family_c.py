"""MMRL, MMRL++, TAC, PromptKD: `settings` in the JSON → a case."""

import torch

from dear.methods.base import Batch
from dear.methods.recipe import Recipe
from vectors.compare import Case, classes_of

TOKENS = ("input/token",)


def constant(facts, **other) -> Recipe:
    """The optimiser that the file names, at its constant rate; the total after its step becomes what is compared."""
    told = facts["second_step"]
    kind = told["optimizer"].split(",")[0].lower()
    facts["second_step"] = told["loss"]
    return Recipe(optimiser=kind, lr=told["lr"], decay=5e-4, schedule="constant", warmup_epochs=0, **other)


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
    told = facts["settings"]
    config |= {
        "tokens": told["n_tokens"],
        "width": told["rep_dim"],
        "layers": told["layers_one_based"],
        "alpha": told["alpha"],
        "reg_weight": told["reg_weight"],
    }
    alpha, reg = told["alpha"], told["reg_weight"]
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
    told = facts["settings"]
    own = {"beta": told["beta"], "rank": told["aligner_rank"], "projection_rank": told["projection_rank"]}
    return representations(facts, tensors, "mmrlpp", **own)


READERS = {"mmrl": mmrl, "mmrlpp": mmrlpp}


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


SPOILT = {
    "mmrl": {"tokens behind the first word": tokens_behind_the_words, "half of the drift": half_of_the_drift},
    "mmrlpp": {"the other beta": reversed_beta, "no flow in the image tower": tokens_made_anew},
}
