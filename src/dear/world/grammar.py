"""Sentences about a scene: full and partial captions, single-concept prompts, and a pool of short phrases.

Pre-training uses the words in `Value.seen` and the templates here. It never uses the templates of the data sets
(`HELD_OUT_TEMPLATES`) or the words in `Value.held_out`.
"""

from __future__ import annotations

from collections.abc import Sequence

from dear.world.render import Scene, words
from dear.world.vocabulary import ATTRIBUTES, VALUES

# Locations with another preposition than "in the".
_PLACE = {
    "sea": "at sea",
    "ocean": "on the ocean",
    "sand dunes": "among the sand dunes",
    "town at night": "in a town at night",
    "beach": "on the beach",
    "seaside": "at the seaside",
    "sandy shore": "on a sandy shore",
    "clouds": "among the clouds",
    "space": "in space",
    "outer space": "in outer space",
    "galaxy": "in a galaxy",
    "room": "in a room",
    "bedroom": "in a bedroom",
    "living room": "in the living room",
    "road": "on the road",
    "highway": "on the highway",
    "coral reef": "on a coral reef",
    "reef": "at the reef",
    "underwater": "underwater",
    "arctic": "in the arctic",
    "volcano": "by the volcano",
    "lava field": "on a lava field",
    "farm": "on the farm",
    "farmland": "on farmland",
    "crop field": "in a crop field",
    "snowfield": "on a snowfield",
}
_BARE = {"space", "outer space", "clouds", "sand dunes", "underwater", "farmland", "snow", "mountains", "woods", "alps"}
_FIGURES = ("shape", "figure", "thing", "form")
_OPENINGS = ("", "", "a photo of ", "a picture of ", "an image of ", "a drawing of ", "a painting of ")
_JOINS = ("{a} beside {b}", "{a} next to {b}", "{a} and {b}", "{a} with {b}", "{b} near {a}", "{b} and {a}")

PROMPTS: dict[str, tuple[str, ...]] = {
    "color": (
        "{a} shape",
        "something {w}",
        "the color {w}",
        "{a} thing",
        "a photo of {a} figure",
        "{w}",
        "{w} colored",
    ),
    "shape": ("{a}", "the shape of {a}", "a photo of {a}", "something shaped like {a}", "a picture of {a}", "{w}"),
    "texture": (
        "{a} shape",
        "something {w}",
        "{a} texture",
        "{a} pattern",
        "{a} surface",
        "a photo of {a} thing",
        "{w}",
    ),
    "object": ("{a}", "a photo of {a}", "a picture of {a}", "there is {a}", "an image of {a}", "{w}"),
    "location": (
        "{p}",
        "a photo taken {p}",
        "a view of {t}",
        "a scene {p}",
        "{t}",
        "a picture of {t}",
        "something {p}",
    ),
}

# One template per data set; pre-training uses none of them.
HELD_OUT_TEMPLATES = (
    "a swatch of {} texture.",
    "a photo of a {}, a type of bloom.",
    "a photo of one {} among other things.",
    "a snapshot showing {} scenery.",
    "a photo of a {}, a type of emblem.",
    "a snapshot of {}.",
    "a photo of {}.",
)


def an(phrase: str) -> str:
    """Add the indefinite article to a phrase."""
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def place(word: str) -> str:
    """Return a location with its preposition: "in the desert", "at sea"."""
    return _PLACE.get(word, f"in the {word}")


def the(word: str) -> str:
    """Return a location with its article: "the desert", "outer space"."""
    if word in _BARE:
        return word
    return an(word) if word in ("town at night", "room", "bedroom", "crop field", "lava field") else f"the {word}"


def prompt(attribute: str, word: str, template: str) -> str:
    """Fill a template with a word: {w} the word, {a} with "a", {p} with its preposition, {t} with "the"."""
    return template.format(w=word, a=an(word), p=place(word), t=the(word))


def random_prompt(attribute: str, value: int, key: tuple[int, ...]) -> str:
    """Return a random prompt of pre-training that names a value."""
    pick, pattern = words(key, 2)
    seen = VALUES[attribute][value].seen
    word = seen[0] if pick % 2 == 0 else seen[(pick >> 1) % len(seen)]
    templates = PROMPTS[attribute]
    return prompt(attribute, word, templates[pattern % len(templates)])


