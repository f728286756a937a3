"""Find images in an index: by an image, by a text, by both, by one attribute, without one, or with one exchanged.

Search is exact: every image's cosine with the query, by matrix products over blocks of rows. Where lists were built
for a large index (`dear.retrieval.lists`), a query by one image or one text compares only rows of the nearest lists.
Shapes: N rows, G kinds of features, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from dear.config import whole_number
from dear.data.images import HEIC, RAW, SUFFIXES, as_rgb, open_image
from dear.data.packed import is_packed
from dear.errors import ConfigError, DataError, option
from dear.model.model import Model
from dear.retrieval.encoder import Encoder, model_encoder
from dear.retrieval.index import BLOCK, WHOLE, Index
from dear.retrieval.lists import Lists, open_lists
from dear.retrieval.segments import damaged
from dear.storage.columns import DamagedSegmentError
from dear.storage.files import is_file, is_folder

ALL = "all"
AUTO = "auto"
WAY, BEST = 0.75, 5
"""A least score is proposed at this part of the way from the median score to the median of this number of best ones."""
ROBUST = 1.4826
"""Standard deviation of a normal distribution by its median absolute deviation."""
SPANNED = 0.999
"""Share of the squared length of a kind's features that the directions hold to which a text is restricted."""
SAMPLED = 4096
"""Images, evenly spread, that a kind's directions and its likeness to others are measured on."""
PIECES = 3
"""Segments that the likeness of kinds is measured on: it needs all kinds, and a search by one should not read all."""
ALIKE = 0.8
"""Mean cosine of two centred features above which they are nearly the same."""

Query = str | Path | Image.Image


@dataclass(frozen=True)
class Hit:
    """A found image, its cosine with the query, and what was compared."""

    path: Path
    score: float
    by: str = WHOLE
    matches: bool = True
    """Whether the score is at least the one proposed, or asked for."""


@dataclass(frozen=True)
class Found:
    """What one kind of feature finds."""

    by: str
    title: str
    """What was compared, in words."""
    hits: tuple[Hit, ...]
    least: float
    """The score from which on a hit counts as a match: the one asked for, or the one proposed."""
    remark: str = ""
    """Why this is not what its name says, if it is not."""


@dataclass(frozen=True)
class Ask:
    """What to look for. `swap` takes the part of an attribute from another image, `without` leaves parts out."""

    image: Query | None = None
    text: str | None = None
    by: str = WHOLE
    without: tuple[str, ...] = ()
    swap: Mapping[str, Query] = field(default_factory=dict)
    top_k: int = 12
    min_score: float | str | None = None
    """A least score; "auto" for the proposed one; None to mark what is below that one."""


def find(
    encoder: Encoder | Model,
    index: Index,
    ask: Ask | Query,
    *,
    text: str | None = None,
    by: str = WHOLE,
    without: str | Sequence[str] = (),
    swap: Mapping[str, Query] | None = None,
    top_k: int = 12,
    min_score: float | str | None = None,
    exact: bool = False,
) -> list[Found]:
    """The images nearest to what is asked for: one result, or one per kind of feature if `by` is "all".

    With `exact`, every image is compared, even if lists for faster search were built.
    """
    maker = model_encoder(encoder) if isinstance(encoder, Model) else encoder
    wanted = ask
    if not isinstance(wanted, Ask):
        wanted = asked(wanted, text=text, by=by, without=without, swap=swap, top_k=top_k, min_score=min_score)
    check(index, wanted)
    if index.model_sha256 != maker.mark:
        raise DataError(f"The index of {index.folder} was made by another model: make it again with this one.")
    if index.manifest.embed != maker.clip.geometry.embed_dim or index.kinds != maker.kinds:
        raise damaged(index.out)
    query = _Vectors.of(maker, wanted)
    alike = likeness(index) if wanted.by != WHOLE else {}
    kinds = [kind for kind in index.kinds if kind not in wanted.without] if wanted.by == ALL else [wanted.by]
    return [_found(index, wanted, query, kind, alike, exact) for kind in kinds]


