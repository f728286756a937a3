"""TaskRes, GDA, LP++, CLAP: `settings` in the JSON → a case."""

import torch

from dear.data.prompts import class_list
from dear.methods.base import Draw, unit
from dear.methods.gda import ALPHAS, fit_new, fit_trained
from dear.methods.lppp import Probe, Training, correct
from dear.methods.recipe import Recipe
from vectors.class_probe_mistakes import SPOILT as SPOILT
from vectors.compare import Case, optimiser_numbers, words
from vectors.feature_methods import EXACT, FIXED, STEP, raw_features, stored_logits


def listed(facts, names):
    """Classes of a file as they are written, by its only template."""
    (template,) = facts["settings"]["templates"]
    return class_list(names, template)


def optimiser(facts, kind) -> Recipe:
    settings = facts["settings"]
    numbers = {"decay": 0.0, **optimiser_numbers(facts)}
    return Recipe(optimiser=kind, lr=settings["lr"], **numbers, **FIXED)


def draw_of(run, features, labels):
    return Draw({"feature": features}, labels, run.model.required_classes())


# Residuals -----------------------------------------------------------------------------------------------------------


def taskres(facts, tensors) -> Case:
    @torch.no_grad()
    def found(run):
        method, clip, images = run.model.method, run.model.clip, run.tensors["input/images"].float()
        base = method.classes(clip, run.model.classes).base
        feature = unit(raw_features(run))
        return {
            "out/features_image": feature,
            "out/text_base": base,
            "out/logits_zero_residual": clip.temperature * feature @ unit(base).T,
            "out/logits": run.model(images).logits,
        }

    config = {"alpha": facts["settings"]["residual_scale"]}
    how = {"found": found, "tolerance": STEP}
    return Case("taskres", config, listed(facts, facts["classes"]), optimiser(facts, "adam"), **how)


def clap(facts, tensors) -> Case:
    """Our parameters are the differences between the file's and the text features."""
    settings, labels, base = facts["settings"], tensors["input/train_labels"], tensors["out/text_base"]
    passes = settings["augmentation_passes"]
    assert settings["constraint"] == "l2"
    rows = tensors["input/batch_index"]
    tensors["input/images"] = torch.cat([tensors[f"input/train_images.{k}"] for k in range(passes)])[rows]
    tensors["input/labels"] = labels.repeat(passes)[rows]
    tensors["param/residuals"] = tensors.pop("param/prototypes") - base

    @torch.no_grad()
    def prepare(run):
        method, given = run.model.method, run.model.method.residuals.detach().clone()
        views = torch.stack([raw_features(run, f"input/train_images.{k}") for k in range(passes)])
        method.begin(run.model.clip, draw_of(run, views, labels))
        assert not method.residuals.any()
        method.residuals.data = given

    @torch.no_grad()
    def found(run):
        method, clip = run.model.method, run.model.clip
        views = torch.cat([raw_features(run, f"input/train_images.{k}") for k in range(passes)])
        own = method.classes(clip, run.model.classes).base
        return {
            "out/text_base": own,
            "out/train_features": views,
            "out/logits_zero_shot": clip.temperature * unit(views) @ unit(own).T,
            "out/multipliers": method.multipliers.clone(),
            "out/logits_test": run.model(run.tensors["input/test_images"].float()).logits,
            "param/prototypes": own + method.residuals,
        }

    @torch.no_grad()
    def later(run, steps):
        ours = {f"step{k}/prototypes": steps[f"step{k}/residuals"] + base for k in (1, 2)}
        after = run.model(run.tensors["input/test_images"].float()).logits
        return {**ours, "grad/prototypes": steps["grad/residuals"], "out/logits_test_step2": after}

    config = {"passes": passes}
    how = {"prepare": prepare, "found": found, "later": later, "tolerance": {**STEP, "out/multipliers": 1e-6}}
    return Case("clap", config, listed(facts, facts["classes"]), optimiser(facts, "sgd"), **how)


# Gaussians -----------------------------------------------------------------------------------------------------------


