"""What one cell of a grid found, as strict JSON: the grid writes it, tables and reports read it."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dear.config import problems
from dear.errors import DataError

FORMAT: Final = "dear-cell"
FORMAT_VERSION: Final = 1

Protocol = Literal["base-to-novel", "few-shot", "cross-dataset", "domain"]
Part = Literal["base", "novel", "all"]
Strategy = Literal["fusion", "decoupled"]
Percent = Annotated[float, Field(ge=0, le=100)]
Weight = Annotated[float, Field(ge=0, le=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def harmonic_mean(base: float, novel: float) -> float:
    """2bn / (b + n), and 0 where either is 0."""
    return 2 * base * novel / (base + novel) if base and novel else 0.0


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PerClass(_Strict):
    """One class of a test list: how many images, and the per cent of them that each strategy gets right."""

    images: int = Field(ge=0)
    fusion: Percent
    decoupled: Percent


class Scores(_Strict):
    """One evaluation of one method on one list of test images. Unreadable images count as wrong."""

    data: str = Field(min_length=1)
    part: Part
    images: int = Field(ge=1)
    unreadable: int = Field(ge=0)
    fusion: Percent
    decoupled: Percent
    per_class: dict[str, PerClass]
    problems: tuple[str, ...] = Field(default=(), strict=False)
    """What was wrong with each unreadable image."""

    @model_validator(mode="after")
    def _unreadable_are_among_images(self) -> Scores:
        if self.unreadable > self.images:
            raise ValueError(f"{self.unreadable} unreadable images are more than the {self.images} images there are")
        return self

    def accuracy(self, strategy: Strategy) -> float:
        """Per cent, top-1, by one inference strategy."""
        return self.fusion if strategy == "fusion" else self.decoupled


class Backbone(_Strict):
    """The frozen CLIP that was adapted."""

    name: str = Field(min_length=1)
    pretrained: str | None
    weights_sha256: Sha256


class CellResult(_Strict):
    """One cell of a grid: a method, trained on one data set with one seed, and how it scores."""

    format: Literal["dear-cell"] = FORMAT
    format_version: Literal[1] = FORMAT_VERSION
    protocol: Protocol
    method: str = Field(min_length=1)
    variant: str
    data: str = Field(min_length=1)
    seed: int = Field(ge=0)
    shots: int = Field(ge=0)
    tested_on: Literal["test", "validation"] = "test"
    """Test images, or images of the training split that were not learned from and the validation split."""
    epochs: int | None = Field(default=None, ge=1)
    cached_views: int = Field(default=0, ge=0)
    """Stored views an image that it was trained on; 0: new ones every epoch."""
    scores: tuple[Scores, ...] = Field(min_length=1, strict=False)
    alpha: tuple[Weight, ...] = Field(strict=False)
    attributes: tuple[str, ...] = Field(strict=False)
    seconds: float = Field(ge=0)
    steps: int = Field(ge=0)
    skipped: int = Field(ge=0)
    adapter_sha256: Sha256 | None
    threads: int | None = Field(default=None, ge=1)
    """Threads that it was computed with on a CPU: only the same number gives the same bytes."""
    versions: dict[str, str]
    backbone: Backbone
    fingerprint: str = Field(min_length=1)

    @model_validator(mode="after")
    def _scores_fit_the_protocol(self) -> CellResult:
        found = [(one.data, one.part) for one in self.scores]
        if len(set(found)) < len(found):
            raise ValueError("two scores are of the same data set and part")
        if self.protocol == "base-to-novel":
            if sorted(found) != [(self.data, "base"), (self.data, "novel")]:
                raise ValueError(f"a base-to-novel cell has the scores of base and of novel on {self.data}")
        elif found[0] != (self.data, "all") or any(part != "all" for _, part in found):
            raise ValueError(f"a {self.protocol} cell has scores of part 'all', first those on {self.data}")
        elif self.protocol == "few-shot" and len(found) > 1:
            raise ValueError(f"a few-shot cell has scores on {self.data} only")
        return self

    @model_validator(mode="after")
    def _alpha_fits_attributes(self) -> CellResult:
        if self.alpha and len(self.alpha) != len(self.attributes) + 1:
            raise ValueError(
                f"{len(self.alpha)} fusion weights do not fit {len(self.attributes)} attributes: "
                "there is one for [CLS] and one for each attribute"
            )
        return self

    def score(self, part: Part) -> Scores:
        """The scores of a part: base or novel, or "all" for those on the data that was trained on."""
        for one in self.scores:
            if one.part == part:
                return one
        raise DataError(f"The {self.protocol} cell of {self.method} on {self.data} has no part {part!r}.")

    def harmonic_mean(self, strategy: Strategy) -> float:
        """Harmonic mean of base and novel accuracy, by one inference strategy."""
        return harmonic_mean(self.score("base").accuracy(strategy), self.score("novel").accuracy(strategy))

    @property
    def source(self) -> Scores:
        """Scores on the data that was trained on, of a protocol that tests elsewhere."""
        return self.score("all")

    @property
    def targets(self) -> tuple[Scores, ...]:
        """Scores on data that was not trained on."""
        return tuple(one for one in self.scores if one.data != self.data)

    @property
    def images(self) -> int:
        """All test images."""
        return sum(one.images for one in self.scores)

    @property
    def unreadable(self) -> int:
        """All test images that could not be read."""
        return sum(one.unreadable for one in self.scores)

    def to_json(self) -> str:
        """The cell as JSON text; the same cell always gives the same bytes."""
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, *, where: str = "the cell") -> CellResult:
        """Parse and check a cell; all problems are named at once."""
        try:
            data = json.loads(text, object_pairs_hook=_no_key_twice)
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(f"{where} is not valid JSON ({error}).") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise DataError(f"{where} is not the result of a cell: its 'format' is not {FORMAT!r}.")
        version = data.get("format_version")
        if type(version) is not int:
            raise DataError(f"{where} is not the result of a cell: its 'format_version' is not a number.")
        if version > FORMAT_VERSION:
            raise DataError(
                f"{where} has cell format {version}, this version reads up to {FORMAT_VERSION}: upgrade dear-vlm."
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise DataError(f"{where} is not a valid result. {' '.join(problems(error))}") from None


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} appears twice")
    return dict(pairs)
