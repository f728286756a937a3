"""Declarations of the world's data sets: classes, prompt, looks, counts, seed. Results depend on them: never change."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dear.world.grammar import an, place
from dear.world.render import Look
from dear.world.vocabulary import NAMES, VALUES, pair_is_held_out


@dataclass(frozen=True)
class WorldClass:
    """A class: its name in the prompt and the attribute values that it fixes."""

    name: str
    fixed: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class WorldDataset:
    """A data set: its counterpart in the paper, prompt, classes (sorted by name), looks and images per class."""

    name: str
    stands_for: str
    about: str
    template: str
    classes: tuple[WorldClass, ...]
    looks: tuple[Look, ...]
    seed: int
    train: int = 32
    val: int = 8
    test: int = 100


_BASE = Look(held_out_places=True)
_FREE = replace(_BASE, turn=28, light=64, noise=22, clutter=6, overlap=8)


def _styled(look: Look, *styles: str) -> tuple[Look, ...]:
    return tuple(replace(look, style=style) for style in styles)


def _sorted(classes: list[WorldClass]) -> tuple[WorldClass, ...]:
    return tuple(sorted(classes, key=lambda one: one.name))


def _textures() -> tuple[WorldClass, ...]:
    return _sorted([WorldClass(name, (("texture", name),)) for name in NAMES["texture"]])


def _blooms() -> tuple[WorldClass, ...]:
    """Coloured shapes, each colour twice, only in combinations that pre-training never shows."""
    chosen = []
    for color in NAMES["color"]:
        shapes = [s for s in NAMES["shape"] if pair_is_held_out("color", "shape", color, s)]
        chosen += [WorldClass(f"{color} {shape}", (("color", color), ("shape", shape))) for shape in shapes[:2]]
    return _sorted(chosen)


def _things() -> tuple[WorldClass, ...]:
    return _sorted([WorldClass(name, (("object", name),)) for name in NAMES["object"]])


def _places() -> tuple[WorldClass, ...]:
    """Places under the last of their seen names ("woods", not "forest")."""
    return _sorted([WorldClass(v.seen[-1], (("location", v.name),)) for v in VALUES["location"]])


def _emblems() -> tuple[WorldClass, ...]:
    """Fine-grained classes: four colours, three shapes, four textures, half of the possible triples."""
    colors, shapes = ("red", "orange", "pink", "purple"), ("star", "flower", "heart")
    textures = ("dotted", "bubbly", "zigzag", "wavy")
    return _sorted(
        [
            WorldClass(f"{c} {t} {s}", (("color", c), ("shape", s), ("texture", t)))
            for i, c in enumerate(colors)
            for j, s in enumerate(shapes)
            for k, t in enumerate(textures)
            if (i + j + k) % 2 == 0
        ]
    )


def _scenes() -> tuple[WorldClass, ...]:
    """An object at a location, in combinations that pre-training never shows; objects and locations recur."""
    things = [NAMES["object"][i] for i in (0, 4, 7, 9, 13, 15, 20, 23)]
    return _sorted(
        [
            WorldClass(f"{an(thing)} {place(spot)}", (("location", spot), ("object", thing)))
            for thing in things
            for spot in NAMES["location"]
            if pair_is_held_out("object", "location", thing, spot)
        ]
    )


def _broad() -> tuple[WorldClass, ...]:
    """Objects, locations, textures and coloured shapes together. A scene never shows two of the classes."""
    chosen = [WorldClass(an(name), (("object", name),)) for name in NAMES["object"][:14]]
    chosen += [WorldClass(the_place(name), (("location", name),)) for name in NAMES["location"][:10]]
    chosen += [WorldClass(f"{an(name)} pattern", (("texture", name),)) for name in NAMES["texture"][1:9]]
    pairs = ["red star", "blue circle", "yellow crescent", "green arrow", "pink heart"]
    pairs += ["white square", "black ring", "orange bolt"]
    chosen += [WorldClass(an(pair), tuple(zip(("color", "shape"), pair.split(), strict=True))) for pair in pairs]
    return _sorted(chosen)


def the_place(name: str) -> str:
    """Return the class name of a location in the broad data sets."""
    return f"{name} scenery"


_BROAD = WorldDataset(
    "world-broad",
    "ImageNet",
    "things, places, patterns and coloured shapes together",
    "a photo of {}.",
    _broad(),
    (_BASE,),
    seed=7,
    test=60,
)

_HARD = replace(_FREE, shape_sizes=(20, 28), object_sizes=(16, 24), turn=40, light=90, noise=40, clutter=12, overlap=14)

_ALL = (
    WorldDataset(
        "world-textures",
        "DTD",
        "one texture on any shape, in washes, tiles and ink",
        "a swatch of {} texture.",
        _textures(),
        _styled(replace(_BASE, shape_sizes=(34, 44)), "painted", "watercolor", "mosaic", "sepia"),
        seed=1,
        test=150,
    ),
    WorldDataset(
        "world-blooms",
        "Flowers102",
        "a colour and a shape in combinations never seen before",
        "a photo of a {}, a type of bloom.",
        _blooms(),
        _styled(_FREE, "painted", "poster", "watercolor", "hatched"),
        seed=2,
    ),
    WorldDataset(
        "world-things",
        "Caltech101",
        "one drawn object",
        "a photo of one {} among other things.",
        _things(),
        _styled(_FREE, "painted", "sketch", "poster", "neon"),
        seed=3,
    ),
    WorldDataset(
        "world-places",
        "EuroSAT, SUN397",
        "one location, new painters' hands",
        "a snapshot showing {} scenery.",
        _places(),
        _styled(_FREE, "painted", "night", "negative", "hatched"),
        seed=4,
        test=150,
    ),
    WorldDataset(
        "world-emblems",
        "StanfordCars, FGVCAircraft",
        "near relatives: few colours, shapes and textures in many combinations",
        "a photo of a {}, a type of emblem.",
        _emblems(),
        _styled(_BASE, "painted", "mosaic", "sepia"),
        seed=5,
    ),
    WorldDataset(
        "world-scenes",
        "UCF101",
        "a thing at a place in combinations never seen before",
        "a snapshot of {}.",
        _scenes(),
        _styled(_FREE, "painted", "night", "poster", "watercolor"),
        seed=6,
        test=110,
    ),
    _BROAD,
    replace(
        _BROAD,
        name="world-broad-v2",
        stands_for="ImageNetV2",
        about="drawn again, with more variation",
        looks=(_FREE,),
        seed=8,
    ),
    replace(
        _BROAD,
        name="world-broad-sketch",
        stands_for="ImageNet-Sketch",
        about="outlined",
        looks=_styled(_BASE, "sketch"),
        seed=9,
    ),
    replace(
        _BROAD,
        name="world-broad-a",
        stands_for="ImageNet-A",
        about="small, tilted, overlapping, badly lit, noisy",
        looks=(_HARD,),
        seed=10,
    ),
    replace(
        _BROAD,
        name="world-broad-r",
        stands_for="ImageNet-R",
        about="other styles",
        looks=_styled(_BASE, "poster", "mosaic", "watercolor", "hatched", "neon", "negative"),
        seed=11,
    ),
)

DATASETS = {one.name: one for one in _ALL}