def gda(facts, tensors) -> Case:
    settings, new = facts["settings"], words(facts.get("novel_classes", ()))
    estimator = "by_class" if new else "pooled"
    config = {"passes": settings["augment_epoch"], "neighbours": settings["neighbours"] or 0}
    config |= {"text_copies": settings["text_copies"]} if new else {}
    labels, count = tensors["input/train_labels"], len(facts["classes"])
    assert list(ALPHAS) == settings["alphas"]

    def views_of(run):
        if "input/train_features" in tensors:
            return tensors["input/train_features"].unflatten(0, (settings["augment_epoch"], -1))
        return torch.stack([unit(raw_features(run, f"input/train_images.{k}")) for k in range(config["passes"])])

    def prepare(run):
        run.model.method.begin(run.model.clip, draw_of(run, views_of(run), labels))

    @torch.no_grad()
    def found(run):
        method, clip, held = run.model.method, run.model.clip, stored(run, "val")
        text = method.classes(clip, run.model.classes).weights
        fitted = fit_trained(views_of(run), labels, text, estimator)
        ours = {
            "out/clip_weights": text.T,
            "out/train_features": views_of(run).flatten(0, 1),
            "out/means": fitted.means,
            "out/precision": fitted.precision,
            "out/weight": method.weight.T,
            "out/bias": method.bias - torch.tensor(float(count)).log(),
            "search/alpha": torch.tensor(ALPHAS),
            "out/acc_val_grid": torch.tensor(method.accuracies(clip, held)) * 100 / held.labels.shape[0],
            "out/logits_val_grid": torch.stack([at_alpha(run, alpha, "val") for alpha in ALPHAS]),
        }
        method.finish(clip, None, held)
        numbers = {
            "found/alpha": method.alpha.double(),
            "found/val_acc": accuracy(stored_logits(run, "val"), held.labels),
            "found/test_acc": accuracy(stored_logits(run, "test"), tensors["input/test_labels"]),
            "out/logits_test": stored_logits(run, "test"),
        }
        return {**ours, **numbers, **(new_classes(run, new, settings) if new else {})}

    scaled = [name for name in tensors if name.endswith(("precision", "weight", "bias"))]
    allowed = torch.tensor([1e-3 * max(1.0, alpha * float(tensors["out/weight"].abs().max())) for alpha in ALPHAS])
    at_found = 1e-3 * max(1.0, facts["found"]["alpha"] * float(tensors["out/weight"].abs().max()))
    tolerance = {
        "found": EXACT,
        "out/acc_val_grid": 1e-4,
        "found/val_acc": 1e-9,
        "found/test_acc": 1e-9,
        "found/novel_acc": 1e-9,
        "out/logits_val_grid": allowed[:, None, None],
        "out/logits_test": at_found,
        "out/logits_novel": at_found,
        **{name: 1e-3 * float(tensors[name].abs().max()) for name in scaled},
    }
    names = ("alpha", "val_acc", "test_acc", *(("novel_acc",) if new else ()))
    expected = {f"found/{name}": torch.tensor(facts["found"][name], dtype=torch.float64) for name in names}
    how = {"prepare": prepare, "found": found, "expected": expected, "tolerance": tolerance}
    return Case("gda", config, listed(facts, words(facts["classes"])), **how)


def stored(run, name) -> Draw:
    return draw_of(run, run.tensors[f"input/{name}_features"], run.tensors[f"input/{name}_labels"])


def at_alpha(run, alpha, name):
    run.model.method.alpha.fill_(alpha)
    return stored_logits(run, name)


def accuracy(logits, labels):
    return (logits.argmax(1) == labels).double().mean() * 100


def new_classes(run, names, settings) -> dict:
    """What the file knows about classes that were not trained."""
    model, method, tensors = run.model.for_classes(names), run.model.method, run.tensors
    text = method.classes(run.model.clip, model.classes).weights
    fitted = fit_new(method.views, text, settings["neighbours"], settings["text_copies"])
    both = method.text(run.model.clip, method.classes(run.model.clip, model.classes))
    logits = model(given={"feature": tensors["input/novel_test_features"]}).logits
    return {
        "out/clip_weights_novel": text.T,
        "out/novel_means": fitted.means,
        "out/novel_precision": fitted.precision,
        "out/novel_weight": both.gauss.T,
        "out/novel_bias": both.bias,
        "out/logits_novel": logits,
        "found/novel_acc": accuracy(logits, tensors["input/novel_test_labels"]),
    }


# LP++ ----------------------------------------------------------------------------------------------------------------


