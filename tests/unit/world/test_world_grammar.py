"""Captions, prompts, phrases and the tokenizer."""

import re

from dear.world.bpe import train_merges, vocabulary_size
from dear.world.catalog import DATASETS
from dear.world.clip import CONTEXT, MERGES, load_tokenizer, write_tokenizer
from dear.world.grammar import (
    HELD_OUT_TEMPLATES,
    PROMPTS,
    an,
    caption,
    phrase_pool,
    random_prompt,
    vocabulary_text,
)
from dear.world.samples import draw_scene
from dear.world.vocabulary import ATTRIBUTES, NAMES, VALUES


def captions(count):
    scenes = [draw_scene((21, i)) for i in range(count)]
    return [(scene, *caption(scene, (22, i))) for i, scene in enumerate(scenes)]


def test_a_caption_speaks_of_what_it_mentions_and_of_nothing_else():
    for scene, text, mentioned in captions(400):
        words = set(re.findall("[a-z]+", text))
        for attribute in ATTRIBUTES:
            value = next(v for v in VALUES[attribute] if v.name == getattr(scene, attribute))
            said = any(set(word.split()) <= words for word in value.seen)
            assert said or attribute not in mentioned, (text, attribute)


def test_captions_vary():
    drawn = captions(600)
    texts = [text for _, text, _ in drawn]
    assert len(set(texts)) > 590
    assert {len(mentioned) for _, _, mentioned in drawn} == {1, 2, 3, 4, 5}
    scene = drawn[0][0]
    assert len({caption(scene, (5, i))[0] for i in range(50)}) > 40
    assert caption(scene, (5, 1)) == caption(scene, (5, 1))


def test_held_out_words_and_templates_are_never_used():
    texts = [text for _, text, _ in captions(2000)]
    texts += [random_prompt(a, v, (1, i, v)) for a in ATTRIBUTES for v in range(len(NAMES[a])) for i in range(10)]
    joined = "\n".join(texts).replace("plus sign", "")  # a seen name that contains a held-out one
    for values in VALUES.values():
        for value in values:
            for word in value.held_out:
                assert not re.search(rf"\b{word}\b", joined), word
    used = {template for templates in PROMPTS.values() for template in templates}
    assert not used & set(HELD_OUT_TEMPLATES)
    for word in ("swatch", "bloom", "emblem", "snapshot", "scenery", "among other things"):
        assert word not in joined
    assert {one.template for one in DATASETS.values()} <= set(HELD_OUT_TEMPLATES)


def test_phrase_pool_is_unique_english_over_all_attributes():
    pool = phrase_pool()
    assert 300 <= len(pool) <= 1000
    assert len(set(pool)) == len(pool)
    assert pool == sorted(pool)
    for phrase in ("the color crimson", "a photo of a key", "a striped texture", "at sea", "the shape of an arrow"):
        assert phrase in pool
    assert not any(re.search(r"\ba [aeiou]", phrase) for phrase in pool)
    assert an("apple") == "an apple"


def test_merges_are_learnt_by_frequency():
    assert train_merges(["aab aab ab"], 1) == [("a", "b</w>")]
    assert train_merges(["aab aab ab"], 9) == [("a", "b</w>"), ("a", "ab</w>")]
    assert train_merges(vocabulary_text(), 40) == train_merges(vocabulary_text(), 40)


def test_tokenizer_round_trip_and_length(tmp_path):
    write_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == vocabulary_size(MERGES)
    texts = [text for _, text, _ in captions(200)] + phrase_pool()[::3]
    texts += [one.template.format(c.name) for one in DATASETS.values() for c in one.classes]
    for text in texts:
        tokens = tokenizer.encode(text)
        assert len(tokens) + 2 <= CONTEXT, text
        assert re.sub(r"\W", "", tokenizer.decode(tokens)) == re.sub(r"\W", "", text)
    assert int(tokenizer(texts[:1]).max()) == tokenizer.eot_token_id == tokenizer.vocab_size - 1
