"""The words that pages use, explained for people who do not do this for a living."""

from __future__ import annotations

import re
from collections.abc import Mapping

GLOSSARY: Mapping[str, str] = {
    "CLIP": "A model that knows images and words. It names an image by comparing it with a sentence for every class.",
    "plain CLIP": "CLIP as it was published, without what was trained here. It is tested on the same images.",
    "adapter": "What was trained here: a small file beside CLIP. CLIP itself stays as it is.",
    "class": "One of the names that an image can get, such as “border collie”.",
    "trained classes": "Classes that were trained on. The images of the test are others than those of the training.",
    "base classes": "The first half of the classes, if only one half was trained on.",
    "novel classes": "The other half. They show whether the adapter has become worse at what it was not trained on.",
    "± points": "How sure the number is: if the test were repeated with other images like these, 95 of 100 such ranges "
    "would hold the true share (Wilson's interval).",
    "beyond chance": "Yes if a coin would favour one of both so clearly in fewer than 5 of 100 tries, counting the "
    "images that only one of both names correctly (McNemar's exact test).",
    "certain": "The share that the model gives to its answer among all classes. It can be certain and wrong.",
    "confusion": "Which class is taken for which other one.",
    "harmonic mean": "A mean of two numbers that is high only if both are.",
    "shots": "Training images per class.",
    "seed": "A number that decides what is drawn at random. The same seed gives the same result.",
    "epoch": "One pass over all training images.",
    "step": "One update of the adapter, from one batch of images.",
    "loss": "What the training makes smaller. Its terms are drawn by the names that the method gives them.",
    "readout": "One of several ways in which a method reads its answer; the first is the one that is used.",
    "fusion": "A readout: the answers of all features, each with its learned weight.",
    "decoupled": "A readout: the feature of the whole image alone.",
    "weight": "How much a feature counts in the answer.",
    "feature": "The numbers by which an image is compared with words or with other images.",
    "cls": "The feature of the whole image, which plain CLIP uses as well.",
    "cosine": "How alike two features are: 1 is the same direction, 0 has nothing in common.",
    "head": "A part of a layer of CLIP that decides for itself where to look.",
    "role": "What a head responds to, such as color or shape; found by looking at many images.",
    "template": "The sentence around a class name, such as “a photo of a cat”.",
    "top-1": "Counted as right only if the first answer is right.",
}


def anchor(term: str) -> str:
    """The place of a term on a page."""
    return "term-" + re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def terms_in(text: str) -> dict[str, str]:
    """The terms that a text uses, in the glossary's order."""
    return {term: meaning for term, meaning in GLOSSARY.items() if _pattern(term).search(text)}


def _pattern(term: str) -> re.Pattern[str]:
    if term == "± points":
        return re.compile("±")
    stem = re.escape(term.removesuffix("s"))
    return re.compile(rf"(?<![\w-]){stem}(s|es)?(?![\w-])", re.IGNORECASE)
