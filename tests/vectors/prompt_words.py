"""CoOp, KgCoOp, CoCoOp, ProGrad, ATPrompt, TCP: `settings` in the JSON → a case."""

import re

import torch

from dear.methods.atprompt import ATTRIBUTES
from dear.methods.coop import context_template
from dear.methods.kgcoop import target_template
from dear.methods.prograd import teacher_template
from dear.methods.recipe import Recipe
from dear.methods.tcp import frozen_template, learned_template
from vectors.compare import Case, classes_of, words

DATA_SETS = {
    "Caltech101": "caltech101",
    "DescribableTextures": "dtd",
    "EuroSAT": "eurosat",
    "FGVCAircraft": "fgvc_aircraft",
    "Food101": "food101",
    "ImageNet": "imagenet",
    "ImageNetA": "imagenet_a",
    "ImageNetR": "imagenet_r",
    "ImageNetSketch": "imagenet_sketch",
    "ImageNetV2": "imagenetv2",
    "OxfordFlowers": "oxford_flowers",
    "OxfordPets": "oxford_pets",
    "StanfordCars": "stanford_cars",
    "SUN397": "sun397",
    "UCF101": "ucf101",
}
"""From the published code's names of data sets to ours."""


def optimiser(facts, kind="sgd") -> Recipe:
    """The optimiser that the file names, such as "sgd momentum 0.9 weight_decay 5e-4", at its constant rate."""
    named = facts["settings"].get("optimiser", kind)
    usual = {"weight_decay": 5e-4, "momentum": 0.9, "eps": 1e-3}
    decay, momentum, eps = (number_after(word, named, default) for word, default in usual.items())
    values = {"optimiser": named.split()[0].lower(), "lr": facts["settings"].get("lr", 2e-3), "decay": decay}
    return Recipe(**values, momentum=momentum, eps=eps, schedule="constant", warmup_epochs=0)


def number_after(word: str, text: str, default: float) -> float:
    """The number that stands behind a word, if it is there."""
    found = re.search(rf"{word} ([0-9.]+(?:e-?[0-9]+)?)", text)
    return float(found[1]) if found else default


def start_words(settings) -> str:
    """The words that a context starts from; published code writes blanks as underscores too."""
    return (settings.get("ctx_init") or "").replace("_", " ")


def features(run):
    """Unit features of the step's images and classes."""
    out = run.model(run.tensors["input/images"])
    return {"out/features_image": out.features["cls"], "out/features_text": out.classes}


def token_ids(run, template):
    """Our prompts as tokens."""
    return run.model.clip.tokenizer(run.model.classes.prompts(template))


def fresh(run):
    """The method as it starts."""
    method = run.model.method
    return type(method)(run.model.clip, method.config)


def coop(facts, tensors) -> Case:
    settings = facts["settings"]
    config = {
        "words": start_words(settings),
        "context": settings["n_ctx"],
        "position": settings.get("class_token_position", "end"),
        "per_class": settings.get("csc", False) and not settings.get("ctx_init"),  # published: words win
    }

    def found(run):
        template = run.model.method.template(run.model.classes)
        return {**features(run), "init/ctx": fresh(run).ctx, "input/token_ids": token_ids(run, template)}

    return Case("coop", config, classes_of(facts), optimiser(facts), found=found)


def kgcoop(facts, tensors) -> Case:
    settings = facts["settings"]
    config = {"words": start_words(settings), "context": settings["n_ctx"], "weight": settings["w"]}

    @torch.no_grad()
    def found(run):
        novel = run.model.for_classes(words(facts["novel_classes"]))
        assert run.model.classes.prompts(target_template(run.model.classes)) == facts["target_prompts"]
        return {
            **features(run),
            "init/ctx": fresh(run).ctx,
            "input/token_ids": token_ids(run, context_template(run.model.method.config)),
            "out/features_target": run.model.text().plain_CE,
            "out/logits_novel": novel(run.tensors["input/images"].float()).logits,
        }

    if not settings["w"]:  # our terms are weighted: nothing is left to compare
        tensors.pop("loss/kg", None)

    def later(run, steps):
        return {"loss/kg": steps["loss1/kg"] / settings["w"]} if settings["w"] else {}

    listed = classes_of(facts, template=settings["target_template"], dataset=DATA_SETS.get(settings["dataset"]))
    return Case("kgcoop", config, listed, optimiser(facts), found=found, later=later)


def cocoop(facts, tensors) -> Case:
    settings = facts["settings"]

    @torch.no_grad()
    def found(run):
        method, feature = run.model.method, features(run)["out/features_image"]
        return {
            "init/ctx": fresh(run).ctx,
            "input/token_ids": token_ids(run, context_template(method.config)),
            "out/features_image": feature,
            "out/features_text": method.features(run.model.clip, feature, run.model.text()),
            "out/meta_bias": method.meta_net(feature),
        }

    config = {"words": start_words(settings), "context": settings["n_ctx"]}
    return Case("cocoop", config, classes_of(facts), optimiser(facts), found=found)


