"""A role map: what each attention head of the adapted layers does, and how we know. Strict JSON in, strict JSON out.

Layers are counted from 1, heads from 0.
"""

from __future__ import annotations

import json
import random
from enum import Enum
from importlib import resources
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dear.errors import NewerFormatError, RoleMapError, did_you_mean

FORMAT: Final = "dear-roles"
FORMAT_VERSION: Final = 1
CORE_ATTRIBUTES = ("color", "shape", "texture", "object", "location")

Scalar = str | int | float | bool | None


class Role(str, Enum):
    """The four roles of a head."""

    CORE = "core_attribute"
    OTHER = "other_specialized"
    GENERALIZATION = "generalization"
    MIXED = "mixed"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class HeadRole(_Strict):
    """One head: its role, the concept that goes with it, and the evidence."""

    layer: int = Field(ge=1)
    head: int = Field(ge=0)
    role: Role = Field(strict=False)
    concept: str | None = Field(default=None, min_length=1)
    phrases: tuple[str, ...] = Field(default=(), strict=False)
    entropy: float | None = Field(default=None, ge=0)
    shares: dict[str, float] | None = None

    @model_validator(mode="after")
    def _concept_goes_with_role(self) -> HeadRole:
        if self.role in (Role.CORE, Role.OTHER) and self.concept is None:
            raise ValueError(f"a {self.role.value} head needs a concept")
        if self.role is Role.MIXED and self.concept is not None:
            raise ValueError("a mixed head has no concept")
        return self


class Provenance(_Strict):
    """Where a map comes from: a map belongs to one checkpoint and to the way it was found."""

    source: str
    citation: str | None = None
    model: str | None = None
    pretrained: str | None = None
    weights_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    text_pool_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    sentence_model: str | None = None
    clustering: dict[str, Scalar] | None = None
    rule: str | None = None
    thresholds: dict[str, float] | None = None
    derived: tuple[str, ...] = Field(default=(), strict=False)


