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


def compare_with_reference(
    model: dear.DeAR, images: torch.Tensor, labels: torch.Tensor, names: list[str], template: str
) -> dict[str, float]:
    """Relative error of everything, by name."""
    model.set_classes(names, template)
    out = model(images)
    terms = model.loss(out, labels, images=images)
    terms.total.backward()
    gradients = {name: p.grad.clone() for name, p in model.trainable().items()}
    model.zero_grad()

    expected, expected_terms = reference(model, images, labels, [template.replace("{}", name) for name in names])
    expected_terms["total"].backward()
    errors = {name: relative_error(getattr(out, name), value) for name, value in expected.items()}
    for name, value in expected_terms.items():
        errors[f"loss.{name}"] = abs(getattr(terms, name).item() - value.item()) / max(SMALLEST_TERM, abs(value.item()))
    for name, parameter in model.trainable().items():
        errors[f"gradient.{name}"] = relative_error(gradients[name], parameter.grad)
    model.zero_grad()
    return errors


def assert_matches(errors: dict[str, float]) -> None:
    wrong = {name: error for name, error in errors.items() if not error <= TOLERANCE}
    assert not wrong, wrong
