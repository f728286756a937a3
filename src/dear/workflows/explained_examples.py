"""Explanations of a few test images for a run's page: right answers and wrong ones."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dear.data.dataset import Dataset, Item
from dear.errors import ImageError
from dear.model.explanation import explain_image, picture_seen
from dear.model.model import Model
from dear.reports.explanation_view import ExplanationView, roles_of, view_of

EACH = 2
"""Number of right examples, and of wrong ones."""
CLASSES = 2


def explained_examples(
    model: Model, dataset: Dataset, items: Sequence[Item], picks: Tensor, confidence: Tensor
) -> list[ExplanationView]:
    """Explain the most certain right and wrong answers, each compared with the second class or with the true one.

    `picks` and the labels of the items are indices of the model's classes; the pick of an unreadable image is -1.
    """
    answered = [i for i, pick in enumerate(picks.tolist()) if pick >= 0]
    order = sorted(answered, key=lambda i: (-float(confidence[i]), i))
    right = [i for i in order if int(picks[i]) == items[i].label]
    wrong = [i for i in order if int(picks[i]) != items[i].label]
    names, roles = model.required_classes().names, roles_of(model)
    views = []
    for index in (*right[:EACH], *wrong[:EACH]):
        try:
            image = model.clip.preprocess_eval(dataset.open(items[index].id))
        except ImageError:
            continue
        truth = names[items[index].label]
        classes = CLASSES if int(picks[index]) == items[index].label else CLASSES - 1
        explanation = explain_image(model, image, roles=roles, top_k=classes, also=[truth], name=items[index].id)
        answer = explanation.classes[0]
        sure = f"{100 * explanation.probabilities[0]:.0f} % {answer}"
        title = f"Right: {sure}" if answer == truth else f"Wrong: {sure} (is {truth})"
        views.append(view_of(explanation, picture_seen(model.clip, image), roles, title))
    return views
