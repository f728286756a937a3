"""The pool for photographs is what it says it is, and other pools are read or refused in one clear sentence."""

import hashlib
import re
from dataclasses import FrozenInstanceError

import pytest

from dear.errors import DearError
from dear.roles.corpus import (
    LONGEST_PHRASE,
    PoolError,
    TextPool,
    load_pool,
    photograph_phrases,
    photograph_pool,
    with_article,
)
from dear.roles.rolemap import CORE_ATTRIBUTES

OTHER_CONCEPTS = ("animal", "human", "text", "number", "style", "emotion", "action")
GOLDEN_SHA256 = "cc5cf0ad64983e04975d0f4d432a1e40310cfeb87f2e21c2afb12289623c0570"


def refusal(source) -> str:
    with pytest.raises(PoolError) as caught:
        load_pool(source)
    message = str(caught.value)
    assert isinstance(caught.value, DearError)
    assert "\n" not in message
    return message


def write(tmp_path, content: bytes, name="pool.txt"):
    file = tmp_path / name
    file.write_bytes(content)
    return file


def test_every_concept_has_its_share():
    phrases = photograph_phrases()
    assert set(phrases) == {*CORE_ATTRIBUTES, *OTHER_CONCEPTS}
    for concept, lines in phrases.items():
        assert len(lines) >= (300 if concept in CORE_ATTRIBUTES else 150), concept
    assert sum(map(len, phrases.values())) == len(photograph_pool().phrases) >= 3200


def test_no_phrase_twice():
    lowered = [phrase.lower() for phrase in photograph_pool().phrases]
    assert len(set(lowered)) == len(lowered)


def test_same_pool_every_time():
    pool = photograph_pool()
    assert pool == photograph_pool()
    assert pool.name == "photographs"
    assert pool.sha256 == hashlib.sha256("\n".join(pool.phrases).encode()).hexdigest() == GOLDEN_SHA256


def test_phrases_are_short_and_well_formed():
    for phrase in photograph_pool().phrases:
        assert 2 <= len(phrase.split()) <= 9, phrase
        assert phrase == " ".join(phrase.split()), phrase
        assert phrase[0].isupper(), phrase
        assert re.fullmatch(r"[A-Za-zá0-9 '\"-]+", phrase), phrase


def test_articles_follow_the_sound():
    like_you = {"unicycle", "university", "ukulele", "uniform"}
    silent_h = {"hour", "hourglass"}
    found = {"a": 0, "an": 0}
    for phrase in photograph_pool().phrases:
        for article, word in re.findall(r"\b(an?) \"?([\w-]+)", phrase, re.IGNORECASE):
            if word == "X-ray" or phrase.lower().endswith(("letter a", "labeled a")):
                continue
            vowel = (word[0].lower() in "aeiou" and word not in like_you) or word in silent_h
            assert article.lower() == ("an" if vowel else "a"), phrase
            found[article.lower()] += 1
    assert min(found.values()) > 100


@pytest.mark.parametrize(
    "expected",
    [
        *("a cat", "an owl", "an Art Deco poster", "an hourglass", "an honest face", "an heirloom", "an X-ray"),
        *(
            "a unicycle",
            "a ukulele",
            "a used car",
            "a utensil",
            "a U-turn",
            "a European city",
            "a ewe",
            "a one-way sign",
        ),
        *("an umbrella", "an uneven floor", "an unimportant detail", "an unidentified bird", "an onion", "a house"),
    ],
)
def test_article(expected):
    assert with_article(expected.split(" ", 1)[1]) == expected


def test_little_overlap_with_the_published_pool(shared_data):
    file = shared_data / "text-pool.txt"
    published = {phrase.lower() for phrase in load_pool(file).phrases}
    ours = photograph_pool().phrases
    assert sum(phrase.lower() in published for phrase in ours) < 0.02 * len(ours)


def test_ours_by_name():
    assert load_pool("photographs") == photograph_pool()


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_file_is_tidied(tmp_path, newline, mark):
    lines = ["  A red door ", "", "Ein grünes Dach\t", "A red door", "   ", "a red door", "日本の写真", "A red door"]
    pool = load_pool(write(tmp_path, (mark + newline.join(lines)).encode()))
    assert pool == TextPool("pool.txt", ("A red door", "Ein grünes Dach", "a red door", "日本の写真"), 2)


def test_only_line_breaks_break_lines(tmp_path):
    assert load_pool(write(tmp_path, "One\u2028line\nTwo\x0cline\n".encode())).phrases == (
        "One\u2028line",
        "Two\x0cline",
    )


def test_path_as_string_and_same_hash_as_ours(tmp_path):
    ours = photograph_pool()
    file = write(tmp_path, ("\n".join(ours.phrases) + "\n").encode())
    copy = load_pool(str(file))
    assert (copy.phrases, copy.sha256, copy.duplicates_dropped) == (ours.phrases, ours.sha256, 0)


def test_hash_depends_on_phrases_and_order_only():
    assert TextPool("x", ("a", "b")).sha256 == TextPool("y", ("a", "b"), 3).sha256
    assert TextPool("x", ("a", "b")).sha256 != TextPool("x", ("b", "a")).sha256


def test_pool_is_frozen():
    with pytest.raises(FrozenInstanceError):
        photograph_pool().name = "other"


def test_missing_file_names_its_neighbours(tmp_path):
    write(tmp_path, b"A\nB\n", "descriptions.txt")
    message = refusal(tmp_path / "description.txt")
    assert "There is no text pool" in message
    assert message.endswith("Did you mean 'descriptions.txt'?")


def test_misspelt_name():
    assert refusal("photograph").endswith("Did you mean 'photographs'?")


@pytest.mark.parametrize("source", ["", "no/such/folder/pool.txt", "nul\0byte"])
def test_nothing_there(source):
    assert "There is no text pool" in refusal(source)


def test_folder_is_no_pool(tmp_path):
    assert "There is no text pool" in refusal(tmp_path)


def test_unreadable_file(tmp_path, monkeypatch):
    def refuse(path, **limits):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("dear.roles.corpus.read_regular", refuse)
    assert "cannot be read (Permission denied)" in refusal(write(tmp_path, b"A cat\nA dog\n"))


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_not_utf8_names_the_line(tmp_path, newline):
    content = newline.join([b"A cat", b"A dog", "A café".encode("latin-1"), b"A cow"])
    assert refusal(write(tmp_path, content)).startswith("Line 3 of ")


def test_utf16_is_refused(tmp_path):
    assert "Line 1 of" in refusal(write(tmp_path, "A cat\nA dog\n".encode("utf-16")))


@pytest.mark.parametrize("content", [b"", b"\n\n", b"  \n\t\n", b"\xef\xbb\xbf"])
def test_empty(tmp_path, content):
    assert "is empty" in refusal(write(tmp_path, content))


@pytest.mark.parametrize("content", [b"A cat", b"A cat\nA cat\n"])
def test_one_phrase_is_too_few(tmp_path, content):
    assert refusal(write(tmp_path, content)).startswith("TextSpan needs at least 2 different phrases")


def test_long_lines(tmp_path):
    longest = "x" * LONGEST_PHRASE
    assert len(load_pool(write(tmp_path, f"A cat\n {longest} \n".encode())).phrases) == 2
    message = refusal(write(tmp_path, f"A cat\n\n{longest}x\n".encode()))
    assert message.startswith("Line 3 of ")
    assert f"at most {LONGEST_PHRASE}" in message