def check(index: Index, ask: Ask) -> None:
    """Refuse what an index cannot answer, before a model is loaded."""
    if not len(index):
        raise DataError(f"The index in {index.out} has no images: add some to {index.folder}, and index it again.")
    whole_number("top_k", ask.top_k, least=1)
    if ask.by != ALL:
        index.number(ask.by)
    swapped = tuple(ask.swap)
    for kind in (*ask.without, *swapped):
        index.number(kind)
        if kind == WHOLE:
            raise ConfigError(f"{WHOLE!r} is the image as a whole: leave out or exchange a part of it, such as color.")
    if (ask.without or swapped) and not index.manifest.parts:
        raise ConfigError(
            "The features of this index are not parts of a whole, so none can be left out or exchanged: index the "
            f"photos with {option(clip='CLIP')} instead of an adapter."
        )
    if ask.without and ask.by not in (WHOLE, ALL):
        raise ConfigError(
            f"{option(by=ask.by)} compares by one attribute, so none can be left out: choose one of them."
        )
    if set(ask.without) & set(swapped):
        raise ConfigError("A part cannot be both left out and exchanged.")
    if ask.image is None and ask.text is None:
        raise ConfigError("There is nothing to look for: give an image, a text, or both.")
    if ask.image is None and swapped:
        raise ConfigError("An attribute can be exchanged in an image only: give an image to start from.")
    least = ask.min_score
    if least not in (None, AUTO) and (isinstance(least, bool) or not isinstance(least, int | float) or least != least):
        raise ConfigError(f"The least score is {least!r}, but must be a number, or 'auto' for the proposed one.")


@dataclass(frozen=True)
class _Vectors:
    """The query: parts of its image by kind, and the direction of its text."""

    parts: Mapping[str, Tensor] | None
    text: Tensor | None

    @classmethod
    def of(cls, encoder: Encoder, ask: Ask) -> _Vectors:
        text = None if ask.text is None else encoder.encode_text([ask.text])[0].float().cpu()
        if ask.image is None:
            return cls(None, text)
        own, *others = encoder.encode(_batch(encoder, [ask.image, *ask.swap.values()]))
        parts = dict(zip(encoder.kinds, own, strict=True))
        for kind, other in zip(ask.swap, others, strict=True):
            new = other[encoder.kinds.index(kind)]
            parts |= {WHOLE: parts[WHOLE] - parts[kind] + new, kind: new}
        return cls(parts, text)


def _batch(encoder: Encoder, images: Sequence[Query]) -> Tensor:
    opened = [as_rgb(one) if isinstance(one, Image.Image) else open_image(Path(one)) for one in images]
    return torch.stack([encoder.clip.preprocess_eval(one) for one in opened])


def _found(
    index: Index, ask: Ask, query: _Vectors, kind: str, alike: Mapping[str, tuple[str, float]], exact: bool
) -> Found:
    without = ask.without if kind == WHOLE else ()
    count = min(ask.top_k, len(index))
    is_single = not without and (query.parts is None or query.text is None)
    lists = open_lists(index, kind) if is_single and not exact else None
    found = None
    if lists is not None:
        with suppress(DamagedSegmentError):
            found = _by_lists(index, kind, query, count, lists)
    best, least = found or _by_all_rows(index, kind, query, count, without)
    if isinstance(ask.min_score, int | float):
        least = float(ask.min_score)
    hits = [Hit(index.path(row), score, kind, score >= least) for row, score in best]
    wanted = [hit for hit in hits if hit.matches or ask.min_score is None]
    remark = remarks(index, kind, alike)
    return Found(kind, _title(ask, kind, remark), tuple(wanted), least, remark)


def _by_all_rows(
    index: Index, kind: str, query: _Vectors, count: int, without: Sequence[str]
) -> tuple[list[tuple[int, float]], float]:
    """The best rows with their scores, and the proposed score, from the scores of all rows."""
    scores = []
    if query.parts is not None:
        vector = query.parts[kind] - sum((query.parts[one] for one in without), torch.zeros(()))
        scores.append(row_cosines(index, kind, vector, without))
    if query.text is not None:
        vector = query.text if kind == WHOLE else restricted(index.sample(kind, SAMPLED), query.text)
        scores.append(row_cosines(index, kind, vector, without))
    scores_N = scores[0] if len(scores) == 1 else torch.stack([_standard(one, index.alive) for one in scores]).mean(0)
    return top(scores_N.masked_fill(~index.alive, -torch.inf), count), proposed(scores_N[index.alive])


