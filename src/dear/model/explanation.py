"""Explain a prediction: split its logits exactly into contributions of heads, MLPs and patches, for every method.

A logit is computed from rows of the image tower (`Method.readings`). Each row is the sum of what heads and MLPs added
to it. Everything that a method adds in another way, such as by a cache, is one further part, the rest. The parts
therefore always sum to the logit.
Shapes: C classes that are shown and their average as the last column, N rows that a head attends to, E joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from dear.backbone.clip import FrozenClip
from dear.backbone.pooled_shares import of_image, of_new_rows
from dear.backbone.pooled_shares import shares as pooled_shares
from dear.backbone.support import Can
from dear.backbone.tracing import Run, Shares, history, shares_of, take_apart, watching
from dear.config import whole_number
from dear.methods.base import Output, Reading
from dear.model.model import Model
from dear.roles.groups import groups_of
from dear.roles.rolemap import RoleMap

SAME = 1e-3
"""Two unit features with a larger difference are different."""
EQUAL = 1e-5
"""Two unit features with a smaller difference are certainly the same."""
NOTICED = 1e-3
"""A rest above this value is mentioned in the text."""
UNKNOWN, MLPS, START, REST = "heads without a role", "MLPs", "start", "rest"

Kind = Literal["head", "mlp", "start", "rest"]


@dataclass(frozen=True)
class Part:
    """Contribution of one head, one MLP, the tower's input ("start") or the rest to the logits."""

    kind: Kind
    reading: str
    """The feature through which it reaches the logits: "cls", or the attribute of a token; "" for the rest."""
    values_C: Tensor
    layer: int = 0
    head: int = -1
    sources_NC: Tensor | None = None
    """For a head: its contribution by source row: [CLS], the patches, and rows that the method inserted."""

    @property
    def name(self) -> str:
        """Readable name, such as "head 11.4" or "MLP 11"."""
        return {"head": f"head {self.layer}.{self.head}", "mlp": f"MLP {self.layer}"}.get(self.kind, self.kind)


