"""The glossary of the pages: technical terms, explained for people outside the field."""

from __future__ import annotations

import re
from collections.abc import Mapping

GLOSSARY: Mapping[str, str] = {
    "CLIP": "A model of images and text. It names an image by comparing it with one sentence per class.",
    "plain CLIP": "CLIP as it was published, without the adapter. It is tested on the same images.",
    "adapter": "The result of the training: a small file of weights used with CLIP. CLIP itself does not change.",
    "class": "One of the possible names of an image, such as “border collie”.",
    "trained classes": "The classes of the training images. The test uses other images of them.",
    "base classes": "The first half of the classes, if only one half was used for training.",
    "novel classes": "The other half. They show whether the adapter is worse than plain CLIP on new classes.",
    "± points": "The uncertainty of the number: if the test were repeated with other images like these, 95 of 100 such "
    "intervals would contain the true value (Wilson's interval).",
    "beyond chance": "Yes if the difference is statistically significant: with equally good models, a difference this "
    "large occurs in fewer than 5 of 100 tests (McNemar's exact test).",
    "certain": "The probability that the model assigns to its answer. A model can be certain and wrong.",
    "confusion": "Mistaking one class for another.",
    "harmonic mean": "A mean of two numbers that is high only if both are.",
    "shots": "Number of training images per class.",
    "seed": "The start value of the random numbers. The same seed gives the same result.",
    "epoch": "One pass over all training images.",
    "step": "One update of the adapter, from one batch of images.",
    "loss": "The quantity that training minimises. The chart shows its terms by the method's own names.",
    "readout": "One of several ways to compute a method's answer; the first one is the default.",
    "fusion": "A readout: the answers of all features, each with its learned weight.",
    "decoupled": "A readout: the feature of the whole image alone.",
    "weight": "The importance of a feature for the answer.",
    "feature": "A list of numbers that describes an image, used to compare it with text or other images.",
    "cls": "The feature of the whole image, which plain CLIP uses as well.",
    "cosine": "The similarity of two features: 1 is the same direction, 0 is unrelated.",
    "head": "A part of a layer of CLIP with its own attention: it decides where in the image to look.",
    "role": "What a head responds to, such as color or shape; determined from many images.",
    "template": "The sentence around a class name, such as “a photo of a cat”.",
    "top-1": "Only the first answer counts.",
}


def anchor(term: str) -> str:
    """The anchor of a term on a page."""
    return "term-" + re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def terms_in(text: str) -> dict[str, str]:
    """The terms that a text uses, in the glossary's order."""
    return {term: meaning for term, meaning in GLOSSARY.items() if _pattern(term).search(text)}


def _pattern(term: str) -> re.Pattern[str]:
    if term == "± points":
        return re.compile("±")
    stem = re.escape(term.removesuffix("s"))
    return re.compile(rf"(?<![\w-]){stem}(s|es)?(?![\w-])", re.IGNORECASE)