def _by_lists(
    index: Index, kind: str, query: _Vectors, count: int, lists: Lists
) -> tuple[list[tuple[int, float]], float]:
    """The same from lists for one image or one text: rows newer than the lists are compared one by one."""
    if query.parts is not None:
        vector = query.parts[kind]
    elif query.text is not None:
        vector = query.text if kind == WHOLE else restricted(lists.sample, query.text)
    query_E, covered, most = F.normalize(vector, dim=0), lists.about.rows, min(max(count, BEST), len(index))
    near = lists.search(index, query_E, most, is_text=query.parts is None)
    alive = index.alive[covered:]
    newer = row_cosines(lists.newer(index), kind, query_E).masked_fill(~alive, -torch.inf)
    further = [(covered + row, score) for row, score in top(newer, min(most, int(alive.sum())))]
    best = sorted([*near.best, *further], key=lambda one: (-one[1], one[0]))[:most]
    return best[:count], between(near.sampled, torch.tensor([score for _, score in best[:BEST]]))


def row_cosines(index: Index, kind: str, vector_E: Tensor, without: Sequence[str] = ()) -> Tensor:
    """(N,) cosines of all rows with a vector; `without` takes parts away from the rows first. Numbers only."""
    query_E = F.normalize(vector_E, dim=0)
    scores_N = torch.empty(index.rows)
    for start, end, (rows_BE, *parts), lengths_BG in index.blocks(kind, *without):
        if parts:
            rows_BE = rows_BE * lengths_BG[:, :1]
            for at, part_BE in enumerate(parts, start=1):
                rows_BE = rows_BE - part_BE * lengths_BG[:, at : at + 1]
            rows_BE = F.normalize(rows_BE, dim=1)
        torch.mv(rows_BE, query_E, out=scores_N[start:end])
    return scores_N.nan_to_num_(nan=-1.0, posinf=-1.0, neginf=-1.0)


def top(scores_N: Tensor, count: int) -> list[tuple[int, float]]:
    """Rows with the largest scores, largest first; ties go to the earlier row."""
    if count < 1:
        return []
    least = scores_N.topk(count).values[-1]
    rows = (scores_N >= least).nonzero()[:, 0]
    order = scores_N[rows].sort(descending=True, stable=True)
    return list(zip(rows[order.indices][:count].tolist(), order.values[:count].tolist(), strict=True))


def nearest(query_E: Tensor, features_NE: Tensor, count: int) -> list[tuple[int, float]]:
    """Rows of features in memory with the largest products, largest first; ties go to the earlier row."""
    scores = [features_NE[start : start + BLOCK] @ query_E for start in range(0, len(features_NE), BLOCK)]
    return top(torch.cat(scores), min(count, len(features_NE))) if scores else []


def proposed(scores_N: Tensor) -> float:
    """The score below which nothing matches, by the spread of a query's scores over the index.

    Three quarters of the way from the median, which is what images have in common that do not match, to the five best.
    """
    return between(scores_N, scores_N.topk(min(BEST, len(scores_N))).values)


def between(scores_N: Tensor, best_K: Tensor) -> float:
    """The proposed score from scores of many images, and from the best scores of all."""
    middle, best = float(scores_N.median()), float(best_K.median())
    return middle + WAY * (best - middle)


def _spread(scores_N: Tensor) -> tuple[float, float]:
    middle = scores_N.median()
    return float(middle), ROBUST * float((scores_N - middle).abs().median())


def _standard(scores_N: Tensor, alive_N: Tensor) -> Tensor:
    """Scores in robust deviations from their median, so that an image's and a text's can be added."""
    middle, spread = _spread(scores_N[alive_N])
    return (scores_N - middle) / max(spread, 1e-6)


def restricted(sample_NE: Tensor, text_E: Tensor) -> Tensor:
    """A text's direction within what features of a kind span; the text itself if nothing is left."""
    rows_NE = sample_NE.double()
    values_E, directions_EE = torch.linalg.eigh(rows_NE.T @ rows_NE)
    held_E = values_E.flip(0).cumsum(0) / values_E.sum()
    count = 1 + int((held_E < SPANNED).sum())
    basis_EK = directions_EE[:, -count:].float()
    within_E = basis_EK @ (basis_EK.T @ text_E)
    return within_E if float(within_E.norm()) > 1e-6 else text_E


