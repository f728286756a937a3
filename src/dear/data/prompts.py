"""`ClassList`: class names, and the template or descriptions that turn each into prompts."""

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
    """Class names with their template and descriptions. Created by `class_list`."""

    names: tuple[str, ...]
    template: str
    dataset: str | None = None
    """Name of the data set, for methods that have prompts or settings per data set."""
    descriptions: Mapping[str, tuple[str, ...]] | None = None
    """Sentences per class; None if there are none."""
    seen: tuple[int, ...] | None = None
    """Index of each class among the trained classes, -1 if it was not trained; set in the class list of a `Model`."""
    whole: ClassList | None = None
    """The complete list that this one is a part of."""
    at: slice = field(default_factory=lambda: slice(None))
    """Which part."""

    def __repr__(self) -> str:
        """The first names instead of all of them."""
        few = ", ".join(self.names[:3]) + (" …" if len(self.names) > 3 else "")
        return one_line(f"ClassList({len(self.names)} classes: {few}; {self.template!r})")

    def prompts(self, template: str | None = None) -> list[str]:
        """One prompt per class, with the list's template or another one."""
        return [(template or self.template).replace("{}", name) for name in self.names]

    def sentences(self) -> list[tuple[str, ...]]:
        """The sentences about each class, or its prompt if there are none."""
        sentences = self.descriptions or {}
        return [
            tuple(sentences.get(name, ())) or (prompt,) for name, prompt in zip(self.names, self.prompts(), strict=True)
        ]

    def with_descriptions(self, descriptions: Mapping[str, Sequence[str]]) -> ClassList:
        """The same list with descriptions of its classes; those of other classes are ignored."""
        known = {name: tuple(descriptions[name]) for name in self.names if name in descriptions}
        return replace(self, descriptions=known or None)

    def part(self, at: slice) -> ClassList:
        """A part of the list, which remembers the complete list."""
        seen = None if self.seen is None else self.seen[at]
        return replace(self, names=self.names[at], seen=seen, whole=self, at=at)

    def among(self, trained: Sequence[str]) -> ClassList:
        """The same list with `seen` set: which of its classes were trained on."""
        index = {name: number for number, name in enumerate(trained)}
        return replace(self, seen=tuple(index.get(name, -1) for name in self.names))


def class_list(
    names: Sequence[str],
    template: str,
    *,
    dataset: str | None = None,
    descriptions: Mapping[str, Sequence[str]] | None = None,
) -> ClassList:
    """Make a class list; names or templates that could only give wrong predictions raise `ClassListError`.

    Entries of `descriptions` for other classes are ignored.
    """
    if isinstance(names, str):
        raise ClassListError(f"The class list is the single word {names!r}: give a list, such as [{names!r}].")
    if isinstance(names, set | frozenset) or not isinstance(names, Iterable):
        raise ClassListError(f"The class list is a {type(names).__name__}: give a list in the order of the labels.")
    listed = list(names)
    if not listed:
        raise ClassListError("The class list is empty: give at least one class name.")
    if bad := [name for name in listed if not is_wording(name)]:
        raise ClassListError(f"Class names must be words, but one of them is {bad[0]!r}.")
    if twice := sorted(name for name, times in Counter(listed).items() if times > 1):
        raise ClassListError(f"Class names appear twice: {', '.join(twice)}; give each class one name of its own.")
    if not is_wording(template) or template.count("{}") != 1:
        raise ClassListError(
            f"The template {template!r} must contain '{{}}' exactly once, in place of the class name, "
            f"as in {DEFAULT_TEMPLATE!r}."
        )
    return ClassList(tuple(str(name) for name in listed), template, dataset).with_descriptions(descriptions or {})


def is_wording(text: object) -> bool:
    """Whether a value is text that a tokenizer can read as words."""
    if not isinstance(text, str) or not text.strip() or any(token in text.lower() for token in SPECIAL_TOKENS):
        return False
    return all(not 0xD800 <= ord(letter) < 0xE000 for letter in text)
