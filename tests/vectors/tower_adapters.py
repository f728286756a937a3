"""CLIP-LoRA, MMA, TextRefiner, LLaMP: `settings` in the JSON → a case."""

import atexit
import shutil
import tempfile

import torch

from dear.methods.base import unit
from dear.methods.parts.tokens import prompted_image
from dear.methods.recipe import Recipe
from dear.methods.textrefiner import local_rows
from tiny_lm import write_llama
from vectors.compare import Case, Difference, classes_of, own_name
from vectors.prompt_words import optimiser, start_words
from vectors.token_methods import teacher_of


def adamw(facts, **other) -> Recipe:
    """AdamW at the constant rates of the file."""
    settings = facts["settings"]
    numbers = {"lr": settings["lr"], "decay": settings["weight_decay"], "betas": tuple(settings["betas"])}
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
    settings = facts["settings"]
    config = {
        "encoder": settings["encoder"],
        "position": settings["position"],
        "matrices": "".join(settings["matrices"]),
        "rank": settings["rank"],
        "alpha": float(settings["alpha"]),
        "dropout": settings["dropout"],
        "template": settings["template"],
    }
    keep = {n.removeprefix("input/keep/"): t for n, t in tensors.items() if n.startswith("input/keep/")}
    return Case(
        "clip_lora",
        config,
        classes_of(facts),
        adamw(facts),
        draws={f"{name}.{row}": mask[row].float() for name, mask in keep.items() for row in range(len(mask))},
        names={"text.": "text_lora.", "vision.": "vision_lora."},
        found=lambda run: {"out/cosine_eval": cosines(run)},
        later=lambda run, steps: {"out/cosine_eval_step2": cosines(run), "out/logits": run.out.logits},
        further=decay,
        tolerance={"step2": 1e-5},
    )


def mma(facts, tensors) -> Case:
    settings = facts["settings"]
    config = {
        "first": settings["start"],
        "last": settings["end"],
        "width": settings["dim"],
        "scale": settings["scale"],
        "words": settings["text_words"],
    }
    return Case(
        "mma",
        config,
        classes_of(facts),
        optimiser(facts),
        names={"text.": "text_adapters.", "vision.": "vision_adapters."},
        tolerance={"step2": 5e-7},
    )


def local_tokens(run):
    """Local rows of the training step, and which rows of an image are classified on their own."""
    states = run.model.states(run.tensors["input/images"], training=True)
    rows, _ = run.model.method.trans(states["projected"], training=True)
    numbers = torch.arange(rows.shape[1]).float()[None, :, None].expand(rows.shape[0], -1, 1)
    chosen = local_rows(numbers, states["cls_attention"], run.facts["settings"]["top_patches"])
    return {"out/local_tokens": rows, "out/top_rows": chosen.view(rows.shape[0], -1)[:, :-1].long()}


def memory(run, steps):
    """The memory and the running statistics after the steps."""
    found = {f"cache/after_step{step}": steps[f"step{step}/cache"] for step in (1, 2)}
    for name in ("running_mean", "running_var"):
        found[f"bn/{name}_after_step1"] = steps[f"step1/trans.bn.{name}"]
    return found


def on_promptkd(facts, tensors) -> Case:
    settings = facts["settings"]
    of_teacher = {
        f"teacher_{what}_{tower}": settings[f"teacher_{what}"]
        for what in ("n_ctx", "depth")
        for tower in ("text", "vision")
    }
    in_its_words = {"template": "a photo of a {}.", **facts, "settings": {**settings, **of_teacher}}
    teacher = teacher_of(in_its_words, tensors)
    config = {
        "context": settings["n_ctx_vision"],
        "depth": settings["depth_vision"],
        "slots": settings["cache_size"],
        "alpha": settings["alpha"],
        "momentum": settings["momentum"],
        "weight": float(settings["kd_weight"]),
        "temperature": float(settings["temperature"]),
        "patches": settings["top_patches"],
    }
    local = "out/log_probabilities_local"

    def later(run, steps):
        out, heat = run.out, settings["temperature"]
        return {
            **{f"cache/after_step{step}": steps[f"step{step}/cache"] for step in (1, 2)},
            "out/log_probabilities": (out.logits / heat).log_softmax(1),
            local: (out.rest["local"] / heat).log_softmax(1),
            "out/teacher_logits": out.rest["teacher"],
            "out/teacher_text": out.rest["text"].plain,
        }

    return Case(
        "textrefiner_promptkd",
        config,
        classes_of(facts),
        optimiser(facts),
        companions={"teacher": teacher},
        later=later,
        tolerance={"step2": 5e-7, "cache": 1e-5, local: 1e-5 * float(tensors[local].abs().max())},
    )


