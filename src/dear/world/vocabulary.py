"""The vocabulary of the world: five attributes, their values, seen and held-out words, and held-out pairs."""

from __future__ import annotations

from dataclasses import dataclass

ATTRIBUTES = ("color", "shape", "texture", "object", "location")


@dataclass(frozen=True)
class Value:
    """One value of an attribute: its name, the other words that pre-training uses, and words that it never uses."""

    name: str
    synonyms: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()

    @property
    def seen(self) -> tuple[str, ...]:
        """All words that pre-training may use, the name first."""
        return (self.name, *self.synonyms)


COLORS = (
    Value("red", ("crimson", "scarlet"), ("ruby",)),
    Value("orange", ("tangerine",), ("apricot",)),
    Value("yellow", ("golden", "lemon"), ("canary",)),
    Value("lime", ("chartreuse", "lime green"), ("pear green",)),
    Value("green", ("emerald", "dark green"), ("forest green",)),
    Value("turquoise", ("cyan", "aqua"), ("teal",)),
    Value("blue", ("cobalt", "royal blue"), ("sapphire",)),
    Value("purple", ("violet",), ("plum",)),
    Value("pink", ("rose", "light pink"), ("salmon pink",)),
    Value("brown", ("chestnut", "chocolate"), ("umber",)),
    Value("black", ("jet black",), ("ebony",)),
    Value("white", ("ivory", "snow white"), ("chalk white",)),
)

RGB = {
    "red": (212, 36, 40),
    "orange": (244, 130, 24),
    "yellow": (248, 216, 40),
    "lime": (164, 214, 52),
    "green": (30, 128, 58),
    "turquoise": (44, 200, 196),
    "blue": (34, 78, 206),
    "purple": (128, 48, 172),
    "pink": (250, 142, 192),
    "brown": (122, 74, 38),
    "black": (26, 26, 30),
    "white": (246, 246, 242),
}

SHAPES = (
    Value("circle", ("disc",), ("roundel",)),
    Value("square", (), ("quadrilateral",)),
    Value("triangle", (), ("trigon",)),
    Value("star", (), ("pentagram",)),
    Value("heart", ("love heart",), ("valentine",)),
    Value("cross", ("plus sign",), ("plus",)),
    Value("diamond", ("rhombus",), ("lozenge",)),
    Value("hexagon", ("six sided shape",), ("hexagonal shape",)),
    Value("crescent", ("half moon",), ("sickle",)),
    Value("ring", ("hoop",), ("annulus",)),
    Value("arrow", ("pointer",), ("arrow sign",)),
    Value("teardrop", ("drop",), ("droplet",)),
    Value("semicircle", ("half disc",), ("dome",)),
    Value("flower", ("blossom",), ("rosette",)),
    Value("bolt", ("lightning bolt",), ("flash",)),
    Value("hourglass", ("bow tie",), ("sandglass",)),
)

TEXTURES = (
    Value("plain", ("solid", "smooth"), ("untextured",)),
    Value("striped", ("banded", "stripy"), ("lined",)),
    Value("dotted", ("spotted", "polka dot"), ("dotty",)),
    Value("checkered", ("chequered", "checkerboard"), ("checked",)),
    Value("zigzag", ("chevron",), ("zigzagged",)),
    Value("wavy", ("rippled",), ("undulating",)),
    Value("gridded", ("grid", "meshed"), ("latticed",)),
    Value("bricked", ("brick",), ("masonry",)),
    Value("scaly", ("scaled",), ("shingled",)),
    Value("honeycombed", ("honeycomb",), ("hexagonally tiled",)),
    Value("speckled", ("flecked",), ("freckled",)),
    Value("blotchy", ("stained",), ("blotched",)),
    Value("cracked", ("crackled",), ("fractured",)),
    Value("woven", ("basket weave",), ("interlaced",)),
    Value("ringed", ("concentric",), ("target like",)),
    Value("bubbly", ("bubbled",), ("foamy",)),
)

OBJECTS = (
    Value("house", ("cottage", "home"), ("hut",)),
    Value("fish", (), ("trout",)),
    Value("key", (), ("latchkey",)),
    Value("tree", (), ("oak",)),
    Value("car", ("automobile",), ("motorcar",)),
    Value("boat", ("sailboat",), ("yacht",)),
    Value("mug", ("cup",), ("teacup",)),
    Value("umbrella", ("parasol",), ("brolly",)),
    Value("bird", (), ("songbird",)),
    Value("butterfly", (), ("moth",)),
    Value("mushroom", ("toadstool",), ("fungus",)),
    Value("bottle", (), ("flask",)),
    Value("hammer", ("mallet",), ("gavel",)),
    Value("ladder", (), ("stepladder",)),
    Value("lamp", ("table lamp",), ("lampshade",)),
    Value("cat", ("kitten",), ("feline",)),
    Value("clock", ("wall clock",), ("timepiece",)),
    Value("bell", (), ("handbell",)),
    Value("anchor", (), ("ship anchor",)),
    Value("apple", (), ("fruit",)),
    Value("rocket", ("spaceship",), ("spacecraft",)),
    Value("chair", (), ("stool",)),
    Value("candle", (), ("taper",)),
    Value("crown", (), ("tiara",)),
)

LOCATIONS = (
    Value("desert", ("sand dunes",), ("sahara",)),
    Value("sea", ("ocean",), ("open water",)),
    Value("forest", ("woods",), ("woodland",)),
    Value("city", ("night city", "town at night"), ("skyline",)),
    Value("mountains", ("alps",), ("peaks",)),
    Value("meadow", ("grassland",), ("pasture",)),
    Value("beach", ("seaside", "sandy shore"), ("coast",)),
    Value("sky", ("clouds",), ("heavens",)),
    Value("space", ("outer space", "galaxy"), ("cosmos",)),
    Value("room", ("bedroom", "living room"), ("indoors",)),
    Value("road", ("highway",), ("motorway",)),
    Value("reef", ("coral reef", "underwater"), ("seabed",)),
    Value("cave", ("cavern",), ("grotto",)),
    Value("snow", ("snowfield", "arctic"), ("tundra",)),
    Value("volcano", ("lava field",), ("crater",)),
    Value("farm", ("crop field", "farmland"), ("plantation",)),
)

VALUES = {"color": COLORS, "shape": SHAPES, "texture": TEXTURES, "object": OBJECTS, "location": LOCATIONS}
NAMES = {attribute: tuple(value.name for value in values) for attribute, values in VALUES.items()}
INDEX = {attribute: {name: i for i, name in enumerate(names)} for attribute, names in NAMES.items()}

# Pairs of attributes with held-out combinations: (first, second, step, modulus). A pair (i, j) is held out where
# (i + step · j) mod modulus is 0, so every value keeps most of its partners.
HELD_OUT_PAIRS = (
    ("color", "shape", 3, 8),
    ("texture", "shape", 3, 16),
    ("object", "location", 5, 6),
)


def pair_is_held_out(first: str, second: str, a: str, b: str) -> bool:
    """Return whether pre-training never shows value `a` of `first` together with value `b` of `second`."""
    for x, y, step, modulus in HELD_OUT_PAIRS:
        if (x, y) == (first, second):
            return (INDEX[x][a] + step * INDEX[y][b]) % modulus == 0
    return False