def _figure(said: dict[str, str], chance: Sequence[int]) -> str:
    """Name the shape with its adjectives."""
    adjectives = [said[a] for a in ("color", "texture") if a in said]
    if chance[0] % 2:
        adjectives.reverse()
    if "shape" not in said and chance[1] % 4 == 0:
        return "something " + " and ".join(adjectives)
    noun = said.get("shape", _FIGURES[chance[1] % len(_FIGURES)])
    if not adjectives:
        return an(noun)
    if chance[2] % 6 == 0:
        return f"{an(noun)} that is {' and '.join(adjectives)}"
    if chance[2] % 6 == 1 and "texture" in said:
        front = f"{said['color']} {noun}" if "color" in said else noun
        return f"{an(front)} with {an(said['texture'])} pattern"
    return an(" ".join([*adjectives, noun]))


def describe(said: dict[str, str], chance: Sequence[int]) -> str:
    """Return one sentence from words for some attributes of a scene."""
    parts = []
    if any(attribute in said for attribute in ("color", "shape", "texture")):
        parts.append(_figure(said, chance))
    if "object" in said:
        parts.append(an(said["object"]))
    where = place(said["location"]) if "location" in said else ""
    if not parts:
        return prompt("location", said["location"], PROMPTS["location"][chance[3] % len(PROMPTS["location"])])
    middle = parts[0] if len(parts) == 1 else _JOINS[chance[3] % len(_JOINS)].format(a=parts[0], b=parts[1])
    opening = _OPENINGS[chance[4] % len(_OPENINGS)]
    if not where:
        return opening + middle
    if chance[5] % 5 == 0:
        return f"{where}, {middle}"
    return f"{opening}{middle}{',' if chance[5] % 2 else ''} {where}"


def caption(scene: Scene, key: tuple[int, ...]) -> tuple[str, tuple[str, ...]]:
    """Return a caption of a scene and the attributes that it mentions: all of them, or a random part."""
    chance = words(key, 24)
    count = (1, 2, 2, 3, 3, 4, 5, 5)[chance[0] % 8]
    order = sorted(range(5), key=lambda i: chance[1 + i])
    mentioned = tuple(ATTRIBUTES[i] for i in sorted(order[:count]))
    said = {}
    for i, attribute in enumerate(mentioned):
        seen = next(v for v in VALUES[attribute] if v.name == getattr(scene, attribute)).seen
        pick = chance[6 + i]
        said[attribute] = seen[0] if pick % 2 == 0 else seen[(pick >> 1) % len(seen)]
    return describe(said, chance[12:]), mentioned


def phrase_pool() -> list[str]:
    """Return the world's text pool for role discovery: short phrases, mostly of one concept each."""
    patterns = {
        "color": ("the color {w}", "{a} shape", "something {w}", "{w} colored"),
        "shape": ("{a}", "the shape of {a}", "something shaped like {a}", "a picture of {a}"),
        "texture": ("{a} texture", "{a} pattern", "something {w}", "{a} surface"),
        "object": ("{a}", "a photo of {a}", "a picture of {a}", "there is {a}"),
        "location": ("{p}", "a photo taken {p}", "a view of {t}", "a scene {p}"),
    }
    phrases = [
        prompt(attribute, word, pattern)
        for attribute in ATTRIBUTES
        for value in VALUES[attribute]
        for word in value.seen
        for pattern in patterns[attribute]
    ]
    return sorted(set(phrases))


def vocabulary_text() -> list[str]:
    """Return texts with every word that the tokenizer should know, including held-out words and templates."""
    texts = [word for values in VALUES.values() for value in values for word in (*value.seen, *value.held_out)]
    texts += phrase_pool()
    texts += [template.replace("{}", " ") for template in HELD_OUT_TEMPLATES] * 8
    texts += [f"{opening} {join}".format(a="a", b="a") for opening in _OPENINGS for join in _JOINS]
    texts += [f"{figure} that is something" for figure in _FIGURES] * 8
    return texts