def prograd(facts, tensors) -> Case:
    settings = facts["settings"]
    config = {
        "words": facts.get("init_words") or "",
        "context": settings["n_ctx"],
        "position": settings.get("class_token_position", "end"),
        "per_class": settings.get("csc", False) and not facts.get("init_words"),
        "strength": settings["lambda"],
        "temperature": settings["temperature"],
    }

    @torch.no_grad()
    def found(run):
        clip, ours = run.model.clip, features(run)
        teacher = run.model.text().plain_CE
        return {
            **ours,
            "init/ctx": fresh(run).ctx,
            "input/token_ids": token_ids(run, run.model.method.template(run.model.classes)),
            "input/token_ids_teacher": token_ids(run, teacher_template(run.model.classes)),
            "out/features_text_teacher": teacher,
            "out/logits_teacher": clip.temperature * ours["out/features_image"] @ teacher.T,
        }

    listed = classes_of(facts, template=facts["template_teacher"], dataset=DATA_SETS.get(settings["dataset"]))
    return Case("prograd", config, listed, optimiser(facts), found=found)


def atprompt(facts, tensors) -> Case:
    settings = facts["settings"]
    known, words = DATA_SETS.get(settings["dataset"]), ", ".join(facts["attributes"])
    config = {
        "base": "maple" if "param/to_vision.weight" in tensors else "coop",
        "attributes": "" if ATTRIBUTES.get(known) == words else words,
        "context": settings["n_ctx"],
        "attribute_context": settings["n_att"],
        "depth": settings.get("prompt_depth", 9),
    }

    def found(run):
        return {**features(run), "input/token_ids": token_ids(run, run.model.method.template(run.model.classes))}

    return Case("atprompt", config, classes_of(facts, dataset=known), optimiser(facts), found=found)


def roundings(tensors, recipe):
    """By "step2/NAME", entry by entry: two steps of Adam move by g / (|g| + eps), which multiplies a rounding of g,
    2e-6 as measured, by lr / eps where g is far below eps.
    """
    allowed = {}
    for name in (name.removeprefix("step2/") for name in tensors if name.startswith("step2/")):
        size = (tensors[f"grad/{name}"] + recipe.decay * tensors[f"param/{name}"]).abs()
        allowed[f"step2/{name}"] = 1e-6 + 2 * recipe.lr * recipe.eps / (size + recipe.eps) ** 2 * 2e-6
    return allowed


def tcp(facts, tensors) -> Case:
    settings = facts["settings"]
    config = {
        "words": start_words(settings),
        "layer": settings["insert_before_block"] + 1 - settings["block_count_from"],
        "weight": settings["kg_weight"],
    }

    @torch.no_grad()
    def found(run):
        frozen = run.model.text().plain_CE
        words = run.model.method.class_words(frozen)
        return {
            **features(run),
            "init/ctx": fresh(run).ctx,
            "input/token_ids": token_ids(run, learned_template(run.model.classes)),
            "input/token_ids_frozen": token_ids(run, frozen_template(run.model.classes)),
            "out/features_text_frozen": frozen,
            "out/class_tokens": words,
        }

    listed = classes_of(facts, template=facts["template_frozen"], dataset=DATA_SETS.get(settings["dataset"]))
    recipe, weight = optimiser(facts, "adam"), settings["kg_weight"]

    if not weight:  # our terms are weighted: nothing is left to compare
        tensors.pop("loss/kg", None)

    def later(run, steps):
        terms = {"loss/kg": "loss1/kg", "second/kg": "loss2/kg"}
        return {theirs: steps[ours] / weight for theirs, ours in terms.items()} if weight else {}

    return Case("tcp", config, listed, recipe, found=found, later=later, tolerance=roundings(tensors, recipe))


READERS = {"atprompt": atprompt, "cocoop": cocoop, "coop": coop, "kgcoop": kgcoop, "prograd": prograd, "tcp": tcp}


def without_positions(monkeypatch):
    """Learned words get no positional embedding."""
    from dear.methods import atprompt, cocoop, coop, kgcoop, tcp

    def bare(clip, rows, words, at=1):
        return rows.put(at, words.reshape(-1, *words.shape[-2:]))

    for module in (atprompt, cocoop, coop, kgcoop, tcp):
        monkeypatch.setattr(module, "with_words", bare)


def misplaced_name(monkeypatch):
    """The name stands one place further on."""
    from dear.methods.coop import CoOp

    right = CoOp._order

    def shifted(self, clip, classes, length):
        order = right(self, clip, classes, length)
        order[:, 1:-1] = order[:, 1:-1].roll(1, 1)
        return order

    monkeypatch.setattr(CoOp, "_order", shifted)


def raw_feature(monkeypatch):
    """The meta-net sees features that are not of unit length."""
    from dear.methods.cocoop import MetaNet

    right = MetaNet.forward
    monkeypatch.setattr(MetaNet, "forward", lambda self, x: right(self, 5 * x))