class RoleMap(_Strict):
    """The roles of all heads of the adapted layers of one backbone."""

    format: Literal["dear-roles"] = FORMAT
    format_version: Literal[1] = FORMAT_VERSION
    attributes: tuple[str, ...] = Field(default=CORE_ATTRIBUTES, min_length=1, strict=False)
    heads: tuple[HeadRole, ...] = Field(min_length=1, strict=False)
    provenance: Provenance

    @model_validator(mode="after")
    def _unique(self) -> RoleMap:
        places = [(head.layer, head.head) for head in self.heads]
        if twice := sorted({place for place in places if places.count(place) > 1}):
            raise ValueError(f"heads named twice: {twice}")
        if len(set(self.attributes)) != len(self.attributes):
            raise ValueError(f"attributes named twice: {list(self.attributes)}")
        return self

    @classmethod
    def uniform(cls, role: Role, *, first_layer: int, layers: int, heads: int) -> RoleMap:
        """A map that gives one role (mixed or generalization) to every head of layers `first_layer`..`layers`."""
        places = [(layer, head) for layer in range(first_layer, layers + 1) for head in range(heads)]
        return cls(
            heads=tuple(HeadRole(layer=layer, head=head, role=role) for layer, head in places),
            provenance=Provenance(source=f"every head {role.value}, by hand"),
        )

    @classmethod
    def load(cls, source: str | Path) -> RoleMap:
        """Read a shipped map by name ("vit-b-16") or a JSON file by path."""
        shipped = _shipped()
        if str(source) in shipped:
            return cls.from_json(shipped[str(source)], where=str(source))
        path = Path(source)
        if not path.is_file():
            raise RoleMapError(
                f"There is no role map {str(source)!r}: give the path of a roles.json, or one of the shipped maps "
                f"({', '.join(shipped)}).{did_you_mean(str(source), shipped)}"
            )
        try:
            return cls.from_json(path.read_text(encoding="utf-8"), where=str(path))
        except UnicodeDecodeError:
            raise RoleMapError(f"{path} is not a role map: it is not UTF-8 text.") from None

    @classmethod
    def from_json(cls, text: str, *, where: str = "the role map") -> RoleMap:
        """Parse and check a map; all problems are named at once."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise RoleMapError(f"{where} is not valid JSON ({error}).") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise RoleMapError(f"{where} is not a role map: its 'format' is not {FORMAT!r}.")
        version = data.get("format_version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise NewerFormatError(
                f"{where} has role-map format {version}, this version reads up to {FORMAT_VERSION}: upgrade dear-vlm."
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise RoleMapError(f"{where} is not a valid role map: {_all_problems(error)}.") from None

    def to_json(self) -> str:
        """The map as JSON text; the same map always gives the same bytes."""
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the map as JSON."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    def __getitem__(self, place: tuple[int, int]) -> HeadRole:
        """The head at (layer, head)."""
        for head in self.heads:
            if (head.layer, head.head) == place:
                return head
        raise KeyError(place)

    def layer(self, layer: int) -> tuple[HeadRole, ...]:
        """The heads of one layer, in order."""
        return tuple(sorted((h for h in self.heads if h.layer == layer), key=lambda h: h.head))

    def all_generalization(self) -> RoleMap:
        """The same heads, each shielded (ablation)."""
        return self._derive([(Role.GENERALIZATION, None)] * len(self.heads), "all_generalization")

    def all_mixed(self) -> RoleMap:
        """The same heads, each open to everything (ablation)."""
        return self._derive([(Role.MIXED, None)] * len(self.heads), "all_mixed")

    def shuffled(self, seed: int) -> RoleMap:
        """The same roles dealt out at random over the heads (ablation); the evidence stays with its head."""
        roles = [(head.role, head.concept) for head in self.heads]
        random.Random(seed).shuffle(roles)
        return self._derive(roles, f"shuffled(seed={seed})")

    def _derive(self, roles: list[tuple[Role, str | None]], how: str) -> RoleMap:
        heads = tuple(
            head.model_copy(update={"role": role, "concept": concept})
            for head, (role, concept) in zip(self.heads, roles, strict=True)
        )
        provenance = self.provenance.model_copy(update={"derived": (*self.provenance.derived, how)})
        return self.model_copy(update={"heads": heads, "provenance": provenance})

    def misfits(self, *, first_layer: int, layers: int, heads: int, weights_sha256: str) -> list[str]:
        """Everything that keeps this map from fitting layers `first_layer`..`layers` of a backbone."""
        wanted = {(layer, head) for layer in range(first_layer, layers + 1) for head in range(heads)}
        present = {(head.layer, head.head) for head in self.heads}
        problems = []
        if missing := sorted(wanted - present):
            problems.append(f"heads without a role: {_places(missing)}")
        if extra := sorted(present - wanted):
            problems.append(f"heads the adapted layers do not have: {_places(extra)}")
        for head in self.heads:
            if head.role is Role.CORE and head.concept not in self.attributes:
                problems.append(f"unknown attribute {head.concept!r} at ({head.layer}, {head.head})")
        recorded = self.provenance.weights_sha256
        if recorded is not None and recorded != weights_sha256:
            problems.append(f"made for weights {recorded[:12]}…, but the backbone's are {weights_sha256[:12]}…")
        return problems


def _places(places: list[tuple[int, int]], most: int = 12) -> str:
    shown = ", ".join(f"({layer}, {head})" for layer, head in places[:most])
    return shown if len(places) <= most else f"{shown} and {len(places) - most} more"


def _all_problems(error: ValidationError) -> str:
    problems = []
    for item in error.errors(include_url=False):
        where = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        problems.append(f"{where}: {message}" if where else message)
    return "; ".join(problems)


def _shipped() -> dict[str, str]:
    folder = resources.files("dear") / "assets" / "roles"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)
    return {f.name.removesuffix(".json"): f.read_text(encoding="utf-8") for f in files}
