"""The tolerances in docs/reference/methods.md are those of the comparison with reference numbers (tests/vectors)."""

import re
from pathlib import Path

import pytest
import torch

from vectors.__main__ import OWN
from vectors.compare import TOLERANCE, UPDATE_TOLERANCE, read_pair
from vectors.readers import reader_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "methods.md"
NUMBER = re.compile(r"\d+(?:\.\d+)?e-\d+")
SINGLE_ENTRIES = ("mm_adapter", "tcp")
"""Files whose tolerance of an update is stated entry by entry."""


@pytest.fixture(scope="module")
def stated() -> dict[str, list[float]]:
    """The numbers of each row of the page's table."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {what: [float(one) for one in NUMBER.findall(text)] for what, text in rows if NUMBER.search(text)}


@pytest.fixture(scope="module")
def cases():
    pairs = {path.stem: read_pair(path) for path in sorted(OWN.glob("*.safetensors"))}
    return {stem: (reader_of(facts)(facts, tensors), tensors) for stem, (facts, tensors) in pairs.items()}


def largest_logits(cases) -> dict[str, float]:
    found = {}
    for stem, (_, tensors) in cases.items():
        sizes = [float(tensor.abs().max()) for name, tensor in tensors.items() if "logits" in name]
        if sizes:
            found[stem] = max(sizes)
    return found


@pytest.mark.covers("T10")
def test_usual_tolerances(stated):
    assert stated["logits and losses"] == [TOLERANCE]
    assert set(stated["gradients"]) == {TOLERANCE}
    assert stated["parameters after one and two updates, where they are known"][0] == UPDATE_TOLERANCE


@pytest.mark.covers("T10")
def test_exceptions_are_all_listed(stated, cases):
    most, updates = stated["parameters after one and two updates, where they are known"][1], set()
    for case, _ in cases.values():
        for name, allowed in case.tolerance.items():
            kind = name.split("/", 1)[0]
            if kind in ("step1", "step2") and not isinstance(allowed, torch.Tensor):
                assert allowed <= most
                updates |= {case.method} if allowed > UPDATE_TOLERANCE else set()
            if isinstance(allowed, torch.Tensor) and kind in ("step1", "step2"):
                assert case.method in SINGLE_ENTRIES
            if "logits" in name and torch.as_tensor(allowed).max() > TOLERANCE:
                assert case.method in ("textrefiner", "gda")
    assert updates | set(SINGLE_ENTRIES) == {"clip_lora", "llamp", "lppp", "tcp", "mm_adapter"}


def test_tolerances_of_gda_and_lppp(stated, cases):
    assert set(stated["GDA"]) == set(stated["LP++"]) == {1e-3}
    for stem, names in {"gda": ("precision", "weight", "bias"), "lppp": ("weight", "bias", "alpha")}.items():
        case, tensors = cases[stem]
        for name in names:
            where = f"{'out' if stem == 'gda' else 'last'}/{name}"
            assert case.tolerance[where] == pytest.approx(1e-3 * float(tensors[where].abs().max()))


@pytest.mark.covers("T10")
def test_sizes_of_logits_and_methods_without_any(stated, cases):
    sizes = {stem: size for stem, size in largest_logits(cases).items() if not stem.startswith("gda")}
    assert set(cases) - set(sizes) == {"llamp", "linear_probe", "gda", "gda-base2new"}
    local = sizes.pop("textrefiner")
    share, allowed = stated["local logits of TextRefiner"]
    assert cases["textrefiner"][0].tolerance["out/logits_local"] == pytest.approx(share * local)
    assert allowed == pytest.approx(share * local, rel=0.02)
    assert round(local) == 312
    low, high = map(int, re.search(r"between (\d+) and (\d+)", PAGE.read_text(encoding="utf-8")).groups())
    assert low <= min(sizes.values())
    assert max(sizes.values()) <= high
    assert stated["LLaMP"] == [cases["llamp"][0].tolerance["out/scores_base"]]
    fits = {v for name, v in cases["linear_probe"][0].tolerance.items() if name.endswith(("coef", "decision_test"))}
    assert {*stated["linear probe"]} == fits
