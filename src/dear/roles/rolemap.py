"""`RoleMap`: the role of each attention head of the adapted layers with its evidence, stored as strict JSON.

Layers are counted from 1, heads from 0.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Annotated, Final

from pydantic import Field, field_validator, model_validator

from dear.config import MOST_NAMED, one_line
from dear.errors import NewerFormatError, RoleMapError, did_you_mean
from dear.storage.documents import Document, Record
from dear.storage.files import is_file, is_folder, sha256

ROLES: Final = "roles.json"
"""File name of a role map in a folder."""
LAST_LAYERS = 4
"""Number of last layers that are examined and adapted by default."""
CORE_ATTRIBUTES = ("color", "shape", "texture", "object", "location")
LEAST_KAPPA = 0.2
"""A map whose median kappa under resampling is below this is unstable: at most "slight" agreement by the scale of
Landis and Koch (1977)."""

LARGEST, MOST_HEADS, LONGEST_NAME = 10_000, 100_000, 200
"""Limits of a map: the number of a layer or head, the number of heads, and letters of a concept."""
MOST_PLACES = 60
"""Heads that a message names."""

Scalar = str | int | float | bool | None


class Role(StrEnum):
    """The four roles of a head."""

    CORE = "core_attribute"
    OTHER = "other_specialized"
    GENERALIZATION = "generalization"
    MIXED = "mixed"


class HeadRole(Record):
    """One head: its role, its concept and the evidence."""

    layer: int = Field(ge=1, le=LARGEST)
    head: int = Field(ge=0, le=LARGEST)
    role: Role = Field(strict=False)
    concept: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    phrases: tuple[str, ...] = Field(default=(), strict=False)
    entropy: float | None = Field(default=None, ge=0)
    shares: dict[str, Annotated[float, Field(ge=0, le=1)]] | None = None

    def __repr__(self) -> str:
        """One line without the evidence."""
        role = " ".join(filter(None, (self.role.value, self.concept)))
        return f"HeadRole(layer {self.layer}, head {self.head}: {role})"

    @model_validator(mode="after")
    def _concept_goes_with_role(self) -> HeadRole:
        if self.role in (Role.CORE, Role.OTHER) and self.concept is None:
            raise ValueError(f"a {self.role.value} head needs a concept")
        if self.role is Role.MIXED and self.concept is not None:
            raise ValueError("a mixed head has no concept")
        return self


class Provenance(Record):
    """Origin of a map: the weights it describes and how it was made."""

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

    def __repr__(self) -> str:
        """One line with source, model and rule."""
        return one_line(f"Provenance({self.source!r}, model={self.model!r}, rule={self.rule!r})")


class Stability(Record):
    """Agreement of a map with the maps that resampled images give."""

    kappas: tuple[Annotated[float, Field(ge=-1, le=1)], ...] = Field(strict=False)
    """Cohen's kappa of each resampled map with this one; empty if there were too few images to resample."""
    same: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(strict=False)
    """Fraction of the resampled maps in which each head has the same role and concept, in the order of the heads."""

    @property
    def kappa(self) -> float | None:
        """The median of the kappas; None if there are none."""
        return median(self.kappas) if self.kappas else None


class MapRecord(Record):
    """Which role map a result was made with."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Hash of the map's JSON text."""
    source: str
    """Where the map comes from, in one sentence."""
    unstable: bool | None = None
    """Whether resampled images give other roles; None if that is not known."""
    rule: str | None = None
    """The rule that decided the roles; None if the map does not say."""

    @classmethod
    def of(cls, files: Mapping[str, str]) -> MapRecord | None:
        """The record of the map among the files of a method; None if it has none."""
        if ROLES not in files:
            return None
        roles = RoleMap.from_json(files[ROLES], where=ROLES)
        origin = roles.provenance
        hashed = sha256(files[ROLES].encode())
        return cls(sha256=hashed, source=origin.source, unstable=roles.is_unstable, rule=origin.rule)