@dataclass(frozen=True)
class Explanation:
    """The logits of one image, split into parts."""

    image: str
    method: str
    readout: str
    how: str
    """A sentence that says which tower and which class features were split."""
    classes: tuple[str, ...]
    """Likeliest first."""
    logits: tuple[float, ...]
    probabilities: tuple[float, ...]
    average: float
    """Mean logit of all classes, including those that are not shown; 0 if there is only one class."""
    parts: tuple[Part, ...]
    grid: tuple[int, int]
    """Number of rows and columns of patches."""
    groups: dict[str, list[tuple[int, int]]]
    """Heads by concept or role."""
    attributes: tuple[str, ...]
    """The core attributes of the role map, including those without heads; () without a map."""
    prefix: int = 1
    """Number of rows before the patches: [CLS] and registers."""

    @property
    def without_heads(self) -> tuple[str, ...]:
        """Attributes without a head in the role map."""
        return tuple(name for name in self.attributes if name not in self.groups)

    def group_of(self, part: Part) -> str:
        """The group of a part: an attribute, another concept or role, or the kind of a part that is not a head."""
        if part.kind != "head":
            return {"mlp": MLPS, "start": START, "rest": REST}[part.kind]
        place = (part.layer, part.head)
        return next((name for name, heads in self.groups.items() if place in heads), UNKNOWN)

    def by_group(self) -> dict[str, Tensor]:
        """(C,) contributions by group; they sum to the logits."""
        order = [*self.groups, UNKNOWN, MLPS, START, REST]
        return _sums(order, ((self.group_of(part), part.values_C) for part in self.parts))

    def by_reading(self) -> dict[str, Tensor]:
        """(C,) contributions by feature; they sum to the logits."""
        return _sums([], ((part.reading or REST, part.values_C) for part in self.parts))

    def by_place(self) -> dict[tuple[int, int], Tensor]:
        """(C,) contributions by head, summed over features."""
        return _sums([], (((part.layer, part.head), part.values_C) for part in self.parts if part.kind == "head"))

    def sums(self) -> list[float]:
        """The sum of all parts for each class that is shown."""
        return [float(one) for one in torch.stack([part.values_C for part in self.parts]).sum(0)[:-1]]

    def against_average(self, values_C: Tensor) -> Tensor:
        """Contributions to each shown class minus those to the average class."""
        return values_C[..., :-1] - values_C[..., -1:]

    def heat(self, group: str | None = None) -> Tensor:
        """(classes, rows, columns): contribution of each patch to each class, through the heads of a group or all."""
        rows, columns = self.grid
        patches_NC = self._sources(group)[self.prefix : self.prefix + rows * columns]
        return self.against_average(patches_NC).T.reshape(-1, rows, columns)

    def elsewhere(self, group: str | None = None) -> dict[str, Tensor]:
        """(classes,): contributions of the same heads from [CLS], and from rows that the method inserted."""
        sources_NC, patches = self._sources(group), self.grid[0] * self.grid[1]
        before, after = sources_NC[: self.prefix], sources_NC[self.prefix + patches :]
        taken = {"[CLS]": before.sum(0), "inserted rows": after.sum(0)}
        return {name: self.against_average(one) for name, one in taken.items() if bool(one.any())}

    def _sources(self, group: str | None) -> Tensor:
        """(N, C): contributions by source row, summed over the heads of a group or all; zeros if there are none."""
        parts = [one for one in self.parts if group is None or self.group_of(one) == group]
        sources = [one.sources_NC for one in parts if one.sources_NC is not None]
        patches = self.grid[0] * self.grid[1]
        most = max([self.prefix + patches, *(one.shape[0] for one in sources)])
        total_NC = torch.zeros(most, len(self.classes) + 1, dtype=torch.float64)
        for one in sources:
            total_NC[: one.shape[0]] += one
        return total_NC

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: all parts, and the heat maps of the likeliest class."""
        sums = self.sums()
        named = zip(self.classes, self.logits, self.probabilities, sums, strict=True)
        return {
            "image": self.image,
            "method": self.method,
            "readout": self.readout,
            "how": self.how,
            "classes": [{"name": n, "logit": z, "probability": p, "sum_of_parts": s} for n, z, p, s in named],
            "average_logit": self.average,
            "groups": {name: _plain(values) for name, values in self.by_group().items()},
            "readings": {name: _plain(values) for name, values in self.by_reading().items()},
            "parts": [
                {"part": one.name, "reading": one.reading, "group": self.group_of(one), **_plain(one.values_C)}
                for one in self.parts
            ],
            "heat": {name: self.heat(name)[0].tolist() for name in self.attributes if name in self.groups},
            "attributes_without_heads": list(self.without_heads),
        }


def _plain(values_C: Tensor) -> dict[str, Any]:
    *shown, average = values_C.tolist()
    return {"values": shown, "average": average}


def _sums(order: Sequence[Any], named: Any) -> dict[Any, Tensor]:
    sums: dict[Any, Tensor] = {}
    for name, values in named:
        sums[name] = sums[name] + values if name in sums else values
    return {**{name: sums[name] for name in order if name in sums}, **sums}


@torch.no_grad()
def explain_image(
    model: Model,
    image: Tensor,
    *,
    roles: RoleMap | None = None,
    readout: str | None = None,
    top_k: int = 3,
    also: Sequence[str] = (),
    name: str = "",
) -> Explanation:
    """Split the logits of one preprocessed image (3, H, W) for the likeliest classes, and for those in `also`.

    `roles` is the role map that groups the heads; without it, heads are only numbered.
    """
    chosen = model.check_readout(readout)
    whole_number("top_k", top_k, least=1)
    clip, names = model.clip, model.required_classes().names
    clip.require({Can.IMAGE_LAYERS}, "An explanation")
    images = image[None].to(clip.device)
    with watching() as runs:
        out: Output = model(images)
        clip.frozen(images, ["feature"])  # the plain tower runs last, so that it is tried first
    logits_C = out.readouts.get(chosen, out.logits)[0].double().cpu()
    top = logits_C.topk(min(top_k, len(names))).indices.tolist()
    top += [at for at, one in enumerate(names) if one in also and at not in top]
    classes_CE, own = _class_features(model, out)
    directions_EC = clip.temperature * torch.cat([classes_CE[top], classes_CE.mean(0, keepdim=True)]).double().T
    parts, plain = _parts(model, out, runs, chosen, directions_EC)
    wanted_C = torch.cat([logits_C[top], logits_C.mean()[None]])
    if len(names) == 1:  # the only class is its own average: all differences would be zero
        wanted_C[-1] = 0
        parts = [_without_average(part) for part in parts]
    rest_C = wanted_C - torch.stack([part.values_C for part in parts]).sum(0)
    parts.append(Part("rest", "", rest_C))
    return Explanation(
        image=name,
        method=model.name,
        readout=chosen,
        how=_how(model, plain=plain, own_classes=own, rest=float(rest_C.abs().max())),
        classes=tuple(names[i] for i in top),
        logits=tuple(logits_C[top].tolist()),
        probabilities=tuple(_probabilities(model, logits_C, chosen)[top].tolist()),
        average=float(wanted_C[-1]),
        parts=tuple(parts),
        grid=clip.vision.grid,
        prefix=clip.vision.prefix,
        groups=groups_of(roles) if roles else {},
        attributes=tuple(roles.attributes) if roles else (),
    )


def _probabilities(model: Model, logits_C: Tensor, readout: str) -> Tensor:
    """Probabilities of the classes, as a prediction has them: calibrated if the model is."""
    fit = model.calibrated(readout)
    return logits_C.softmax(0) if fit is None else fit.probabilities(logits_C[None])[0]


def _without_average(part: Part) -> Part:
    def cleared(values: Tensor | None) -> Tensor | None:
        return None if values is None else torch.cat([values[..., :-1], values[..., -1:] * 0], -1)

    values_C = cleared(part.values_C)
    assert values_C is not None
    return Part(part.kind, part.reading, values_C, part.layer, part.head, cleared(part.sources_NC))


def _class_features(model: Model, out: Output) -> tuple[Tensor, bool]:
    """The method's class features; plain CLIP's if those of the method depend on the image."""
    shape = len(model.required_classes().names), model.clip.geometry.embed_dim
    if out.classes is not None and tuple(out.classes.shape) == shape:
        return out.classes, True
    return model.plain().class_features(), False


def _parts(
    model: Model, out: Output, runs: Sequence[Run], readout: str, directions_EC: Tensor
) -> tuple[list[Part], bool]:
    """The parts of heads and MLPs, and whether they are those of plain CLIP's tower.

    Uses the run of the tower that produced the method's features; if there is none, the run of plain CLIP.
    """
    off = model.is_disabled
    readings = (Reading(),) if off else model.method.readings(model.clip, readout)
    chains = history(runs, model.clip.vision.depth)
    best: tuple[float, int, list[Part]] | None = None
    for number, chain in enumerate(chains):
        if all(row in chain[-1].seen[-1].rows for one in readings for row in _rows(model.clip, one)):
            apart = [_read(model.clip, chain, one, directions_EC) for one in readings]
            error = max(_distance(out, one.name, feature) for one, (_, feature) in zip(readings, apart, strict=True))
            if error <= SAME and (best is None or error < best[0]):
                listed = (_listed(one, shares) for one, (shares, _) in zip(readings, apart, strict=True))
                best = error, number, [part for parts in listed for part in parts]
        if best and best[0] <= EQUAL:
            break
    if best is None:
        plain = Reading()
        return _listed(plain, _read(model.clip, chains[0], plain, directions_EC)[0]), True
    return best[2], best[1] == 0


def _rows(clip: FrozenClip, reading: Reading) -> tuple[int, ...]:
    """The rows of a reading; an image feature that is pooled reads all original ones."""
    return tuple(clip.vision.pooled) if reading.rows == (0,) else reading.rows


def _read(clip: FrozenClip, chain: Sequence[Run], reading: Reading, directions_EC: Tensor) -> tuple[Shares, Tensor]:
    pool, rows, onto_EC = clip.vision.pool, _rows(clip, reading), directions_EC * reading.weight
    projection = clip.vision.projection if reading.projection is None else reading.projection
    pooled = rows != reading.rows
    if not pooled and pool.kind != "map":
        terms = [take_apart(chain, row, reading.carry) for row in rows]
        return shares_of(terms, clip.vision.final_norm, projection, onto_EC, pool.bias)
    after_QD, places = chain[-1].after_QD, chain[-1].seen[-1].rows
    assert after_QD is not None
    rows_QD = after_QD[[places.index(row) for row in rows]]
    linear = of_image(pool, rows_QD, onto_EC) if pooled else of_new_rows(pool, rows_QD, projection, onto_EC)
    return pooled_shares(chain, rows, linear, onto_EC, reading.carry), linear.feature_E


def _distance(out: Output, name: str, feature_E: Tensor) -> float:
    own = out.features.get(name)
    if own is None or own.shape[-1] != feature_E.shape[0]:
        return float("inf")
    return float((own[0].double() - feature_E).abs().max())


def _listed(reading: Reading, shares: Shares) -> list[Part]:
    """Convert shares to parts on the CPU, multiplied by the factors of the reading."""
    parts = [Part("start", reading.name, (reading.rest * shares.start_C).cpu())]
    for layer, added_C, sources_HNC in zip(shares.numbers, shares.added_LC, shares.sources_LHNC, strict=True):
        for head, each_NC in enumerate(sources_HNC):
            sources_NC = (reading.gains.get((layer, head), reading.rest) * each_NC).cpu()
            parts.append(Part("head", reading.name, sources_NC.sum(0), layer, head, sources_NC))
        parts.append(Part("mlp", reading.name, (reading.rest * added_C).cpu(), layer))
    return parts


def _how(model: Model, *, plain: bool, own_classes: bool, rest: float) -> str:
    tower = "plain CLIP's image tower" if plain else f"the image tower as {model.name} adapts it"
    own_classes = own_classes and model.name != "zero_shot"
    classes = f"the class features of {model.name}" if own_classes else "plain CLIP's class features"
    split = f"Split over the heads and MLPs of {tower}, compared with {classes}."
    if rest <= NOTICED:
        return split
    return f"{split} What {model.name} does beyond that cannot be assigned to heads: it is the part called rest."


def picture_seen(clip: FrozenClip, image: Tensor) -> Image.Image:
    """Convert a preprocessed image back to a PIL image: exactly what the tower sees."""
    to_input: Callable[[Any], Tensor] = clip.preprocess_train.to_input
    size = (image.shape[2], image.shape[1])
    black, white = (to_input(Image.new("RGB", size, one)) for one in ("black", "white"))
    levels = ((image.cpu().float() - black) / (white - black) * 255).round().clamp(0, 255).byte()
    return Image.fromarray(levels.permute(1, 2, 0).numpy())
