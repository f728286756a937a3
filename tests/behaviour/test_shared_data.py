"""The real thing, where it is on the machine: a small CLIP for photographs with LayerScale and no first norm."""

import torch
from PIL import Image

import dear
from helpers import move_parameters, varied_roles
from oracle import assert_matches, compare_with_reference


def test_photographs_through_a_real_clip(shared_data):
    clip = dear.load_clip(f"local-dir:{shared_data / 'clip-s14'}")
    assert (clip.geometry.vision_layers, clip.geometry.vision_heads, clip.geometry.embed_dim) == (12, 6, 384)
    names = ["gramophone", "strawberry", "airplanes"]
    folder = shared_data / "caltech-101" / "101_ObjectCategories"
    files = [file for name in names for file in sorted((folder / name).iterdir())[:3]]
    labels = torch.arange(3).repeat_interleave(3)
    images = torch.stack([clip.preprocess_eval(Image.open(file)) for file in files])
    model = dear.DeAR(clip, varied_roles(clip))
    move_parameters(model)
    assert_matches(compare_with_reference(model, images, labels, names, "a photo of a {}."))
    plain = model.for_classes(names).plain()
    with torch.no_grad():
        assert (plain(images).logits.argmax(1) == labels).sum() >= 6  # weak, but far from chance
