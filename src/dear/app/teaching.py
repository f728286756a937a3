"""Teach: photos with labels become a small adapter, trained in seconds from features that are in memory.

The method is Tip-Adapter-F: the features of the run's training photos and of the new ones are trained as a second
classifier beside the text. A class that nobody named before is one more row of both. Shapes: N photos, E embedding.
"""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dear.app.run_photos import RunPhotos, answers, plain_features
from dear.app.studio import (
    ALL_PHOTOS,
    Lesson,
    Session,
    Studio,
    checked_name,
    chosen,
    dropped,
    opened,
    taught_classes,
    thumbnail,
    typed_classes,
)
from dear.data.prompts import DEFAULT_TEMPLATE, ClassList, class_list
from dear.engine.feed import Feed, Views
from dear.engine.loop import train
from dear.errors import InputError
from dear.methods.base import Draw
from dear.methods.registry import get_method
from dear.model.load import make_method
from dear.model.model import Model
from dear.reports.render import Picture, render

METHOD = "tip_adapter_f"
SETTINGS = {"passes": 1, "init_alpha": 3.0, "init_beta": 3.0}
RECIPE = {"epochs": 60, "lr": 3e-3}
"""Chosen on validation images of three data sets of the world, so that a corrected photo is learned at once."""
AS_NEW, AS_CORRECTED = 16, 4
"""Rows that the photos of a new class have together, as other classes have 16 shots, and a photo of a known class."""
MOST_LESSONS = 100
HELD_OUT = 4
"""Of this number of photos of a new class, one is not taught but tested; with fewer, nothing can be said about it."""
FEW_TESTED = 30
"""With fewer test photos, a small difference means nothing."""
SEED = 1
PACKED = "taught"
"""The folder in a downloaded ZIP file."""


@dataclass(frozen=True)
class Score:
    """How many of some photos are named correctly, before and after."""

    photos: int
    before: int
    after: int


@dataclass(frozen=True)
class Outcome:
    """What came out of teaching, on photos that were taught and on photos that were not."""

    taught: Score
    """Photos that were taught: shows what was memorised."""
    held_out: Score
    """Photos of new classes that were set aside."""
    tested: Score
    """The run's own test photos."""
    untested: tuple[str, ...]
    """New classes with too few photos to set one aside."""
    shots: int
    """Training photos of the run that were used."""

    def scores(self) -> list[tuple[str, Score]]:
        """All scores by name."""
        return [
            ("your photos that were not taught", self.held_out),
            ("test photos of the adapter's own classes", self.tested),
            ("your photos that were taught", self.taught),
        ]

    def sentences(self) -> list[str]:
        """What to know before believing the numbers."""
        found = []
        if self.untested:
            names = ", ".join(f"“{name}”" for name in self.untested)
            found.append(
                f"Too few photos to test {names}: with at least {HELD_OUT} photos of a new class, every "
                f"{HELD_OUT}th is set aside and tested."
            )
        if self.shots:
            found.append(
                f"Teaching trains a Tip-Adapter-F on {self.shots} photos of the run and on yours, so a part of the "
                f"difference comes from the method."
            )
        else:
            found.append(
                "The photos that the run was trained on are not here, so only yours were learned: its other classes "
                "are answered as plain CLIP would."
            )
        if not self.tested.photos:
            found.append("There are no test photos of the run's own classes here, so what they lose is unknown.")
        elif self.tested.photos < FEW_TESTED:
            found.append(f"{self.tested.photos} test photos are too few to say more than roughly.")
        elif self.tested.after < self.tested.before:
            found.append("The run's own classes lost a little: more photos of what was confused would help.")
        return found


def learn(studio: Studio, session: Session, classes: str | None = None) -> tuple[Session, Outcome]:
    """Train on the lessons of a session and the run's own photos; the session's model afterwards is the new one.

    A CLIP without classes of its own takes those that were typed in, besides the taught ones.
    """
    if not session.lessons:
        raise InputError("Nothing is taught yet: drop photos, say what they show, and add them.")
    names = taught_classes(studio, session)
    if not studio.class_names:
        names = tuple(dict.fromkeys((*(typed_classes(classes) or ()), *names)))
    if len(names) < 2:
        raise InputError("One class cannot be confused with anything: teach a second one, or type classes first.")
    new = [name for name in taught_classes(studio, session) if name not in studio.class_names]
    taught, held = divided(session.lessons, new)
    shots_NE, labels_N = _shots(studio.photos, studio.model)
    rows = torch.tensor(repeats([one.label for one in taught], new))
    lessons_NE = plain_features(studio.model, torch.stack([one.image for one in taught]))
    lessons_N = torch.tensor([names.index(one.label) for one in taught])
    features_NE = torch.cat([shots_NE, lessons_NE.repeat_interleave(rows, 0)])
    labels_N = torch.cat([labels_N, lessons_N.repeat_interleave(rows)])
    model = fitted(studio.model, _class_list(studio.model, names), features_NE, labels_N)
    outcome = Outcome(
        taught=_score(model, taught),
        held_out=_score(model, held),
        tested=_tested(model, studio.photos),
        untested=tuple(name for name in new if not any(one.label == name for one in held)),
        shots=len(shots_NE),
    )
    return Session(session.lessons, model), outcome