class RoleMap(Document):
    """The roles of all heads of the adapted layers of one backbone."""

    format = "dear-roles"
    version = 1
    noun = "role map"
    error, newer = RoleMapError, NewerFormatError

    attributes: tuple[Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)], ...] = Field(
        default=CORE_ATTRIBUTES, min_length=1, max_length=1000, strict=False
    )
    heads: tuple[HeadRole, ...] = Field(min_length=1, max_length=MOST_HEADS, strict=False)
    provenance: Provenance
    stability: Stability | None = None
    """Agreement with maps of resampled images, if it was measured."""

    @field_validator("heads", mode="after")
    @classmethod
    def _in_order(cls, heads: tuple[HeadRole, ...]) -> tuple[HeadRole, ...]:
        return tuple(sorted(heads, key=lambda head: (head.layer, head.head)))

    @model_validator(mode="after")
    def _unique(self) -> RoleMap:
        places = [(head.layer, head.head) for head in self.heads]
        if twice := sorted(place for place, times in Counter(places).items() if times > 1):
            raise ValueError(f"heads named twice: [{_places(twice)}]")
        if len(set(self.attributes)) != len(self.attributes):
            raise ValueError(f"attributes named twice: {list(self.attributes)}")
        if self.stability and self.stability.kappas and len(self.stability.same) != len(self.heads):
            raise ValueError(f"the stability of {len(self.stability.same)} heads is listed, not of {len(self.heads)}")
        return self

    @classmethod
    def uniform(cls, role: Role, *, first_layer: int, layers: int, heads: int) -> RoleMap:
        """A map with the same role (mixed or generalization) for all heads of layers `first_layer`..`layers`."""
        places = [(layer, head) for layer in range(first_layer, layers + 1) for head in range(heads)]
        return cls(
            heads=tuple(HeadRole(layer=layer, head=head, role=Role(role)) for layer, head in places),
            provenance=Provenance(source=f"every head {Role(role).value}, by hand"),
        )

    @classmethod
    def load(cls, source: str | Path) -> RoleMap:
        """Read a shipped map by name ("vit-b-16"), a JSON file, or a folder written by 'dear roles discover'."""
        if not isinstance(source, str | Path):
            raise RoleMapError(f"A role map is a RoleMap, a path or a name, but got {type(source).__name__}.")
        shipped = _shipped()
        if str(source) in shipped:
            return cls.from_json(shipped[str(source)], where=str(source))
        path = Path(source) / ROLES if is_folder(source) else Path(source)
        if not is_file(path):
            raise RoleMapError(
                f"There is no role map {str(source)[:80]!r}: give a roles.json, a folder of 'dear roles discover', or "
                f"one of the shipped maps ({', '.join(shipped)}).{did_you_mean(str(source), shipped)}"
            )
        try:
            return cls.read(path)
        except OSError as error:
            raise RoleMapError(f"{path} cannot be read ({error.strerror}).") from None

    def to_json(self) -> str:
        """JSON text; a map of unmeasured stability has the same text, and thus the same hash, as in version 0.2."""
        unmeasured = {"stability"} if self.stability is None else None
        return self.encode(self.model_dump(mode="json", exclude=unmeasured))

    def save(self, path: str | Path) -> None:
        """Write the map as JSON."""
        try:
            self.write(Path(path))
        except OSError as error:
            raise RoleMapError(f"The role map cannot be written to {path}: {error.strerror or error}.") from error

    def __repr__(self) -> str:
        """Counts instead of all heads."""
        counts = Counter(head.role for head in self.heads)
        roles = ", ".join(f"{counts[role]} {role.value}" for role in Role if counts[role])
        return f"RoleMap({self.provenance.model or 'any model'}: {roles})"

    def __getitem__(self, place: tuple[int, int]) -> HeadRole:
        """The head at (layer, head)."""
        for head in self.heads:
            if (head.layer, head.head) == place:
                return head
        raise KeyError(place)

    def layer(self, layer: int) -> tuple[HeadRole, ...]:
        """The heads of one layer, in order."""
        first, last = (find(self.heads, layer, key=lambda h: h.layer) for find in (bisect_left, bisect_right))
        return self.heads[first:last]

    @property
    def is_specialised(self) -> bool:
        """Whether any head has a role of its own: a map with mixed heads only has the same effect as no map."""
        return any(head.role is not Role.MIXED for head in self.heads)

    @property
    def is_unstable(self) -> bool | None:
        """Whether resampled images give other roles: median kappa below `LEAST_KAPPA`.

        None if this was not measured or could not be, and for a map without specialised heads.
        """
        kappa = self.stability.kappa if self.stability and self.is_specialised else None
        return None if kappa is None else kappa < LEAST_KAPPA

    def all_generalization(self) -> RoleMap:
        """The same heads, all shielded (for ablations)."""
        return self.derive([(Role.GENERALIZATION, None)] * len(self.heads), "all_generalization")

    def all_mixed(self) -> RoleMap:
        """The same heads, all mixed (for ablations)."""
        return self.derive([(Role.MIXED, None)] * len(self.heads), "all_mixed")

    def shuffled(self, seed: int) -> RoleMap:
        """The same roles, randomly assigned to the heads (for ablations); the evidence stays with its head."""
        if type(seed) is not int or seed < 0:
            raise RoleMapError(f"The seed of a shuffle is {seed!r}, but must be a whole number from 0 on.")
        roles = [(head.role, head.concept) for head in self.heads]
        random.Random(seed).shuffle(roles)
        return self.derive(roles, f"shuffled(seed={seed})")

    def derive(
        self, roles: Sequence[tuple[Role, str | None]], how: str, *, attributes: tuple[str, ...] | None = None
    ) -> RoleMap:
        """The same heads and evidence with other roles, of unknown stability; `how` is recorded in the provenance."""
        heads = tuple(
            head.model_copy(update={"role": role, "concept": concept})
            for head, (role, concept) in zip(self.heads, roles, strict=True)
        )
        provenance = self.provenance.model_copy(update={"derived": (*self.provenance.derived, how)})
        update = {"heads": heads, "provenance": provenance, "attributes": attributes or self.attributes}
        return self.model_copy(update={**update, "stability": None})

    def misfits(
        self, *, first_layer: int, layers: int, heads: int, weights_sha256: str, model: str | None = None
    ) -> list[str]:
        """All reasons why this map does not fit layers `first_layer`..`layers` of a backbone.

        A map without a weights hash is compared by the model's name, if the backbone has a well-known one.
        """
        wanted = {(layer, head) for layer in range(first_layer, layers + 1) for head in range(heads)}
        present = {(head.layer, head.head) for head in self.heads}
        problems = []
        if missing := sorted(wanted - present):
            problems.append(f"heads without a role: {_places(missing)}")
        if extra := sorted(present - wanted):
            problems.append(f"heads the adapted layers do not have: {_places(extra)}")
        unknown = [head for head in self.heads if head.role is Role.CORE and head.concept not in self.attributes]
        for head in unknown[:MOST_NAMED]:
            problems.append(f"unknown attribute {head.concept!r} at ({head.layer}, {head.head})")
        recorded = self.provenance.weights_sha256
        if recorded is not None and recorded != weights_sha256:
            problems.append(f"made for weights {recorded[:12]}…, but the backbone's are {weights_sha256[:12]}…")
        made_for = self.provenance.model
        if recorded is None and made_for is not None and model is not None and _family(made_for) != _family(model):
            problems.append(f"made for {made_for}, but the backbone is {model}")
        return problems


def _places(places: list[tuple[int, int]]) -> str:
    more = f" and {len(places) - MOST_PLACES:,} more" if len(places) > MOST_PLACES else ""
    return ", ".join(f"({layer}, {head})" for layer, head in places[:MOST_PLACES]) + more


def _family(model: str) -> str:
    """The architecture of a model name, without its activation function."""
    return model.removesuffix("-quickgelu").lower()


def rule_file(rule: str) -> str:
    """File name of the map by one rule, in the folder of a discovery."""
    return f"roles-{rule}.json"


def shipped_maps() -> list[RoleMap]:
    """The role maps that come with the package."""
    return [RoleMap.from_json(text, where=name) for name, text in _shipped().items()]


def _shipped() -> dict[str, str]:
    folder = resources.files("dear") / "assets" / "roles"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)
    return {f.name.removesuffix(".json"): f.read_text(encoding="utf-8") for f in files}
