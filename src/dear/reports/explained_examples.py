"""A few test images of a report, taken apart: right ones and wrong ones."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dear.data.dataset import Dataset, Item
from dear.errors import ImageError
from dear.model.explanation import explain_image, picture_seen
from dear.model.model import Model
from dear.reports.explanation_view import View, roles_of, view_of

EACH = 2
"""Examples that are right, and as many that are wrong."""
CLASSES = 2


def explained_examples(
    model: Model, dataset: Dataset, items: Sequence[Item], picks: Tensor, confidence: Tensor
) -> list[View]:
    """The right and the wrong answers that the model is most certain of, each beside the second class, or the true one.

    `model` has the classes that `picks` and the items' labels number; an image that cannot be read has no pick.
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
        found = explain_image(model, image, roles=roles, top_k=classes, also=[truth], name=items[index].id)
        answer = found.classes[0]
        sure = f"{100 * found.probabilities[0]:.0f} % {answer}"
        title = f"Right: {sure}" if answer == truth else f"Wrong: {sure} (is {truth})"
        views.append(view_of(found, picture_seen(model.clip, image), roles, title))
    return views
