"""Mistakes in TaskRes, GDA, LP++ and CLAP that the files must notice, by file."""

import torch
import torch.nn.functional as F

from dear.methods.base import unit


def blanks_for_underscores(monkeypatch):
    from dear.data.prompts import ClassList

    right = ClassList.prompts
    monkeypatch.setattr(ClassList, "prompts", lambda self, template=None: words(right(self, template)))


def words(prompts):
    return [prompt.replace("_", " ") for prompt in prompts]


def unit_base(monkeypatch):
    """Residuals are added to features of unit length."""
    from dear.methods.parts import residuals

    right = residuals.raw_class_features
    monkeypatch.setattr(residuals, "raw_class_features", lambda clip, classes: unit(right(clip, classes)))


def whole_residuals(monkeypatch):
    from dear.methods.taskres import TaskRes

    monkeypatch.setattr(TaskRes, "scale", 1.0)


def forgotten_decay(monkeypatch):
    import vectors.compare

    right = vectors.compare.make_optimiser
    without = {"decay": 0.0}
    monkeypatch.setattr(
        vectors.compare, "make_optimiser", lambda recipe, trained: right(recipe.model_copy(update=without), trained)
    )


def penalty_summed(monkeypatch):
    from dear.methods.clap import CLAP

    def loss(self, out, batch):
        constraint = (self.multipliers * out.rest["residuals"].square().sum(1)).sum()
        return {"ce": F.cross_entropy(out.logits, batch.labels), "constraint": constraint}

    monkeypatch.setattr(CLAP, "loss", loss)


def equal_multipliers(monkeypatch):
    from dear.methods.clap import CLAP

    right = CLAP.begin

    def begin(self, clip, draw):
        right(self, clip, draw)
        self.multipliers.fill_(float(self.multipliers.mean()))

    monkeypatch.setattr(CLAP, "begin", begin)


def multipliers_of_one_pass(monkeypatch):
    from dataclasses import replace

    from dear.methods.clap import CLAP

    right = CLAP.begin

    def begin(self, clip, draw):
        right(self, clip, replace(draw, image={"feature": draw.image["feature"][:1]}))

    monkeypatch.setattr(CLAP, "begin", begin)


def changed_inverse(monkeypatch, change):
    from dear.methods import gda

    right = gda.pseudo_inverse
    monkeypatch.setattr(gda, "pseudo_inverse", lambda matrix: change(right, matrix))


def missing_width(monkeypatch):
    """The factor E is forgotten."""
    changed_inverse(monkeypatch, lambda right, matrix: right(matrix) / matrix.shape[0])


def biased_variance(monkeypatch):
    """A class's scatter is divided by its number of views, not by one less."""
    changed_inverse(monkeypatch, lambda right, matrix: right(matrix * 19 / 20))


def unit_means(monkeypatch):
    from dear.methods import gda

    right = gda.fit_trained

    def fit(*given):
        found = right(*given)
        return found._replace(means=unit(found.means))

    monkeypatch.setattr(gda, "fit_trained", fit)


def views_averaged(monkeypatch):
    """The views of an image are one row."""
    from dear.methods import gda

    right = gda.fit_trained
    monkeypatch.setattr(gda, "fit_trained", lambda views, *others: right(unit(views.mean(0, keepdim=True)), *others))


def changed_new(monkeypatch, change):
    import vectors.class_probes
    from dear.methods import gda

    right = gda.fit_new
    for module in (gda, vectors.class_probes):
        monkeypatch.setattr(module, "fit_new", lambda *given: change(right, *given))


def no_copies_of_text(monkeypatch):
    changed_new(monkeypatch, lambda right, views, text, near, copies: right(views, text, near, 0))


def centred_on_the_mean(monkeypatch):
    """The scatter of a new class is around the mean of its neighbours, not around its text."""

    def fit(right, views, text, near, copies):
        precisions = []
        for one in text:
            chosen = views[(views @ one).topk(near).indices].double()
            around = chosen - chosen.mean(0)
            spread = around.square().sum() / (near - 1)
            shrunk = around.T @ around + spread * torch.eye(views.shape[1], dtype=torch.float64)
            precisions.append(views.shape[1] * torch.linalg.inv(shrunk))
        return right(views, text, near, copies)._replace(precision=torch.stack(precisions).mean(0))

    changed_new(monkeypatch, fit)


def covariances_averaged(monkeypatch):
    """The inverse of the mean, not the mean of the inverses."""

    def fit(right, views, text, near, copies):
        total = torch.zeros(views.shape[1], views.shape[1], dtype=torch.float64)
        for one in text:
            around = (views[(views @ one).topk(near).indices] - one).double()
            total += around.T @ around + around.square().sum() / (near - 1) * torch.eye(views.shape[1])
        inverse = views.shape[1] * torch.linalg.inv(total / len(text))
        return right(views, text, near, copies)._replace(precision=inverse)

    changed_new(monkeypatch, fit)


def last_alpha_wins(monkeypatch):
    from dear.methods.gda import ALPHAS, GDA

    def finish(self, clip, draw, held):
        right = self.accuracies(clip, held)
        self.alpha.fill_(ALPHAS[len(right) - 1 - right[::-1].index(min(right))])

    monkeypatch.setattr(GDA, "finish", finish)


def cleared_gradient(monkeypatch):
    """The gradient of α is cleared in every epoch."""
    from dear.methods.lppp import Training

    right = Training.steps

    def steps(self, probe, epochs, alpha_every):
        alpha, before = probe.alpha.clone(), torch.zeros_like(probe.alpha)
        for number, step in enumerate(right(self, probe, epochs, 10**9), start=1):
            own, before = step.gradient.alpha - before, step.gradient.alpha
            alpha = alpha if number % alpha_every else alpha - self.rates.alpha * own
            yield step._replace(gradient=step.gradient._replace(alpha=own), after=step.after._replace(alpha=alpha))

    monkeypatch.setattr(Training, "steps", steps)


def means_for_sums(monkeypatch):
    from dear.methods.lppp import Training

    right = Training.start

    def start(self, bias):
        found = right(self, bias)
        return found._replace(weight=found.weight / self._one_hot.sum(0)[:, None])

    monkeypatch.setattr(Training, "start", start)


def hundredfold_text(monkeypatch):
    from dear.methods.lppp import Training

    right = Training.logits
    monkeypatch.setattr(Training, "logits", lambda self, probe: right(self, probe._replace(alpha=100 * probe.alpha)))


def no_momentum(monkeypatch):
    from dear.methods import lppp

    monkeypatch.setattr(lppp, "MOMENTUM", 0.0)


SPOILT = {
    "clap": {
        "blanks for underscores": blanks_for_underscores,
        "the penalty is a sum": penalty_summed,
        "equal multipliers": equal_multipliers,
        "multipliers of one pass": multipliers_of_one_pass,
    },
    "gda": {
        "no factor E": missing_width,
        "means are made unit length": unit_means,
        "views are averaged": views_averaged,
        "another α wins": last_alpha_wins,
    },
    "gda-base2new": {
        "no copies of the text": no_copies_of_text,
        "biased variance": biased_variance,
        "centred on the mean": centred_on_the_mean,
        "covariances are averaged": covariances_averaged,
    },
    "lppp": {
        "α's gradient is cleared": cleared_gradient,
        "means for sums": means_for_sums,
        "a factor of 100": hundredfold_text,
        "no momentum": no_momentum,
    },
    "taskres": {
        "blanks for underscores": blanks_for_underscores,
        "features of unit length": unit_base,
        "whole residuals": whole_residuals,
        "forgotten decay": forgotten_decay,
    },
}