def textrefiner(facts, tensors) -> Case:
    if facts["variant"] == "promptkd":
        return on_promptkd(facts, tensors)
    settings = facts["settings"]
    config = {
        "words": start_words(settings),
        "context": settings["n_ctx"],
        "per_class": settings["csc"] and not settings["ctx_init"],  # published: words win
        "position": settings["class_token_position"],
        "slots": settings["cache_size"],
        "alpha": settings["alpha"],
        "momentum": settings["momentum"],
        "balance": settings["balance"],
        "distill": settings["distill"],
        "patches": settings["top_patches"],
    }

    def found(run):
        method, clip = run.model.method, run.model.clip
        with torch.no_grad():
            refined = run.model.text().refined
        return {**local_tokens(run), "out/text_refined": refined, "init/ctx": type(method)(clip, method.config).ctx}

    def later(run, steps):
        with torch.no_grad():
            after = run.model(run.tensors["input/images"]).logits
        return {**memory(run, steps), "out/logits_eval_step2": after, "out/logits_local": run.out.rest["local"]}

    return Case(
        "textrefiner",
        config,
        classes_of(facts),
        optimiser(facts),
        found=found,
        later=later,
        tolerance={
            "step2": 5e-7,
            "cache": 1e-5,
            "bn": 1e-5,
            "out/logits_local": 1e-5 * float(tensors["out/logits_local"].abs().max()),
        },
    )


def write_language_model(facts, tensors) -> str:
    """The file's language model as a folder."""
    sizes, folder = facts["language_model"], tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    weights = {name.removeprefix("lm/"): t.numpy() for name, t in tensors.items() if name.startswith("lm/")}
    sizes = {name: sizes[name] for name in ("heads", "kv_heads", "eps", "theta")}
    return write_llama(folder, weights, **sizes)


def llamp(facts, tensors) -> Case:
    settings = facts["settings"]
    lists = {"base": classes_of(facts), "new": classes_of(facts, names=facts["novel_classes"])}
    subsets = {tuple(one.names): subset for subset, one in lists.items()}
    blocks = settings["lora_blocks"]
    config = {
        "lm": write_language_model(facts, tensors),
        "paraphrases": settings["templates"],
        "llm_prompts": settings["llm_prompts"],
        "decoder_layers": settings["decoder_layers"],
        "llm_depth": settings["llm_depth"],
        "text_prompts": settings["text_prompts"],
        "text_depth": settings["text_depth"],
        "vision_prompts": settings["vision_prompts"],
        "vision_depth": settings["vision_depth"],
        "lora_first": blocks[0] + 1,
        "lora_last": blocks[1] + 1,
        "lora_rank": settings["lora_rank"],
        "lora_alpha": float(settings["lora_alpha"]),
        "lora_dropout": float(settings["lora_dropout"]),
        "lambda_dist": float(settings["lambda_dist"]),
        "l1_text": float(settings["l1_text"]),
        "l1_image": float(settings["l1_image"]),
        "label_smoothing": float(settings["label_smoothing"]),
    }

    def inputs(classes):
        subset = subsets[tuple(classes.names)]
        pairs = [(f"input/lm_ids/{subset}.{k}", f"input/lm_mask/{subset}.{k}") for k in range(settings["templates"])]
        return [(tensors[ids], tensors[mask]) for ids, mask in pairs]

    def prepare(run):
        method = run.model.method
        method.language_inputs = inputs
        method.targets = lambda clip, classes: unit(tensors[f"input/clip_text/{subsets[tuple(classes.names)]}"])
        method.logit_scale = torch.nn.Parameter(tensors["param/logit_scale"].clone())  # in fp64, as the file has it

    return Case(
        "llamp",
        config,
        lists["base"],
        adamw(facts, groups={"lora.*": settings["lora_lr"]}, clip_norm=settings["clip_grad_norm"]),
        draws={"paraphrase": torch.tensor([(settings["template_of_the_step"] + 0.5) / settings["templates"]])},
        prepare=prepare,
        found=lambda run: llamp_outputs(run, lists),
        later=lambda run, steps: {"out/cosine": run.out.rest["cosine"]},
        tolerance={"step2": 1e-5, "step2/logit_scale": 1e-8, "out/scores_base": 1e-6, "out/scores_new": 1e-6},
    )