def lppp(facts, tensors) -> Case:
    settings, theirs = facts["settings"], facts["found"]
    config = {"epochs": settings["epochs"], "alpha_every": settings["alpha_every"]}

    @torch.no_grad()
    def found(run):
        method, clip = run.model.method, run.model.clip
        feature = {part: unit(raw_features(run, f"input/{part}_images")) for part in ("train", "val", "test")}
        held = {part: draw_of(run, feature[part], tensors[f"input/{part}_labels"]) for part in feature}
        text = method.classes(clip, run.model.classes).weights
        training = Training(feature["train"], tensors["input/train_labels"], text)
        start = training.start(tensors["param/bias"].clone())
        ours = {f"param/{name}": one for name, one in start._asdict().items()}
        ours |= {f"out/{part}_features": one for part, one in feature.items()} | {"out/clip_weights": text.T}
        ours |= {f"found/lr_{name}": torch.tensor(rate) for name, rate in training.rates._asdict().items()}
        ours |= {"found/alpha_init": start.alpha[0, 0], "out/logits": training.logits(start)}
        losses, rights = [], []
        for epoch, step in enumerate(training.steps(start, **config)):
            losses.append(step.loss)
            rights.append([accuracy_of(step.after, text, held[part]) for part in ("val", "test")])
            if epoch == 0:
                ours |= {f"grad/{name}": one.clone() for name, one in step.gradient._asdict().items()}
            if epoch == 9:
                ours["grad/alpha_accumulated_10"] = step.gradient.alpha
            if epoch < 2:
                ours |= {f"step{epoch + 1}/{name}": one.clone() for name, one in step.after._asdict().items()}
        ours |= {f"last/{name}": one for name, one in step.after._asdict().items()}
        ours |= {"loss/per_epoch": torch.stack(losses), "loss/total": losses[0], "second/total": losses[1]}
        draw = draw_of(run, feature["train"][None], tensors["input/train_labels"])
        method.fit(clip, draw, held["val"], tensors["param/bias"].clone())
        model_is_right = accuracy(run.model(given=held["test"].image).logits, held["test"].labels)
        return {**ours, **selected(rights), "found/test_acc": model_is_right}

    expected = {f"found/{name}": torch.tensor(theirs[name]) for name in ("lr_weight", "lr_alpha", "alpha_init")}
    expected |= {
        "found/val_acc_per_epoch": torch.tensor(theirs["val_acc_per_epoch"], dtype=torch.float64),
        "found/test_acc_at_best": at_epochs(dict(theirs["test_acc_at_best"]), settings["epochs"]),
        "found/selected_epoch": torch.tensor(theirs["selected_epoch"]),
        "found/test_acc": torch.tensor(theirs["test_acc"], dtype=torch.float64),
    }
    tolerance = {name: 1e-3 * float(t.abs().max()) for name, t in tensors.items() if name.startswith("last/")}
    tolerance |= {"step1": 1e-5, "step2": 1e-5, "found": 1e-9, "found/selected_epoch": EXACT}
    tolerance |= {f"found/lr_{name}": 1e-5 * theirs[f"lr_{name}"] for name in ("weight", "alpha")}
    tolerance |= {"found/alpha_init": 1e-4}
    how = {"found": found, "expected": expected, "tolerance": tolerance, "by_itself": True}
    return Case("lppp", config, listed(facts, words(facts["classes"])), **how)


def accuracy_of(probe: Probe, text, held) -> float:
    return 100 * correct(probe, text, held) / held.labels.shape[0]


def at_epochs(found, count):
    """One number per epoch, −1 if there is none."""
    return torch.tensor([found.get(epoch, -1) for epoch in range(count)], dtype=torch.float64)


def selected(rights) -> dict:
    """The epochs that were the best so far on validation images, ties included, and the last of them."""
    most = [max(val for val, _ in rights[: epoch + 1]) for epoch in range(len(rights))]
    best = {epoch: test for epoch, (val, test) in enumerate(rights) if val >= most[epoch]}
    return {
        "found/val_acc_per_epoch": torch.tensor([val for val, _ in rights], dtype=torch.float64),
        "found/test_acc_at_best": at_epochs(best, len(rights)),
        "found/selected_epoch": torch.tensor(max(best)),
    }


READERS = {"clap": clap, "gda": gda, "lppp": lppp, "taskres": taskres}