def likeness(index: Index) -> dict[str, tuple[str, float]]:
    """For each kind of feature the one most like it, and how much: the mean cosine of the two features of an image.

    The mean over the images is taken from both first: what all images have in common decides no search.
    """
    sampled = {kind: index.sample(kind, SAMPLED // 4, pieces=PIECES) for kind in index.kinds}
    return most_alike(sampled)


def most_alike(features: Mapping[str, Tensor]) -> dict[str, tuple[str, float]]:
    """The same of features in memory."""
    centred = {kind: F.normalize(rows - rows.mean(0), dim=1) for kind, rows in features.items()}
    found: dict[str, tuple[str, float]] = {}
    for kind, rows_NE in centred.items():
        pairs = [(float((rows_NE * other).sum(1).mean()), name) for name, other in centred.items() if name != kind]
        if pairs:
            cosine, name = max(pairs)
            found[kind] = name, cosine
    return found


def remarks(index: Index, kind: str, alike: Mapping[str, tuple[str, float]]) -> str:
    """Why a search by a kind is not what its name says; nothing if it is."""
    if kind in index.manifest.lacking:
        return f"No head of this adapter's role map is about {kind}, so these are not the nearest by {kind}."
    other, cosine = alike.get(kind, ("", 0.0))
    return unlike(kind, other, cosine)


def unlike(kind: str, other: str, cosine: float) -> str:
    """What to say of a kind of feature that is nearly another one."""
    if cosine < ALIKE or kind == WHOLE:
        return ""
    return (
        f"The {kind} feature is nearly the {other} feature here (mean cosine {cosine:.2f}), so these are not the "
        f"nearest by {kind}; features of heads differ more: index with {option(clip='CLIP')}."
    )


def _title(ask: Ask, kind: str, remark: str) -> str:
    if remark:
        return f"Nearest by the feature called {kind}, which is not one of {kind}"
    words = "Nearest as a whole" if kind == WHOLE else f"Nearest by {kind}"
    if kind == WHOLE and ask.without:
        words = f"Nearest by everything but {' and '.join(ask.without)}"
    taken = [one for one in ask.swap if kind in (WHOLE, one)]
    return words + (f", with the {' and '.join(taken)} of another image" if taken else "")


def asked(
    query: Query | None,
    *,
    text: str | None = None,
    by: str = WHOLE,
    without: str | Sequence[str] = (),
    swap: Mapping[str, Query] | None = None,
    top_k: int = 12,
    min_score: float | str | None = None,
) -> Ask:
    """What to look for, from an image or from words in its place."""
    if query is not None and not isinstance(query, str | Path | Image.Image):
        raise ConfigError(f"The query is of type {type(query).__name__}: give the path of an image, or a text.")
    if isinstance(query, str | Path) and not _is_image(query, text):
        query, text = None, str(query)
    if text is not None and (not isinstance(text, str) or not text.strip()):
        raise ConfigError("The text to look for is empty: say what the images show.")
    if not isinstance(by, str):
        raise ConfigError(f"by is {by!r}, but names a kind of feature, such as 'color'.")
    named = (without,) if isinstance(without, str) else without or ()
    if not isinstance(named, Sequence) or not all(isinstance(one, str) for one in named):
        raise ConfigError(f"without is {without!r}, but names kinds of features, such as 'location'.")
    swaps = swap or {}
    if not isinstance(swaps, Mapping) or not all(isinstance(one, str | Path | Image.Image) for one in swaps.values()):
        raise ConfigError("swap is not a kind of feature with an image, as in {'color': 'other.jpg'}.")
    return Ask(query, text, by, tuple(dict.fromkeys(named)), dict(swaps), top_k, min_score)


def _is_image(query: str | Path, text: str | None) -> bool:
    """Whether a query is the path of an image, not words; what can only be a wrong path is refused."""
    if is_file(query) or is_packed(query):
        return True
    if query != "" and is_folder(query):
        raise ConfigError(
            f"{query} is a folder: give one of its images, or search for the word with {option(text=str(query))}."
        )
    if isinstance(query, Path) or text is not None:
        raise ConfigError(f"There is no image {query}: check the path.")
    if Path(query).suffix.lower() in SUFFIXES | HEIC | RAW:
        raise ConfigError(f"There is no image {query}: check the path, or search for a text without a file ending.")
    return False


def open_hit(hit: Hit, side: int = 160) -> Image.Image:
    """A found image as a small square picture."""
    image = open_image(hit.path)
    image.thumbnail((side, side))
    return image