def first_word_only(monkeypatch):
    """The image moves the first learned word alone."""
    from dear.methods import cocoop

    right = cocoop.with_words

    def first(clip, rows, words, at=1):
        return right(clip, rows, torch.cat([words[:, :1], words[:, 1:].mean(0, True).expand_as(words[:, 1:])], 1), at)

    monkeypatch.setattr(cocoop, "with_words", first)


def sum_of_losses(monkeypatch):
    """Both losses are minimised together."""
    from dear.methods.prograd import ProGrad

    def both(self, grads):
        return {name: own + grads["kl"][name] for name, own in grads["xe"].items()}

    monkeypatch.setattr(ProGrad, "combine", both)


def projected_always(monkeypatch):
    """The part along zero-shot CLIP's gradient goes, whatever its sign."""
    from dear.methods.prograd import ProGrad

    def along(self, own, general):
        direction = general / general.norm()
        return own - (own * direction).sum() * direction

    monkeypatch.setattr(ProGrad, "_aligned", along)


def commas_are_words(monkeypatch):
    """Tokens are counted in the place of words."""
    from dear.methods import prograd

    monkeypatch.setattr(prograd, "words_of", lambda template: template.split("{}")[0].replace(",", " ,").strip())


def words_on_the_left(monkeypatch):
    """The start is words, then zeros."""
    from dear.methods.prograd import ProGrad

    right = ProGrad.start
    monkeypatch.setattr(ProGrad, "start", lambda *given: torch.nn.Parameter(right(*given).roll(3, 0)))


def attributes_swapped(monkeypatch):
    """The attributes come in another order."""
    from dear.methods.atprompt import ATPrompt

    right = ATPrompt.attributes
    monkeypatch.setattr(ATPrompt, "attributes", lambda self, classes: right(self, classes)[::-1])


def whole_words(monkeypatch):
    """Every token of an attribute is kept."""
    from dear.methods.atprompt import ATPromptConfig

    monkeypatch.setattr(ATPromptConfig, "whole_words", True, raising=False)
    right = ATPromptConfig.__init__
    monkeypatch.setattr(ATPromptConfig, "__init__", lambda self, **values: right(self, **values, whole_words=True))


def deep_at_the_front(monkeypatch):
    """Later layers get their words where the first attribute's are."""
    from dear.methods import atprompt

    right = atprompt.deep_words
    monkeypatch.setattr(atprompt, "deep_words", lambda layers, at: right(layers, 1))


def one_layer_late(monkeypatch):
    """Words of the class come in one layer later."""
    from dear.methods.tcp import TCP

    right = TCP.__init__

    def late(self, *args, **keywords):
        right(self, *args, **keywords)
        self._layer += 1

    monkeypatch.setattr(TCP, "__init__", late)


def distance_of_the_batch(monkeypatch):
    """Only classes of the batch are kept near the frozen features."""
    from dear.methods.kgcoop import KgCoOp

    def loss(self, out, batch):
        near = (out.class_features * out.rest["frozen"]).sum(1)[batch.labels].mean()
        cross = torch.nn.functional.cross_entropy(out.logits, batch.labels)
        return {"ce": cross, "kg": self.config.weight * (1 - near)}

    monkeypatch.setattr(KgCoOp, "loss", loss)


def whole_squared_distance(monkeypatch):
    """The squared distance instead of half of it."""
    from dear.methods.kgcoop import KgCoOp

    right = KgCoOp.loss

    def loss(self, out, batch):
        terms = right(self, out, batch)
        return {**terms, "kg": 2 * terms["kg"]}

    monkeypatch.setattr(KgCoOp, "loss", loss)


def target_without_its_end(monkeypatch):
    from dear.methods import kgcoop

    monkeypatch.setattr(kgcoop, "target_template", lambda classes: "a photo of a {}.")


SPOILT = {
    "atprompt": {"no positions": without_positions, "attributes swapped": attributes_swapped},
    "atprompt-maple": {"later words at the front": deep_at_the_front},
    "atprompt-split-word": {"words are kept whole": whole_words},
    "cocoop": {"no positions": without_positions, "raw feature": raw_feature, "one word moves": first_word_only},
    "coop": {"no positions": without_positions},
    "coop-csc": {"no positions": without_positions},
    "coop-middle": {"the name is misplaced": misplaced_name},
    "coop-front": {"the name is misplaced": misplaced_name},
    "kgcoop": {
        "no positions": without_positions,
        "classes of the batch alone": distance_of_the_batch,
        "the whole squared distance": whole_squared_distance,
        "the target without its end": target_without_its_end,
    },
    "prograd": {"losses are summed": sum_of_losses, "words on the left": words_on_the_left},
    "prograd-aligned": {"always projected": projected_always},
    "prograd-comma": {"commas count as words": commas_are_words},
    "tcp": {"no positions": without_positions, "one layer late": one_layer_late},
}
