"""Five hundred made-up class names, as uneven as ImageNet's: "otter", "painted violin", "great white otter"."""

from __future__ import annotations

NOUN_LIST = """
otter kettle drum shark falcon lantern violin tractor pretzel beetle anchor balloon cabbage camel canoe castle cheetah
cradle dolphin fountain goose guitar hammer hamster harp helmet heron hyena iguana jacket jellyfish kite ladle lemon
leopard lizard lobster locket magpie mailbox mantis mitten monkey mosque mushroom oboe ostrich owl oxcart panda parrot
pelican penguin piano pineapple pitcher plow pomegranate pony porcupine quail rabbit racket robin rooster saddle
salamander sandal saxophone scorpion seal shovel skunk sloth snail sofa spatula spider squirrel stretcher submarine
swan syringe tapir teapot tiger toad trolley trumpet turtle umbrella vase vulture walrus wardrobe warthog whale wolf
wombat zebra
"""
MODIFIER_LIST = """
white black grey golden spotted striped painted folding wooden electric common giant little wild garden mountain river
desert toy steam hand racing rocking flying crested ringed hooded bearded double sliding
"""
PLACE_LIST = """
great northern southern eastern western african american siberian tibetan norwegian scottish australian mexican
"""

NOUNS, MODIFIERS, PLACES = (words.split() for words in (NOUN_LIST, MODIFIER_LIST, PLACE_LIST))
MOST = 500


def class_names(count: int) -> list[str]:
    """The first `count` names: of five, one is a single word, three are two words, one is three words or more."""
    if not 2 <= count <= MOST:
        raise SystemExit(f"There are names for 2 to {MOST} classes, not for {count}.")
    return [_name(*divmod(index, 5)) for index in range(count)]


def _name(group: int, kind: int) -> str:
    if kind == 0:
        return NOUNS[group]
    if kind < 4:
        index = 3 * group + kind - 1
        return f"{MODIFIERS[(index + index // len(NOUNS)) % len(MODIFIERS)]} {NOUNS[index % len(NOUNS)]}"
    place, modifier, noun = PLACES[group % len(PLACES)], MODIFIERS[3 * group % len(MODIFIERS)], NOUNS[7 * group % 100]
    if group % 10 == 4:
        return f"soft-coated {place} {modifier} {noun}, also called {NOUNS[group]}"
    return f"{place} {modifier} {noun}"
