"""Models of transformers as backbones: the towers' features are theirs, and methods train, save and load on them."""

import shutil

import pytest
import torch

import dear
from helpers import build, make_photos, move_parameters, plain_images
from tiny_foreign import WORDS, clip_model, siglip_model, write_words

NAMES = ["cat", "dog", "hot air balloon"]
MODELS = {
    "MetaCLIP 2": (lambda: clip_model("gelu", 2, kind="MetaClip2", vocab=len(WORDS)), "<s> $A </s>"),
    "SigLIP": (siglip_model, "$A </s>"),
}


@pytest.fixture(scope="module", params=MODELS)
def both(request, tmp_path_factory):
    """A model of transformers, and the same loaded here."""
    make, template = MODELS[request.param]
    folder, theirs = tmp_path_factory.mktemp("model"), make()
    theirs.save_pretrained(folder)
    write_words(folder, template=template)
    return theirs, dear.load_clip(f"local-dir:{folder}")


def difference(ours, theirs):
    theirs = theirs if torch.is_tensor(theirs) else theirs.pooler_output
    return float((ours - theirs).abs().max() / theirs.abs().max())


def test_the_towers_layer_by_layer(both):
    theirs, clip = both
    images, texts = plain_images(clip, 3), [f"a photo of a {name}" for name in NAMES]
    with torch.no_grad():
        of_images = theirs.get_image_features(pixel_values=images)
        of_texts = theirs.get_text_features(input_ids=clip.tokenizer(texts))
    assert difference(clip.frozen(images, ["feature"])["feature"], of_images) <= 1e-6
    assert difference(clip.text.encode(texts), of_texts) <= 1e-6
    assert clip.bias == float(getattr(theirs, "logit_bias", 0.0))
    low = dear.load_clip(clip.name, precision="bf16")
    assert difference(low.frozen(images, ["feature"])["feature"], of_images) <= 0.05


@pytest.mark.parametrize("method", ["dear", "coop", "maple"])
def test_adapters_are_saved_and_loaded(both, method, tmp_path):
    _, clip = both
    model, images = build(method, clip, NAMES), plain_images(clip, 2)
    move_parameters(model)
    loaded = dear.load(model.save_pretrained(tmp_path / "adapter"))
    with torch.no_grad():
        assert torch.equal(loaded(images).logits, model(images).logits)
        assert not torch.allclose(model(images).logits, build(method, clip, NAMES)(images).logits)


def test_a_run_is_trained_and_used(both, tmp_path):
    _, clip = both
    photos = make_photos(tmp_path / "photos", ["cat", "dog"], 4)
    run = tmp_path / "run"
    dear.fit(photos, clip=clip.name, mask="all_mixed", shots=2, epochs=2, out=run, device="cpu")
    assert dear.predict(run, [photos / "cat" / "0.png"], device="cpu")


def test_the_same_weights_in_another_folder_fit_and_others_do_not(both, tmp_path):
    _, clip = both
    model = build("dear", clip, NAMES)
    adapter = model.save_pretrained(tmp_path / "adapter")
    copy = shutil.copytree(clip.name.removeprefix("local-dir:"), tmp_path / "copy")
    dear.load(adapter, clip=dear.load_clip(f"local-dir:{copy}"))
    with pytest.raises(dear.errors.BackboneMismatchError):
        dear.load(adapter, clip=dear.load_clip(f"local-dir:{copy}", "random"))
