"""Class names and the template that turns each into a prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dear.config import one_line
from dear.errors import ClassListError

DEFAULT_TEMPLATE = "a photo of a {}."
SPECIAL_TOKENS = ("<start_of_text>", "<end_of_text>")


@dataclass(frozen=True)
class ClassList:
    """Class names and what turns each into prompts. Made by `class_list`."""

    names: tuple[str, ...]
    template: str
    dataset: str | None = None
    """Name of the data set that the classes are of, for methods with words or settings of its own."""
    descriptions: Mapping[str, tuple[str, ...]] | None = None
    """Sentences per class, if some were given."""
    seen: tuple[int, ...] | None = None
    """Place of each class in the list that was trained on, -1 if it is not in it; a model's list always knows."""
    whole: ClassList | None = None
    """The list that this one is a part of."""
    at: slice = field(default_factory=lambda: slice(None))
    """Which part."""

    def __repr__(self) -> str:
        """The first names instead of all."""
        few = ", ".join(self.names[:3]) + (" …" if len(self.names) > 3 else "")
        return one_line(f"ClassList({len(self.names)} classes: {few}; {self.template!r})")

    def prompts(self, template: str | None = None) -> list[str]:
        """One prompt per class, by the list's template or another one."""
        return [(template or self.template).replace("{}", name) for name in self.names]

    def sentences(self) -> list[tuple[str, ...]]:
        """What each class is described by: its sentences, or its one prompt."""
        told = self.descriptions or {}
        return [tuple(told.get(name, ())) or (prompt,) for name, prompt in zip(self.names, self.prompts(), strict=True)]

    def with_descriptions(self, descriptions: Mapping[str, Sequence[str]]) -> ClassList:
        """The same list with sentences about its classes; those about others are left out."""
        told = {name: tuple(descriptions[name]) for name in self.names if name in descriptions}
        return replace(self, descriptions=told or None)

    def part(self, at: slice) -> ClassList:
        """Some of the classes; what depends on the whole list is taken from that."""
        seen = None if self.seen is None else self.seen[at]
        return replace(self, names=self.names[at], seen=seen, whole=self, at=at)

    def among(self, trained: Sequence[str]) -> ClassList:
        """The same list, knowing which of its classes were trained on."""
        places = {name: place for place, name in enumerate(trained)}
        return replace(self, seen=tuple(places.get(name, -1) for name in self.names))


def class_list(
    names: Sequence[str],
    template: str,
    *,
    dataset: str | None = None,
    descriptions: Mapping[str, Sequence[str]] | None = None,
) -> ClassList:
    """Check names and template: what could only give wrong predictions is refused.

    Of `descriptions` those of the listed classes are kept.
    """
    if isinstance(names, str):
        raise ClassListError(f"The class list is the single word {names!r}: give a list, such as [{names!r}].")
    if isinstance(names, set | frozenset) or not isinstance(names, Iterable):
        raise ClassListError(
            f"The class list is a {type(names).__name__}: give a list, whose order is the labels' order."
        )
    listed = list(names)
    if not listed:
        raise ClassListError("The class list is empty: give at least one class name.")
    if bad := [name for name in listed if not is_wording(name)]:
        raise ClassListError(f"Class names must be words, but {bad[0]!r} is among them.")
    if twice := sorted(name for name, times in Counter(listed).items() if times > 1):
        raise ClassListError(f"Class names appear twice: {', '.join(twice)}; give each class one name of its own.")
    if not is_wording(template) or template.count("{}") != 1:
        raise ClassListError(
            f"The template {template!r} must hold '{{}}' exactly once, where the class name goes, "
            f"as in {DEFAULT_TEMPLATE!r}."
        )
    return ClassList(tuple(str(name) for name in listed), template, dataset).with_descriptions(descriptions or {})


def is_wording(text: object) -> bool:
    """Whether something is text that a tokenizer can read as words."""
    if not isinstance(text, str) or not text.strip() or any(token in text.lower() for token in SPECIAL_TOKENS):
        return False
    return all(not 0xD800 <= ord(letter) < 0xE000 for letter in text)
