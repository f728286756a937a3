"""CLIP-LoRA, MMA, TextRefiner, LLaMP: `settings` in the JSON → a case."""

import torch

from dear.methods.recipe import Recipe
from vectors.compare import Case, Difference, classes_of, own_name
from vectors.family_a import sgd


def adamw(facts, **other) -> Recipe:
    """AdamW at the constant rates of the file."""
    told = facts["settings"]
    numbers = {"lr": told["lr"], "decay": told["weight_decay"], "betas": tuple(told["betas"])}
    return Recipe(**numbers, **other, schedule="constant", warmup_epochs=0)


@torch.no_grad()
def cosines(run):
    """Cosines in evaluation."""
    return run.model(run.tensors["input/images"]).logits / run.model.clip.temperature


def decay(run, steps):
    """How far all parameters together have moved along themselves, which shows AdamW's decay."""
    starts = {own_name(run.case, n[6:]): t.double() for n, t in run.tensors.items() if n.startswith("param/")}
    ends = {own_name(run.case, n[6:]): t.double() for n, t in run.tensors.items() if n.startswith("step2/")}
    moved = sum(float((starts[n] * (steps[f"step2/{n}"].double() - end)).sum()) for n, end in ends.items())
    length = sum(float((starts[n] ** 2).sum()) for n in ends)
    return [Difference("decay", "decay", abs(moved / length), 1e-7)]


def clip_lora(facts, tensors) -> Case:
    told = facts["settings"]
    config = {
        "encoder": told["encoder"],
        "position": told["position"],
        "matrices": "".join(told["matrices"]),
        "rank": told["rank"],
        "alpha": float(told["alpha"]),
        "dropout": told["dropout"],
        "template": told["template"],
    }
    keep = {n.removeprefix("input/keep/"): t for n, t in tensors.items() if n.startswith("input/keep/")}
    return Case(
        "clip_lora",
        config,
        classes_of(facts),
        adamw(facts),
        draws={name: mask.transpose(0, 1).float() for name, mask in keep.items()},
        names={"text.": "text_lora.", "vision.": "vision_lora."},
        found=lambda run: {"out/cosine_eval": cosines(run)},
        later=lambda run, steps: {"out/cosine_eval_step2": cosines(run), "out/logits": run.out.logits},
        further=decay,
        tolerance={"step2": 1e-5},
    )


def mma(facts, tensors) -> Case:
    told = facts["settings"]
    config = {
        "first": told["start"],
        "last": told["end"],
        "width": told["dim"],
        "scale": told["scale"],
        "words": told["text_words"],
    }
    return Case(
        "mma",
        config,
        classes_of(facts),
        sgd(facts),
        names={"text.": "text_adapters.", "vision.": "vision_adapters."},
        tolerance={"step2": 5e-7},
    )


READERS = {"clip_lora": clip_lora, "mma": mma}


def alpha_over_rank(monkeypatch):
    """Terms are multiplied by α/r instead of α/√r."""
    from dear.methods.clip_lora import ClipLoraConfig

    monkeypatch.setattr(ClipLoraConfig, "scale", property(lambda self: self.alpha / self.rank))


def one_mask(monkeypatch):
    """All matrices of a block share the mask of q."""
    from dear.methods import clip_lora

    monkeypatch.setattr(clip_lora, "_of_block", lambda dropout, block: lambda letter, x: dropout(f"{block}.q", x))


def no_decay(monkeypatch):
    """AdamW without its decay."""
    from vectors import compare

    right = compare.make_optimiser
    monkeypatch.setattr(
        compare, "make_optimiser", lambda recipe, named: right(recipe.model_copy(update={"decay": 0.0}), named)
    )


def true_gradient(monkeypatch):
    """Gradients of the adapters are not divided by the scale."""
    from dear.methods.mma import MMA

    monkeypatch.setattr(MMA, "combine", lambda self, grads: grads["ce"])


def one_layer_too_low(monkeypatch):
    """Layers counted from 0."""
    from dear.methods import mma

    right = mma.of_twelve

    def shifted(depth, first, last):
        return {layer: own - 1 for layer, own in right(depth, first, last).items()}

    monkeypatch.setattr(mma, "of_twelve", shifted)


SPOILT = {
    "clip_lora": {"α/r": alpha_over_rank, "no decay": no_decay},
    "clip_lora-dropout": {"one mask for all matrices": one_mask, "no decay": no_decay},
    "mma": {"gradients are not divided": true_gradient, "layers are one too low": one_layer_too_low},
}
