"""Predict: what photos show, among any classes, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dear.app.studio import Session, Studio, chosen, dropped, opened, thumbnail, typed_classes
from dear.data.images import ImageStream, NamedImage
from dear.errors import ImageError, InputError
from dear.model.explanation import explain_image, picture_seen
from dear.model.model import Model
from dear.model.predict import AnswerRule, stream
from dear.reports.explanation_view import explanation_html
from dear.reports.render import Picture, render

SHOWN_CLASSES = 5
EXPLAINED_CLASSES = 3
NONE = "none of these"


@dataclass(frozen=True)
class Answer:
    """What one photo shows, or why it cannot be read."""

    picture: Picture | None
    label: str
    """The likeliest class, or "none of these"."""
    bars: tuple[tuple[str, float], ...] = ()
    """Classes with their probabilities in per cent, likeliest first."""
    problem: str = ""


@dataclass(frozen=True)
class PhotoAnswers:
    """Answers for all photos, with a sentence about what they rest on."""

    answers: tuple[Answer, ...]
    basis: str

    def html(self) -> str:
        """A part of the page; every name in it is escaped."""
        return render("app_answers.html", answers=self.answers, basis=self.basis)

    @property
    def labels(self) -> list[str]:
        """The answers in words."""
        return [one.problem or one.label for one in self.answers]


def predict_photos(
    studio: Studio, session: Session, paths: Sequence[str | Path] | None, classes: str | None, reject: bool = True
) -> PhotoAnswers:
    """Classify dropped photos among the session's classes, or among those typed in."""
    photos, names = dropped(paths), typed_classes(classes)
    if names is not None and len(names) == 1:
        raise InputError("Among one class, every photo shows it: type a second one, after a comma.")
    model = studio.view(session, names)
    can_reject = model.calibrated() is not None
    rule = AnswerRule(reject=reject and can_reject)
    images = ImageStream([NamedImage(one.name, lambda one=one: opened(one)) for one in photos], len(photos))  # type: ignore[misc]
    found = stream(model, images, top_k=SHOWN_CLASSES, rule=rule)
    answers = []
    for photo, one in zip(photos, found, strict=True):
        if isinstance(one, ImageError):
            answers.append(Answer(None, "", problem=str(one)))
            continue
        label = NONE if one.labels == () else one.label
        bars = tuple((name, 100 * probability) for name, probability in one.top)
        answers.append(Answer(Picture(thumbnail(opened(photo)), photo.name), label, bars))
    return PhotoAnswers(tuple(answers), basis(studio, session, model, typed=names is not None, reject=rule.reject))


def basis(studio: Studio, session: Session, model: Model, *, typed: bool, reject: bool) -> str:
    """What answers rest on, and how far probabilities can be believed."""
    count = len(model.required_classes().names)
    which = f"{count} classes that you typed in" if typed else f"the {count} classes of this adapter"
    taught = f", with {len(session.lessons)} photos that you taught" if session.taught else ""
    fit = model.calibrated()
    if fit is None:
        return (
            f"Among {which}{taught}. The probabilities are not calibrated for these classes, so there is no "
            f"“{NONE}”: the likeliest class is named even if none fits."
        )
    below = f" “{NONE}” is answered below {100 * fit.reject_below:.0f} %." if reject else ""
    return f"Among {which}. The probabilities are calibrated on {fit.images} photos.{below}"


def explain_photo(
    studio: Studio, session: Session, paths: Sequence[str | Path] | None, which: str | None, classes: str | None
) -> str:
    """A page that says why a photo gets its answer: what each role and feature adds, and where in the photo."""
    photo = chosen(dropped(paths), which)
    model = studio.view(session, typed_classes(classes))
    image = model.clip.preprocess_eval(opened(photo))
    found = explain_image(model, image, roles=studio.roles, top_k=EXPLAINED_CLASSES, name=photo.name)
    return explanation_html(found, picture_seen(model.clip, image), model, studio.roles)
