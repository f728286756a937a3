"""CoOp, CoCoOp, ProGrad, ATPrompt, TCP: `settings` in the JSON → a case."""

from dear.methods.recipe import Recipe
from vectors.compare import Case, classes_of

TOKENS = ("input/token_ids",)


def sgd(facts, **other) -> Recipe:
    """SGD as all of them use it, at the constant rate of the file."""
    told = {"optimiser": "sgd", "lr": facts["settings"]["lr"], "decay": 5e-4, "momentum": 0.9, **other}
    return Recipe(**told, schedule="constant", warmup_epochs=0)


def coop(facts, tensors) -> Case:
    told = facts["settings"]
    config = {
        "words": told["ctx_init"] or "",
        "context": told["n_ctx"],
        "position": told["class_token_position"],
        "per_class": told["csc"],
    }

    def found(run):
        method = run.model.method
        fresh = type(method)(run.model.clip, method.config)
        return {
            "init/ctx": fresh.ctx,
            "out/features_text": run.model.class_features(),
            "out/features_image": run.model(tensors["input/images"]).features["cls"],
        }

    return Case("coop", config, classes_of(facts), sgd(facts), found=found)


READERS = {"coop": coop}


def without_positions(monkeypatch):
    """Learned words get no positional embedding."""
    from dear.methods import coop, tokens

    def bare(clip, rows, words):
        return rows.put(1, words.reshape(-1, *words.shape[-2:]))

    monkeypatch.setattr(coop, "with_words", bare)
    monkeypatch.setattr(tokens, "with_words", bare)


def misplaced_name(monkeypatch):
    """The name stands one place further on."""
    from dear.methods.coop import CoOp

    right = CoOp._order

    def shifted(self, clip, classes, length):
        order = right(self, clip, classes, length)
        order[:, 1:-1] = order[:, 1:-1].roll(1, 1)
        return order

    monkeypatch.setattr(CoOp, "_order", shifted)


SPOILT = {
    "coop": {"no positions": without_positions},
    "coop-csc": {"no positions": without_positions},
    "coop-middle": {"the name is misplaced": misplaced_name},
    "coop-front": {"the name is misplaced": misplaced_name},
}
