"""Class names and templates that could only give wrong predictions are refused."""

import pytest

import dear
from dear.data.prompts import class_list
from dear.errors import ClassListError
from helpers import build


@pytest.mark.parametrize(
    ("names", "template", "message"),
    [
        ([], "a {}", "The class list is empty: give at least one class name."),
        ("cat", "a {}", "The class list is the single word 'cat': give a list, such as ['cat']."),
        (["cat", " "], "a {}", "Class names must be words, but one of them is ' '."),
        (["cat", 3], "a {}", "Class names must be words, but one of them is 3."),
        (["b", "a", "b"], "a {}", "Class names appear twice: b; give each class one name of its own."),
        (
            ["cat"],
            "a photo",
            "The template 'a photo' must contain '{}' exactly once, in place of the class name, as in 'a photo of",
        ),
        ({"cat", "dog"}, "a {}", "The class list is a set: give a list in the order of the labels."),
        (3, "a {}", "The class list is a int: give a list"),
        (None, "a {}", "The class list is a NoneType: give a list"),
        (["cat", "\ud800"], "a {}", "Class names must be words, but"),
        (["cat", "dog <end_of_text>"], "a {}", "Class names must be words, but"),
        (["cat"], "{} {}", "The template '{} {}' must contain '{}' exactly once, in place of the class name, as in"),
    ],
)
def test_refused(names, template, message):
    with pytest.raises(ClassListError) as caught:
        class_list(names, template)
    assert str(caught.value).startswith(message)


def test_braces_in_names_are_only_text():
    assert class_list(["{x}", "50%"], "a {}.").prompts() == ["a {x}.", "a 50%."]


def test_any_iterable_of_names_will_do():
    import numpy as np

    for names in (("a", "b"), iter(["a", "b"]), np.array(["a", "b"])):
        assert class_list(names, "{}").names == ("a", "b")


def test_classes_that_the_text_tower_cannot_tell_apart(model):
    for names in (["Cat", "cat"], ["cat", "cat "]):
        with pytest.raises(ClassListError, match=r"'cat ?' are the same to the text tower"):
            model.for_classes(names).class_features()


def test_prompts_that_do_not_fit(model):
    fits = "word " * 74 + "end"
    model.for_classes([fits], "{}").class_features()  # start + 75 words + end = 77
    with pytest.raises(
        ClassListError, match=r"1 prompt.* do not fit the text tower's 77 tokens.*shorten the class name"
    ):
        model.for_classes(["cat", f"{fits} word"], "{}").class_features()


@pytest.mark.parametrize("name", dear.list_methods())
def test_no_classes_yet(clip, images, name):
    with pytest.raises(ClassListError, match=r"No classes are set: use model\.for_classes"):
        build(name, clip)(images)


def test_a_part_knows_its_whole_and_who_was_trained_on():
    whole = class_list(["a", "b", "c", "d"], "my {}", dataset="letters").among(["c", "x", "a"])
    assert whole.seen == (2, -1, 0, -1)
    part = whole.part(slice(1, 3))
    assert (part.names, part.seen, part.template, part.dataset) == (("b", "c"), (-1, 0), "my {}", "letters")
    assert part.whole is whole
    assert part.prompts("{}!") == ["b!", "c!"]