@torch.no_grad()
def llamp_outputs(run, lists):
    """Features and scores of both class lists, what the language model remembers, and the start."""
    method, clip, images, found = run.model.method, run.model.clip, run.tensors["input/images"], {}
    for subset, classes in lists.items():
        model = run.model.for_classes(classes)
        (_, frozen), memories = model.frozen_parts()[0], model.frozen_parts()[0][1].memories
        found[f"out/text_{subset}"] = torch.stack([method.features(clip, frozen, memory) for memory in memories])
        found[f"out/scores_{subset}"] = model(images).logits.exp()
        cache = torch.stack([torch.stack(layer) for layer in memories[0].layers])
        seen = memories[0].mask_CL[None, None, :, None, :, None].bool()
        found[f"cache/{subset}.0"] = torch.where(seen, cache, run.tensors[f"cache/{subset}.0"])
    states, layers = run.model.states(images, training=True), method._layers(clip, None, "")
    prompts = list(method.visual_prompts)
    found["out/image_features"] = prompted_image(clip, states["rows@1"], prompts, tower=layers)
    first = min(method._lora.values())
    taught = clip.vision.run(states[method._teacher], first, layers=layers, read=[0])[:, 0]
    found["out/image_features_teacher"] = clip.vision.read(taught)
    found["init/text_prompts.0"] = type(method)(clip, method.config).text_prompts[0]
    return found


READERS = {"clip_lora": clip_lora, "llamp": llamp, "mma": mma, "textrefiner": textrefiner}


def alpha_over_rank(monkeypatch):
    """Terms are multiplied by α/r instead of α/√r."""
    from dear.methods.clip_lora import ClipLoraConfig

    monkeypatch.setattr(ClipLoraConfig, "scale", property(lambda self: self.alpha / self.rank))


def one_mask(monkeypatch):
    """All matrices of a block share the mask of q."""
    from dear.methods.parts.lora import Dropout

    right = Dropout.__call__
    monkeypatch.setattr(Dropout, "__call__", lambda self, letter, x: right(self, "q", x))


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


def averaged_write(monkeypatch):
    """Slots get the mean of their rows instead of the weighted sum."""
    from dear.methods import textrefiner

    def mean(memory, rows, momentum):
        slot = (rows @ memory.T).argmax(1)
        counts = torch.bincount(slot, minlength=len(memory))[:, None]
        sums = torch.zeros_like(memory).index_add(0, slot, rows) / counts.clamp_min(1)
        written = momentum * memory + (1 - momentum) * sums
        return torch.nn.functional.normalize(torch.where(counts > 0, written, memory), dim=1)

    monkeypatch.setattr(textrefiner, "rewritten", mean)


def refined_of_unit_length(monkeypatch):
    """Refined class features lose their lengths."""
    from dear.methods import textrefiner

    right = textrefiner.refine

    def shorter(*args):
        found = right(*args)
        return found._replace(refined=found.classes)

    monkeypatch.setattr(textrefiner, "refine", shorter)


def detached_rows(monkeypatch):
    """The local loss does not reach the student's prompts."""
    from dear.methods.textrefiner_promptkd import TextRefinerKD

    right = TextRefinerKD._rows

    def cut(self, clip, rows, training):
        found, attention = right(self, clip, rows, training)
        return torch.cat([found[:, :1], found[:, 1:].detach()], dim=1), attention

    monkeypatch.setattr(TextRefinerKD, "_rows", cut)


def clean_teacher(monkeypatch):
    """The teacher is plain CLIP."""
    from dear.methods.llamp import LLaMP

    def taught(self, clip, image, batch):
        rows = image[self._teacher]
        return unit(clip.vision.read(clip.vision.run(rows, min(self._lora.values()), read=[0])[:, 0]))

    monkeypatch.setattr(LLaMP, "_taught", torch.no_grad()(taught))


def padding_is_counted(monkeypatch):
    """Positions of the language model count padding."""
    from dear.methods.parts.language import Copies

    right = Copies.run

    def counted(self, x, memory, *rest):
        return right(self, x, memory._replace(mask_CL=torch.ones_like(memory.mask_CL)), *rest)

    monkeypatch.setattr(Copies, "run", counted)


def one_rate(monkeypatch):
    """Low-rank terms have the rate of the others."""
    from vectors import compare

    right = compare.make_optimiser
    monkeypatch.setattr(
        compare, "make_optimiser", lambda recipe, named: right(recipe.model_copy(update={"groups": {}}), named)
    )


SPOILT = {
    "clip_lora": {"α/r": alpha_over_rank, "no decay": no_decay},
    "clip_lora-dropout": {"one mask for all matrices": one_mask, "no decay": no_decay},
    "llamp": {"clean teacher": clean_teacher, "padding is counted": padding_is_counted, "one rate": one_rate},
    "mma": {"gradients are not divided": true_gradient, "layers are one too low": one_layer_too_low},
    "textrefiner-promptkd": {"local rows without gradient": detached_rows},
    "textrefiner": {"averaged write": averaged_write, "refined features of unit length": refined_of_unit_length},
}
