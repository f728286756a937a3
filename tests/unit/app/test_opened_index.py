"""The search of the app finds what made its index: the run, its CLIP, or a CLIP that the index names."""

import dear
from dear.options.commands import App
from dear.retrieval.index import read_index
from dear.workflows.app import _search
from helpers import build, make_photos


def test_an_index_of_a_clip_with_more_layers_than_the_runs(clip, roles, tiny_clips, model, tmp_path):
    photos = make_photos(tmp_path / "photos", ["ant"], 2)
    made = dear.index_images(photos, tmp_path / "index", clip=clip, roles=roles)
    index = read_index(made.out)
    assert _search(index, model, App()).encoder.clip is clip
    smaller = tiny_clips["shallow"]
    other = _search(index, build("zero_shot", smaller), App())
    assert other.encoder.mark == index.model_sha256
    assert other.encoder.clip is not smaller
