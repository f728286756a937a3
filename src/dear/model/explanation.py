"""Why an image gets its answer: logits as sums over heads, MLPs and patches, exactly, for every method.

A logit is read from features of rows of the image tower (`Method.readings`), each a sum of what heads and MLPs added to
that row. Whatever a method adds by other means, such as a cache, is one further part, the rest, so that the parts sum
to the logit in any case.
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
from dear.backbone.tracing import Run, Shares, history, shares_of, take_apart, watching
from dear.config import whole_number
from dear.methods.base import Output, Reading
from dear.model.model import Model
from dear.roles.groups import groups_of
from dear.roles.rolemap import RoleMap

SAME = 1e-3
"""Largest difference of two unit features that may be one."""
EQUAL = 1e-5
"""Difference of two unit features that surely are one."""
NOTICED = 1e-3
"""Rests above this are mentioned in words."""
UNKNOWN, MLPS, START, REST = "heads without a role", "MLPs", "start", "rest"

Kind = Literal["head", "mlp", "start", "rest"]


@dataclass(frozen=True)
class Part:
    """What one head, one MLP, the start or the rest contributes to the logits."""

    kind: Kind
    reading: str
    """The feature it reaches the logits by: "cls", or the attribute of a token; "" for the rest."""
    values_C: Tensor
    layer: int = 0
    head: int = -1
    sources_NC: Tensor | None = None
    """Of a head: what it takes from each row: [CLS], the patches, and rows that a method inserted."""

    @property
    def name(self) -> str:
        """As a person writes it: head 11.4, MLP 11."""
        return {"head": f"head {self.layer}.{self.head}", "mlp": f"MLP {self.layer}"}.get(self.kind, self.kind)


@dataclass(frozen=True)
class Explanation:
    """The answer for one image, taken apart."""

    image: str
    method: str
    readout: str
    how: str
    """What is split, in a sentence."""
    classes: tuple[str, ...]
    """Likeliest first."""
    logits: tuple[float, ...]
    probabilities: tuple[float, ...]
    average: float
    """Mean logit of all classes, those that are not shown too; 0 if there is only one."""
    parts: tuple[Part, ...]
    grid: tuple[int, int]
    """Rows and columns of patches."""
    groups: dict[str, list[tuple[int, int]]]
    """Heads by what they do."""
    attributes: tuple[str, ...]
    """The core attributes of the role map, with or without heads; none without a map."""

    @property
    def without_heads(self) -> tuple[str, ...]:
        """Attributes that no head of the map responds to."""
        return tuple(name for name in self.attributes if name not in self.groups)

    def group_of(self, part: Part) -> str:
        """What a part belongs to: an attribute, another concept or role, or what has none."""
        if part.kind != "head":
            return {"mlp": MLPS, "start": START, "rest": REST}[part.kind]
        place = (part.layer, part.head)
        return next((name for name, heads in self.groups.items() if place in heads), UNKNOWN)

    def by_group(self) -> dict[str, Tensor]:
        """(C,) by what heads do, then the others; together they are the logits."""
        order = [*self.groups, UNKNOWN, MLPS, START, REST]
        return _sums(order, ((self.group_of(part), part.values_C) for part in self.parts))

    def by_reading(self) -> dict[str, Tensor]:
        """(C,) by the feature that was read; together they are the logits."""
        return _sums([], ((part.reading or REST, part.values_C) for part in self.parts))

    def by_place(self) -> dict[tuple[int, int], Tensor]:
        """(C,) by head, through whatever feature."""
        return _sums([], (((part.layer, part.head), part.values_C) for part in self.parts if part.kind == "head"))

    def sums(self) -> list[float]:
        """What the parts sum to, for each class that is shown."""
        return [float(one) for one in torch.stack([part.values_C for part in self.parts]).sum(0)[:-1]]

    def against_average(self, values_C: Tensor) -> Tensor:
        """What speaks for each shown class rather than for the average one."""
        return values_C[..., :-1] - values_C[..., -1:]

    def heat(self, group: str | None = None) -> Tensor:
        """(classes, rows, columns): where in the picture a group's heads, or all, found what speaks for each class."""
        rows, columns = self.grid
        patches_NC = self._sources(group)[1 : 1 + rows * columns]
        return self.against_average(patches_NC).T.reshape(-1, rows, columns)

    def elsewhere(self, group: str | None = None) -> dict[str, Tensor]:
        """(classes,) of what they took from no patch: from [CLS], and from rows that the method inserted."""
        found_NC, patches = self._sources(group), self.grid[0] * self.grid[1]
        taken = {"[CLS]": found_NC[0], "inserted rows": found_NC[1 + patches :].sum(0)}
        return {name: self.against_average(one) for name, one in taken.items() if bool(one.any())}

    def _sources(self, group: str | None) -> Tensor:
        """(most N, C) of a group's heads, or of all; zero if there are none."""
        parts = [one for one in self.parts if group is None or self.group_of(one) == group]
        found = [one.sources_NC for one in parts if one.sources_NC is not None]
        patches = self.grid[0] * self.grid[1]
        most = max([1 + patches, *(one.shape[0] for one in found)])
        total_NC = torch.zeros(most, len(self.classes) + 1, dtype=torch.float64)
        for one in found:
            total_NC[: one.shape[0]] += one
        return total_NC

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: every part, and the heat maps of the likeliest class."""
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
    found: dict[Any, Tensor] = {}
    for name, values in named:
        found[name] = found[name] + values if name in found else values
    return {**{name: found[name] for name in order if name in found}, **found}


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
    """Take the logits of one preprocessed image (3, H, W) apart for the likeliest classes, and for those in `also`.

    `roles` says what the heads do; without it, they have numbers only.
    """
    chosen = model.check_readout(readout)
    whole_number("top_k", top_k, least=1)
    clip, names = model.clip, model.required_classes().names
    images = image[None].to(clip.device)
    with watching() as runs:
        out: Output = model(images)
        clip.frozen(images, ["feature"])  # the plain tower, watched last and so looked at first
    logits_C = out.readouts.get(chosen, out.logits)[0].double().cpu()
    top = logits_C.topk(min(top_k, len(names))).indices.tolist()
    top += [at for at, one in enumerate(names) if one in also and at not in top]
    classes_CE, own = _class_features(model, out)
    directions_EC = clip.temperature * torch.cat([classes_CE[top], classes_CE.mean(0, keepdim=True)]).double().T
    parts, plain = _parts(model, out, runs, chosen, directions_EC)
    wanted_C = torch.cat([logits_C[top], logits_C.mean()[None]])
    if len(names) == 1:  # its average is itself: everything would cancel
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
        probabilities=tuple(logits_C.softmax(0)[top].tolist()),
        average=float(wanted_C[-1]),
        parts=tuple(parts),
        grid=_grid(clip),
        groups=groups_of(roles) if roles else {},
        attributes=tuple(roles.attributes) if roles else (),
    )


def _without_average(part: Part) -> Part:
    def cleared(values: Tensor | None) -> Tensor | None:
        return None if values is None else torch.cat([values[..., :-1], values[..., -1:] * 0], -1)

    values_C = cleared(part.values_C)
    assert values_C is not None
    return Part(part.kind, part.reading, values_C, part.layer, part.head, cleared(part.sources_NC))


def _class_features(model: Model, out: Output) -> tuple[Tensor, bool]:
    """The method's class features, or plain CLIP's where it has none that are the same for every image."""
    shape = len(model.required_classes().names), model.clip.geometry.embed_dim
    if out.classes is not None and tuple(out.classes.shape) == shape:
        return out.classes, True
    return model.plain().class_features(), False


def _grid(clip: FrozenClip) -> tuple[int, int]:
    side = clip.geometry.image_size // clip.geometry.patch_size
    return side, (clip.vision.rows - 1) // side


def _parts(
    model: Model, out: Output, runs: Sequence[Run], readout: str, directions_EC: Tensor
) -> tuple[list[Part], bool]:
    """The parts by heads and MLPs, and whether they are the plain tower's.

    Of all runs of the tower those are taken whose features are the method's own; if there are none, plain CLIP's.
    """
    off = model.is_disabled
    readings = (Reading(),) if off else model.method.readings(model.clip, readout)
    chains = history(runs, model.clip.vision.depth)
    best: tuple[float, int, list[Part]] | None = None
    for number, chain in enumerate(chains):
        if all(row in chain[-1].seen[-1].rows for one in readings for row in one.rows):
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


def _read(clip: FrozenClip, chain: Sequence[Run], reading: Reading, directions_EC: Tensor) -> tuple[Shares, Tensor]:
    rows = [take_apart(chain, row, reading.carry) for row in reading.rows]
    projection = clip.vision.projection if reading.projection is None else reading.projection
    return shares_of(rows, clip.vision.final_norm, projection, directions_EC * reading.weight)


def _distance(out: Output, name: str, feature_E: Tensor) -> float:
    own = out.features.get(name)
    if own is None or own.shape[-1] != feature_E.shape[0]:
        return float("inf")
    return float((own[0].double() - feature_E).abs().max())


def _listed(reading: Reading, shares: Shares) -> list[Part]:
    """Shares as parts, with the factors of the reading, on the CPU."""
    found = [Part("start", reading.name, (reading.rest * shares.start_C).cpu())]
    for layer, added_C, sources_HNC in zip(shares.numbers, shares.added_LC, shares.sources_LHNC, strict=True):
        for head, each_NC in enumerate(sources_HNC):
            sources_NC = (reading.gains.get((layer, head), reading.rest) * each_NC).cpu()
            found.append(Part("head", reading.name, sources_NC.sum(0), layer, head, sources_NC))
        found.append(Part("mlp", reading.name, (reading.rest * added_C).cpu(), layer))
    return found


def _how(model: Model, *, plain: bool, own_classes: bool, rest: float) -> str:
    tower = "plain CLIP's image tower" if plain else f"the image tower as {model.name} adapts it"
    own_classes = own_classes and model.name != "zero_shot"
    classes = f"the class features of {model.name}" if own_classes else "plain CLIP's class features"
    split = f"Split over the heads and MLPs of {tower}, compared with {classes}."
    if rest <= NOTICED:
        return split
    return f"{split} What {model.name} does beyond that cannot be given to heads: it is the part called rest."


def picture_seen(clip: FrozenClip, image: Tensor) -> Image.Image:
    """A preprocessed image as a picture again: exactly what the tower saw."""
    to_input: Callable[[Any], Tensor] = clip.preprocess_train.to_input
    size = (image.shape[2], image.shape[1])
    black, white = (to_input(Image.new("RGB", size, one)) for one in ("black", "white"))
    levels = ((image.cpu().float() - black) / (white - black) * 255).round().clamp(0, 255).byte()
    return Image.fromarray(levels.permute(1, 2, 0).numpy())