def packed(session: Session) -> bytes:
    """What was learned as a ZIP file with one folder, which `dear.load` and every command open after unpacking."""
    if session.taught is None:
        raise InputError("Nothing is learned yet: add photos, then choose Learn.")
    content = io.BytesIO()
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        folder = session.taught.save_pretrained(Path(place) / PACKED)
        for path in sorted(one for one in folder.rglob("*") if one.is_file()):
            archive.writestr(zipfile.ZipInfo(path.relative_to(place).as_posix()), path.read_bytes())
    return content.getvalue()


def divided(lessons: Sequence[Lesson], new: Sequence[str]) -> tuple[list[Lesson], list[Lesson]]:
    """Photos to teach, and every fourth of a new class to test; known classes have test photos of their own."""
    taught, held, seen = list[Lesson](), list[Lesson](), Counter[str]()
    for one in lessons:
        seen[one.label] += 1
        (held if one.label in new and seen[one.label] % HELD_OUT == 0 else taught).append(one)
    return taught, held


def repeats(labels: Sequence[str], new: Sequence[str]) -> list[int]:
    """How often each photo counts: a few photos of a new class must hold their own beside 16 of the others."""
    counts = Counter(labels)
    return [max(1, AS_NEW // counts[label]) if label in new else AS_CORRECTED for label in labels]


def fitted(model: Model, classes: ClassList, features_NE: Tensor, labels_N: Tensor) -> Model:
    """A model for the classes, trained on features of the photos as they are, without augmentation."""
    clip, recipe = model.clip, get_method(METHOD).recipe.model_copy(update=RECIPE)
    method = make_method(METHOD, clip, SETTINGS, seed=SEED)
    made = Model(clip, method, classes, trained_on=classes.names)
    on_device = features_NE.to(clip.device)
    draw = Draw({"feature": on_device[None]}, labels_N.to(clip.device), made.required_classes(), SEED)
    method.begin(clip, draw)

    def read(index: int, epoch: int) -> Views:
        return {"feature": features_NE[index][None]}

    train(made, Feed(read, labels_N.tolist(), batch_size=recipe.batch_size, seed=SEED, workers=0), recipe, seed=SEED)
    method.finish(clip, draw, None)
    return made.eval().requires_grad_(False)


def _class_list(model: Model, names: Sequence[str]) -> ClassList:
    if model.classes is None:
        return class_list(names, DEFAULT_TEMPLATE)
    own = model.classes
    return class_list(names, own.template, dataset=own.dataset, descriptions=own.descriptions)


def _shots(photos: RunPhotos | None, model: Model) -> tuple[Tensor, Tensor]:
    if photos is None or not photos.shots:
        return torch.zeros(0, model.clip.geometry.embed_dim), torch.zeros(0, dtype=torch.int64)
    found = photos.features("shots")
    return found.features_NE, found.labels_N


def _score(model: Model, lessons: Sequence[Lesson]) -> Score:
    if not lessons:
        return Score(0, 0, 0)
    names = model.required_classes().names
    picks = answers(model, torch.stack([one.image for one in lessons])).tolist()
    after = sum(names[pick] == one.label for pick, one in zip(picks, lessons, strict=True))
    return Score(len(lessons), sum(one.before == one.label for one in lessons), after)


@torch.no_grad()
def _tested(model: Model, photos: RunPhotos | None) -> Score:
    if photos is None or not photos.tested:
        return Score(0, 0, 0)
    found = photos.features("tested")
    picks = model(given={"feature": found.features_NE.to(model.clip.device)}).logits.argmax(1).cpu()
    return Score(len(picks), int(found.right_N.sum()), int((picks == found.labels_N).sum()))


def add_lessons(
    studio: Studio, session: Session, paths: Sequence[str | Path] | None, which: str | None, label: str | None
) -> Session:
    """Add dropped photos to what is taught: all of them, or the one that is named."""
    name, photos = checked_name(label), dropped(paths)
    photos = photos if which in (None, "", ALL_PHOTOS) else [chosen(photos, which)]
    if len(session.lessons) + len(photos) > MOST_LESSONS:
        raise InputError(f"At most {MOST_LESSONS} photos can be taught here: train on more with 'dear train'.")
    images = [opened(one) for one in photos]
    tensors = torch.stack([studio.model.clip.preprocess_eval(one) for one in images])
    before = _before(studio, tensors)
    new = [
        Lesson(name, photo.name, thumbnail(image), tensor, answer)
        for photo, image, tensor, answer in zip(photos, images, tensors, before, strict=True)
    ]
    return Session((*session.lessons, *new), session.taught)


def _before(studio: Studio, images: Tensor) -> list[str]:
    """What the run answers; nothing if it has no classes."""
    if studio.model.classes is None:
        return [""] * len(images)
    names = studio.class_names
    return [names[pick] for pick in answers(studio.model, images).tolist()]


def lessons_html(session: Session, outcome: Outcome | None = None) -> str:
    """A part of the page: what is taught, and what came out of it."""
    by_label: dict[str, list[Picture]] = {}
    for one in session.lessons:
        by_label.setdefault(one.label, []).append(Picture(one.thumbnail, one.name))
    scores = [(name, score) for name, score in outcome.scores() if score.photos] if outcome else []
    return render("app_lessons.html", lessons=by_label, outcome=outcome, scores=scores)
