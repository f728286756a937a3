"""Results of format 1, rewritten as format 2.

Format 1 knew one method, so it named that method's two readouts ("fusion", "decoupled") and its attributes in the
format itself. This is the only place outside `methods/dear` and `paper/` that knows these words.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _PerClass(_Strict):
    images: int
    fusion: float
    decoupled: float

    def rewritten(self, names: dict[str, str]) -> dict[str, Any]:
        return {"images": self.images, "accuracy": _accuracy(self, names)}


class _Scores(_Strict):
    data: str
    part: str
    images: int
    unreadable: int
    fusion: float
    decoupled: float
    per_class: dict[str, _PerClass]
    problems: tuple[str, ...] = Field(default=(), strict=False)

    def rewritten(self, names: dict[str, str]) -> dict[str, Any]:
        return {
            "data": self.data,
            "half": self.part,
            "images": self.images,
            "unreadable": self.unreadable,
            "accuracy": _accuracy(self, names),
            "per_class": {name: one.rewritten(names) for name, one in self.per_class.items()},
            "problems": self.problems,
        }


class _Cell(BaseModel):
    """What format 2 writes in another way; every other entry is the same in both and is checked there."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    scores: tuple[_Scores, ...] = Field(strict=False)
    alpha: tuple[float, ...] = Field(strict=False)
    attributes: tuple[str, ...] = Field(strict=False)

    @model_validator(mode="after")
    def _alpha_fits_attributes(self) -> _Cell:
        if self.alpha and len(self.alpha) != len(self.attributes) + 1:
            raise ValueError(
                f"{len(self.alpha)} fusion weights do not fit {len(self.attributes)} attributes: "
                "there is one for [CLS] and one for each attribute"
            )
        return self

    @property
    def has_one_readout(self) -> bool:
        """Plain CLIP: it weighs nothing, and both of its numbers are one."""
        return not self.alpha and all(one.fusion == one.decoupled for one in self.scores)


def from_format_1(data: dict[str, Any]) -> dict[str, Any]:
    """The entries of a format-1 cell as those of format 2; pydantic's error if they are none."""
    cell = _Cell.model_validate(data)
    if cell.has_one_readout:
        names, readouts = {"logits": "fusion"}, {"default": "logits"}
    else:
        names = {"fusion": "fusion", "decoupled": "decoupled"}
        readouts = {"default": "fusion", "transfer": "decoupled"}
    same = {name: value for name, value in data.items() if name not in ("alpha", "attributes")}
    return {
        **same,
        "format_version": 2,
        "readouts": readouts,
        "scores": [one.rewritten(names) for one in cell.scores],
        "weights": dict(zip(("cls", *cell.attributes), cell.alpha, strict=False)),
    }


def _accuracy(one: _PerClass | _Scores, names: dict[str, str]) -> dict[str, float]:
    """New names of readouts, with the numbers that stood under the old ones."""
    return {name: getattr(one, old) for name, old in names.items()}
