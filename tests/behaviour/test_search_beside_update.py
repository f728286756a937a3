"""Searches while their index is brought up to date: each answer is exactly that of one state of the index.

The scores of two states differ in their last bits, although the features are the same bits: the row of an image that
was encoded again is a new one at the end, and a product of a matrix and a vector rounds by the row's place.
"""

import os
import threading

import torch

import dear
from dear.retrieval.index import read_index
from helpers import make_photos

UPDATES, NEAR = 8, 1e-6


def test_each_search_beside_updates_is_exactly_that_of_one_state(model, tmp_path):
    photos, out = make_photos(tmp_path / "photos", ["ant", "bee", "cow"], 4), tmp_path / "index"
    files, states, answers, over = sorted(photos.rglob("*.png")), [], [], threading.Event()

    def update():
        dear.index_images(photos, out, clip=model.clip, kinds=["cls"], workers=0)

    def search():
        return [(hit.path.name, hit.path.parent.name, hit.score) for hit in found(model.clip, files[5], out)]

    def searching():
        while not over.is_set():
            answers.append(search())

    update()
    states.append((search(), rows(out)))
    thread = threading.Thread(target=searching)
    thread.start()
    try:
        for number in range(UPDATES):
            os.utime(files[number])
            update()
            states.append((search(), rows(out)))
    finally:
        over.set()
        thread.join()
    assert len(answers) > UPDATES
    exact = [answer for answer, _ in states]
    assert all(answer in exact for answer in answers)
    assert all(one == states[0][1] for _, one in states), "the features of each photo are the same bits"
    scores = [{name[:2]: name[2] for name in answer} for answer in exact]
    assert max(abs(one[name] - scores[0][name]) for one in scores for name in scores[0]) < NEAR


def found(clip, photo, out):
    return dear.search(clip, photo, index=out, by="cls", top_k=12)


def rows(out):
    """The features of each photo as bytes."""
    index = read_index(out)
    features = index.features("cls").numpy()
    return {stamp.path: features[row].tobytes() for row, stamp in enumerate(index.images)}


def test_a_row_that_moves_can_round_in_another_way():
    """Never by more than the last bits; how often depends on the machine."""
    chance = torch.Generator().manual_seed(0)
    for length in (16, 512):
        rows = torch.nn.functional.normalize(torch.randn(12, length, generator=chance), dim=1).half().float()
        query = torch.nn.functional.normalize(torch.randn(length, generator=chance), dim=0)
        moved = torch.cat([rows, rows[:1]])
        assert abs(float((moved @ query)[12] - (rows @ query)[0])) < NEAR / 10
