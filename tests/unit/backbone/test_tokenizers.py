"""Words are found in prompts of any tokenizer: with or without start and end tokens, or a class token at the end."""

import json

import pytest
import torch
from huggingface_hub import constants

import dear
from dear.backbone.hub import CONFIG_FILE
from dear.backbone.text import TextTower
from dear.backbone.tokenizer import read_tokenizer
from dear.errors import BackboneError, ClassListError
from helpers import build, plain_images
from tiny_towers import IMAGES, TEXTS, tiny_clip

PAD, START, END, CLASS = 0, 1, 2, 3


class Words:
    """A tokenizer with one token per word (or per letter), like those of transformers."""

    def __init__(self, *, start=False, end=False, class_last=False, letters=False, pad=PAD):
        self.start, self.end, self.class_last, self.letters, self.pad = start, end, class_last, letters, pad

    def __call__(self, texts, context_length=16):
        found = torch.full((len(texts), context_length), self.pad)
        for row, text in zip(found, texts, strict=True):
            pieces = list(text.replace(" ", "")) if self.letters else text.replace(".", "").split()
            words = [10 + sum(map(ord, piece)) % 200 for piece in pieces]
            room = context_length - self.start - self.end - self.class_last
            ids = [START] * self.start + words[:room] + [END] * self.end
            row[: len(ids)] = torch.tensor(ids)
            if self.class_last:
                row[-1] = CLASS
        return found


