"""Compare a model with the reference: every output, every loss term, every gradient."""

from __future__ import annotations

import torch

import dear
from reference import reference

TOLERANCE = 1e-4
SMALLEST_TERM = 1e-2  # 1 - cosine is a difference of numbers near 1, so fp32 gives it about 1e-7 absolutely


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    ours, theirs = ours.detach(), theirs.detach()
    return float((ours - theirs).norm() / theirs.norm().clamp_min(1e-12))


def outputs(model: dear.Model, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the reference calls a DeAR model's outputs."""
    out = model(images)
    cls, *attributes = out.features.values()
    return {
        "logits": out.logits,
        "cls_logits": out.readouts["decoupled"],
        "attr_logits": torch.stack([model.clip.temperature * one @ out.classes.T for one in attributes], dim=1),
        "alpha": torch.stack(list(out.weights.values())),
        "cls_features": cls,
        "attr_features": torch.stack(attributes, dim=1),
        "class_features": out.classes,
    }


def compare_with_reference(
    model: dear.Model, images: torch.Tensor, labels: torch.Tensor, names: list[str], template: str
) -> dict[str, float]:
    """Relative error of everything, by name."""
    model = model.for_classes(names, template)
    found = outputs(model, images)
    terms = model.loss(images, labels)
    terms["total"].backward()
    gradients = {name: p.grad.clone() for name, p in model.trainable().items()}
    model.zero_grad()

    expected, expected_terms = reference(model, images, labels, [template.replace("{}", name) for name in names])
    expected_terms["total"].backward()
    errors = {name: relative_error(found[name], value) for name, value in expected.items()}
    for name, value in expected_terms.items():
        errors[f"loss.{name}"] = abs(terms[name].item() - value.item()) / max(SMALLEST_TERM, abs(value.item()))
    for name, parameter in model.trainable().items():
        errors[f"gradient.{name}"] = relative_error(gradients[name], parameter.grad)
    model.zero_grad()
    return errors


def assert_matches(errors: dict[str, float]) -> None:
    wrong = {name: error for name, error in errors.items() if not error <= TOLERANCE}
    assert not wrong, wrong