KINDS = {
    "siglip": ({}, 0),
    "siglip, padded with its end token": ({"end": True, "pad": END}, 0),
    "siglip 2": ({"end": True}, 0),
    "clipa": ({"start": True}, 1),
    "bert": ({"start": True, "end": True}, 1),
    "openvision": ({"start": True, "end": True, "class_last": True}, 1),
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return tiny_clip(tmp_path_factory.mktemp("clip"), "siglip", "siglip")


def tower(clip, **how):
    return TextTower(clip.text._text, Words(**how), pool="last", eos_id=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_place_of_words(clip, kind):
    how, first = KINDS[kind]
    text = tower(clip, **how)
    assert text.first == first
    assert text.place == "X"
    assert [text.count(words) for words in ("cat", "hot air balloon", "a photo of a", "")] == [1, 3, 4, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_does_not_fit_is_refused(clip, kind):
    text = tower(clip, **KINDS[kind][0])
    specials = sum(KINDS[kind][0].get(name, False) for name in ("start", "end", "class_last"))
    room = text.context - (0 if "padded" in kind else specials)
    fits = " ".join(["word"] * (room - ("padded" in kind)))
    assert text.tokenize([fits]).ids_CT.shape[1] == text.context
    with pytest.raises(ClassListError, match="do not fit the text tower's 32 tokens"):
        text.tokenize([fits + " more and more"])
    assert text.tokenize([fits + " more and more"], cut=True).ids_CT.shape == (1, text.context)
    assert text.excess([fits + " more and"]) >= 1
    assert text.excess(["word"]) < 0


def test_words_that_are_never_one_token_cannot_be_learned(clip, monkeypatch):
    monkeypatch.setattr("dear.backbone.text.PLACES", ("the", "photo"))
    with pytest.raises(BackboneError, match="divides every word into several tokens"):
        _ = tower(clip, letters=True).place


@pytest.mark.parametrize("kind", KINDS)
def test_learned_words_are_the_words_they_start_from(clip, kind, monkeypatch):
    """CoOp before training gives the features of its start prompt, wherever words begin."""
    monkeypatch.setattr(clip, "text", tower(clip, **KINDS[kind][0]))
    names = ["cat", "dog", "hot air balloon"]
    model = build("coop", clip, names)
    with torch.no_grad():
        found = model(plain_images(clip, 2)).classes
        plain = clip.text.stock(clip.text._tokenizer([f"a photo of a {name}." for name in names], 32))
    assert torch.allclose(found, torch.nn.functional.normalize(plain, dim=-1), atol=1e-6)
    with torch.no_grad():
        model.method.ctx += torch.randn(model.method.ctx.shape, generator=torch.Generator().manual_seed(0))
        assert not torch.allclose(model(plain_images(clip, 2)).classes, found, atol=1e-3)


def save_words(folder):
    """Write a tokenizer of transformers with one token per word into a folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "photo", "of", "X", "cat", "dog", "hot", "air", "balloon", "."]
    plain = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", sep_token="[SEP]", cls_token="[CLS]"
    )
    fast.save_pretrained(folder)


@pytest.mark.parametrize("pooler", ["mean_pooler", "cls_last_hidden_state_pooler"])
def test_a_text_tower_of_transformers(tmp_path, pooler, monkeypatch):
    """Features by ids and by embeddings, without padding; learned words; no layers."""
    from transformers import BertConfig

    monkeypatch.setattr("dear.backbone.limits.HUB_NAMES", ())  # no hub here, so its models have paths
    encoder = tmp_path / "encoder"
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}
    BertConfig(vocab_size=40, max_position_embeddings=40, **sizes).save_pretrained(encoder)
    save_words(tmp_path / "clip")  # open_clip looks for a tokenizer in the folder of a CLIP
    text = {"hf_model_name": str(encoder), "hf_tokenizer_name": str(encoder), "context_length": 20}
    text |= {"hf_proj_type": "linear", "hf_pooler_type": pooler}
    monkeypatch.setitem(TEXTS, "bert", text)
    clip = tiny_clip(tmp_path / "clip", "siglip", "bert")
    assert clip.can == {"features", "words", "image layers"}
    prompts = ["a photo of a cat.", "a photo of a hot air balloon.", "dog"]
    with torch.no_grad():
        stock = clip.text.stock(clip.tokenizer(prompts))
        assert torch.allclose(clip.text.encode(prompts), stock, atol=1e-6)
    model = build("coop", clip, ["cat", "dog", "hot air balloon"])
    with torch.no_grad():
        plain_classes = clip.encode_text([f"a photo of a {name}." for name in ("cat", "dog", "hot air balloon")])
        assert torch.allclose(model(plain_images(clip, 2)).classes, plain_classes, atol=1e-6)
    with pytest.raises(BackboneError, match="dear needs the layers of the text tower, and"):
        build("dear", clip)
    assert isinstance(build("vpt", clip, ["cat", "dog"]), dear.Model)


@pytest.fixture
def repository(hub, tmp_path, monkeypatch):
    """A CLIP on the hub whose tokenizer is in another repository; its function changes the configuration."""
    monkeypatch.setattr("transformers.utils.hub._hf_api", None)  # of an earlier hub
    save_words(tmp_path / "words")
    hub.add("some/words", {path.name: path.read_bytes() for path in (tmp_path / "words").iterdir()})
    text = {**TEXTS["siglip"], "hf_tokenizer_name": "some/words"}
    text |= {"tokenizer_kwargs": {"strip_sep_token": True, "clean": "lower"}}

    def push(**changes):
        config = {"embed_dim": 64, "custom_text": True, "vision_cfg": IMAGES["siglip"], "text_cfg": {**text, **changes}}
        hub.add("some/clip", {CONFIG_FILE: json.dumps({"model_cfg": config}).encode()})

    push()
    return push


def test_a_tokenizer_of_the_hub_is_open_clips(repository, hub):
    import open_clip

    clip = dear.load_clip("hf-hub:some/clip", "random")
    prompts = ["A photo  of a CAT.", "dog"]
    expected = open_clip.get_tokenizer("hf-hub:some/clip", trust_remote_code=False)(prompts)
    assert clip.tokenizer(prompts).equal(expected)
    assert expected.tolist() == [[2, 4, 5, 6, 4, 8, 13, *[0] * 25], [2, 9, *[0] * 30]]


def test_a_tokenizer_of_the_hub_has_the_configuration_that_was_checked(repository, hub, monkeypatch):
    """It was read a second time, from the newest commit, in every load."""
    dear.load_clip("hf-hub:some/clip", "random")
    repository(context_length=16, tokenizer_kwargs={"trust_remote_code": True})
    hub.requests.clear()
    clip = dear.load_clip("hf-hub:some/clip", "random")
    assert clip.tokenizer(["cat"]).shape == (1, 32)
    assert not hub.seen("some/clip")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert dear.load_clip("hf-hub:some/clip", "random").tokenizer(["cat"]).equal(clip.tokenizer(["cat"]))


def test_names_of_open_clip_have_its_tokenizers(monkeypatch):
    """The arguments that `open_clip.get_tokenizer` passes to transformers, for every name that it knows."""
    import open_clip
    import transformers

    made = []
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *a, **k: made.append((a, k)) or object())
    names = [
        name
        for name in open_clip.list_models()
        if open_clip.get_model_config(name)["text_cfg"].get("hf_tokenizer_name")
    ]
    assert names
    for name in names:
        theirs = open_clip.get_tokenizer(name, trust_remote_code=False)
        ours = read_tokenizer(name, None, open_clip.get_model_config(name)["text_cfg"], 0)
        assert made[-1] == made[-2]
        for one in (theirs, ours):
            del one.tokenizer
            one.clean_fn = one.clean_fn.__name__
        assert vars(ours) == vars(theirs)
