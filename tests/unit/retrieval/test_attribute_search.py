"""Features of heads without training, and search by them: exact sums, attributes told apart, parts left out."""

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import dear
from dear.backbone.head_contributions import contributions, group_terms
from dear.errors import ConfigError, DataError, DearWarning, ImageError, InputError, OverwriteError
from dear.paper.measures import precision_at
from dear.reports.sheet import write_found
from dear.retrieval import search as searching
from dear.retrieval.encoder import encoder_of, head_encoder
from dear.retrieval.index import Writer, read_index
from dear.retrieval.search import Ask, find, most_alike, proposed, restricted, row_cosines, top
from dear.retrieval.segments import Stamp
from dear.retrieval.update import update_index
from dear.roles.groups import groups_of
from dear.workflows.report_data import distinct
from dear.world.render import Look, compose
from dear.world.samples import draw_scene, held_out_image, truth
from dear.world.vocabulary import ATTRIBUTES
from helpers import make_photos, varied_roles

SCENES = 120


@pytest.fixture(scope="module")
def world():
    return dear.load_clip("world")


def scene(words, key):
    return Image.fromarray(compose(words, key, Look(held_out_places=True)).image)


@pytest.fixture(scope="module")
def scenes(world, tmp_path_factory):
    """An index of drawn scenes, among them a pair that differs in its color alone, and what they show."""
    folder = tmp_path_factory.mktemp("scenes")
    shown = {}
    for i in range(SCENES):
        pixels, words = held_out_image(i)
        Image.fromarray(pixels).save(folder / f"{i:03d}.png")
        shown[f"{i:03d}.png"] = words
    red = draw_scene((7, 0))._replace(color="red")
    for color in ("red", "blue"):
        scene(red._replace(color=color), (7, 1)).save(folder / f"{color}.png")
        shown[f"{color}.png"] = red._replace(color=color)
    encoder = head_encoder(world)
    index, _ = update_index(encoder, folder, tmp_path_factory.mktemp("index"), workers=0)
    return encoder, index, shown


# Features.


@pytest.mark.parametrize("name", ["plain", "shallow", "world"])
def test_sums_of_heads_are_the_sums_of_their_terms(tiny_clips, world, name):
    clip = world if name == "world" else tiny_clips[name]
    size = clip.geometry.image_size
    rows = clip.vision.norm_in(clip.vision.embed(torch.randn(3, 3, size, size)))
    groups = list(groups_of(varied_roles(clip)).values())
    expected, found = contributions(clip.vision, rows).grouped(groups), group_terms(clip.vision, rows, groups)
    assert torch.allclose(found, expected, atol=1e-6)
    assert not torch.allclose(found, expected[:, [1, 0, *range(2, len(groups) + 1)]], atol=1e-3)  # it could fail


@pytest.mark.parametrize("by", ["concept", "role", "head", {"mine": ["3.1", (4, 0)], "other": ["head:4.1"]}])
def test_parts_sum_to_the_embedding(clip, roles, images, by):
    parts = dear.attribute_features(clip, roles, images, by=by)
    assert list(parts)[-1] == "rest"
    assert torch.allclose(sum(parts.values()), clip.encode_image(images), atol=1e-6)


def test_features_of_the_shipped_map_of_vit_b_16():
    """Every head of the map is in one group, the core attributes first."""
    groups = groups_of(dear.RoleMap.load("vit-b-16"))
    assert list(groups)[:5] == ["color", "shape", "texture", "object", "location"]
    assert sum(map(len, groups.values())) == 48


def test_features_are_made_of_files_and_pictures(clip, roles, tmp_path):
    photos = make_photos(tmp_path, ["ant"], 3)
    paths = sorted(photos.rglob("*.png"))
    by_path = dear.attribute_features(clip, roles, paths, batch_size=2)
    batch = torch.stack([clip.preprocess_eval(Image.open(path)) for path in paths])
    by_tensor = dear.attribute_features(clip, roles, batch)
    by_image = dear.attribute_features(clip, roles, [Image.open(path) for path in paths])
    for name in by_tensor:
        assert torch.allclose(by_path[name], by_tensor[name], atol=1e-6)
        assert torch.allclose(by_image[name], by_tensor[name], atol=1e-6)
    (tmp_path / "broken.png").write_bytes(b"x")
    for wrong, error in (
        ({"images": tmp_path / "broken.png"}, ImageError),
        ({"images": 3}, InputError),
        ({"images": []}, ConfigError),
        ({"clip": 3}, ConfigError),
        ({"by": "colour"}, ConfigError),
        ({"by": {"a": ["4.0"], "b": ["4.0"]}}, ConfigError),
        ({"by": {"a": ["99.0"]}}, ConfigError),
        ({"by": {"a": []}}, ConfigError),
        ({"by": {"a": ["x"]}}, ConfigError),
        ({"by": {}}, ConfigError),
        ({"batch_size": 0}, ConfigError),
    ):
        with pytest.raises(error) as said:
            dear.attribute_features(**{"clip": clip, "roles": roles, "images": paths, **wrong})
        assert "\n" not in str(said.value)


def test_each_attribute_is_found_by_its_own_heads(scenes):
    _, index, shown = scenes
    values = torch.tensor([truth(shown[stamp.path]) for stamp in index.images])
    table = [[precision_at(index.features(kind), values[:, at], 3) for at in range(5)] for kind in ATTRIBUTES]
    for at in range(5):
        assert max(range(5), key=lambda kind: table[kind][at]) == at
        assert table[at][at] > 50


# Search.


def test_scores_are_plain_cosines(scenes, monkeypatch):
    _, index, _ = scenes
    monkeypatch.setattr("dear.retrieval.index.BLOCK", 50)
    parts = {kind: index.features(kind) for kind in index.kinds}
    lengths = index.segments[0].lengths
    query = torch.randn(index.manifest.embed, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(
        row_cosines(index, "color", query), F.cosine_similarity(parts["color"], query[None]), atol=1e-3
    )
    rest = parts["cls"] * lengths[:, :1] - parts["location"] * lengths[:, [index.number("location")]]
    expected = F.cosine_similarity(rest, query[None])
    assert torch.allclose(row_cosines(index, "cls", query, ["location"]), expected, atol=1e-3)
    assert torch.allclose(lengths[:, 0], torch.ones(len(index)), atol=1e-5)


def test_without_an_attribute_images_are_alike_that_differ_in_it_alone(scenes):
    encoder, index, _ = scenes
    red = index.folder / "red.png"
    (plain,) = find(encoder, index, red)
    (other,) = find(encoder, index, red, without="color", top_k=2)
    assert {hit.path.name for hit in other.hits} == {"red.png", "blue.png"}
    seen = {hit.path.name: hit.score for hit in plain.hits}
    assert other.hits[1].score > seen["blue.png"]
    assert other.title == "Nearest by everything but color"
    assert [one.by for one in find(encoder, index, red, by="all", without="color")] == [
        kind for kind in index.kinds if kind != "color"
    ]


def test_one_attribute_of_another_image(scenes):
    """Red, with the color of some blue scene, finds the same scene in blue before the red one."""
    encoder, index, shown = scenes
    blue = next(name for name, words in shown.items() if words.color == "blue" and name != "blue.png")
    (found,) = find(encoder, index, index.folder / "red.png", swap={"color": index.folder / blue}, top_k=2)
    assert found.hits[0].path.name == "blue.png"
    assert found.title == "Nearest as a whole, with the color of another image"


def test_words(scenes):
    encoder, index, shown = scenes
    (found,) = find(encoder, index, "a red shape", by="color", top_k=3)
    assert {shown[hit.path.name].color for hit in found.hits} == {"red"}
    text = encoder.encode_text(["a red shape"])[0]
    sample = index.sample("color", 4096)
    within = restricted(sample, text)
    rows = index.features("color")
    outside = rows - (rows @ torch.linalg.pinv(rows)) @ rows  # nothing of a row lies outside their span
    assert float(outside.norm()) < 1e-2
    assert float(within.norm()) < float(text.norm())
    assert torch.allclose(restricted(sample, within), within, atol=1e-4)
    image = next(name for name, words in shown.items() if words.location == "forest")
    (both,) = find(encoder, index, index.folder / image, text="something blue", top_k=3)
    (alone,) = find(encoder, index, index.folder / image, top_k=3)
    blues = [sum(shown[hit.path.name].color == "blue" for hit in one.hits) for one in (both, alone)]
    assert blues[0] >= blues[1]
    assert both.hits != alone.hits


def test_a_least_score_is_proposed_by_the_spread(scenes):
    encoder, index, shown = scenes
    assert proposed(torch.tensor([0.1] * 20 + [0.5, 0.6, 0.7, 0.8, 0.9])) == pytest.approx(0.1 + 0.75 * 0.6)
    assert proposed(torch.tensor([0.5])) == 0.5
    (found,) = find(encoder, index, index.folder / "red.png", by="location", top_k=60)
    right = shown["red.png"].location
    assert all(shown[hit.path.name].location == right for hit in found.hits if hit.matches)
    assert 1 < sum(hit.matches for hit in found.hits) < 60
    (kept,) = find(encoder, index, index.folder / "red.png", by="location", top_k=60, min_score="auto")
    assert kept.hits == tuple(hit for hit in found.hits if hit.matches)
    (none,) = find(encoder, index, index.folder / "red.png", by="location", min_score=1.5)
    assert (none.hits, none.least) == ((), 1.5)


def test_a_sample_reads_few_segments_and_only_rows_that_count(tmp_path, scenes):
    """Ten segments of four rows, each row's features its own number; every second row is dead."""
    form = scenes[1].manifest.model_copy(update={"segments": [], "next_number": 1, "kinds": ["cls"], "embed": 2})
    writer = Writer(tmp_path, form)
    for number in range(10):
        rows = torch.tensor([[[1.0, 4 * number + row]] for row in range(4)])
        writer.append(rows, [Stamp(f"{number}-{row}", 1, 1) for row in range(4)], [4 * number - 1] if number else [])
    index = read_index(tmp_path)
    assert len(index) == 31
    known = [round(float(row[1] / row[0])) for row in index.sample("cls", 100)]
    assert known == [row for row in range(40) if row % 4 != 3 or row == 39]
    for most, pieces in ((5, 2), (100, 3), (1, 1)):
        found = [round(float(row[1] / row[0])) for row in index.sample("cls", most, pieces=pieces)]
        assert len(found) <= most
        assert len({row // 4 for row in found}) <= pieces
        assert set(found) <= set(known)


def test_ties_go_to_the_earlier_row():
    assert top(torch.tensor([0.1, 0.5, 0.5, 0.5]), 2) == [(1, 0.5), (2, 0.5)]
    assert top(torch.tensor([]), 0) == []


def test_search_needs_only_the_index(scenes, world, monkeypatch):
    """What made it stands in it, and Python does what the command does."""
    encoder, index, _ = scenes
    hits = dear.search(index.out, index.folder / "red.png", by="shape", top_k=2)
    assert hits[0].path.name == "red.png"
    assert {hit.by for hit in dear.search(index.out, "a red shape", by="all", top_k=1)} == set(index.kinds)
    assert dear.search(world, index.folder / "red.png", index=index.out, by="shape", top_k=2) == hits
    again = encoder_of(read_index(index.out))
    assert (again.mark, again.kinds, again.lacking) == (encoder.mark, encoder.kinds, encoder.lacking)


def test_single_heads_and_other_concepts(clip, roles, tmp_path):
    photos = make_photos(tmp_path / "photos", ["ant", "bee"], 3)
    kinds = ["color", "animal", "head:4.1", "generalization"]
    index = dear.index_images(photos, tmp_path / "index", clip=clip, roles=roles, kinds=kinds)
    assert index.kinds == ("cls", *kinds)
    (found,) = find(encoder_of(index, clip), index, photos / "ant" / "0.png", by="head:4.1", top_k=1)
    assert found.hits[0].score == pytest.approx(1, abs=1e-3)
    with pytest.raises(OverwriteError, match="another CLIP, role map or choice of kinds"):
        dear.index_images(photos, tmp_path / "index", clip=clip, roles=roles)
    for wrong in (["colour"], ["head:x"], ["head:99.0"]):
        with pytest.raises(ConfigError):
            dear.index_images(photos, tmp_path / "other", clip=clip, roles=roles, kinds=wrong)
    for told in ({}, {"clip": clip, "run": tmp_path}, {"clip": clip, "out": None}):
        with pytest.raises(ConfigError):
            dear.index_images(photos, **{"out": tmp_path / "other", "roles": roles, **told})
    assert not (tmp_path / "other").exists()


def test_what_cannot_be_answered_is_said_before_anything_is_computed(scenes, model, tmp_path):
    _, index, _ = scenes
    image = index.folder / "red.png"
    for wrong, words in (
        ({"by": "colour"}, "Did you mean 'color'"),
        ({"without": ("cls",)}, "the image as a whole"),
        ({"by": "color", "without": ("shape",)}, "choose one of them"),
        ({"without": ("color",), "swap": {"color": image}}, "both left out and exchanged"),
        ({"image": None}, "nothing to look for"),
        ({"image": None, "text": "a", "swap": {"color": image}}, "give an image to start from"),
        ({"min_score": "high"}, "but must be a number"),
        ({"top_k": 0}, "top_k"),
    ):
        with pytest.raises(ConfigError, match=words):
            searching.check(index, Ask(**{"image": image, **wrong}))
    photos = make_photos(tmp_path / "photos", ["ant"], 3)
    tokens, _ = update_index(model, photos, tmp_path / "index")
    with pytest.raises(ConfigError, match="not parts of a whole"):
        searching.check(tokens, Ask(image=image, without=("color",)))
    with pytest.raises(ConfigError, match="run='RUN'"):
        encoder_of(tokens)
    with pytest.raises(DataError, match="another model"):
        find(model, index, image)


# What a feature is called and what it is.


@pytest.mark.covers("F2")
def test_features_that_are_nearly_the_same_are_said_to_be(model, scenes, tmp_path):
    """An adapter's tokens by the paper's mask: the search says so, and so do the sheet and the report."""
    photos = make_photos(tmp_path / "photos", ["ant", "bee"], 4)
    index, _ = update_index(model, photos, tmp_path / "index")
    (found,) = find(model, index, photos / "ant" / "0.png", by="color")
    assert "The color feature is nearly the" in found.remark
    assert "not the nearest by color" in found.remark
    assert found.title == "Nearest by the feature called color, which is not one of color"
    write_found(tmp_path / "sheet.html", Ask(image=photos / "ant" / "0.png", by="color"), [found])
    page = (tmp_path / "sheet.html").read_text()
    assert found.remark.split(" (")[0] in page
    assert "Nearest by color" not in page
    assert distinct({kind: index.features(kind) for kind in index.kinds}) == ["cls"]
    assert not find(model, index, photos / "ant" / "0.png")[0].remark
    encoder, other, _ = scenes
    assert distinct({kind: other.features(kind) for kind in other.kinds}) == list(other.kinds)
    assert not any(one.remark for one in find(encoder, other, other.folder / "red.png", by="all"))
    alike = most_alike({kind: other.features(kind) for kind in ATTRIBUTES})
    assert all(cosine < 0.5 for _, cosine in alike.values())


@pytest.mark.covers("F2")
def test_an_attribute_without_heads_is_not_searched_by(clip, roles, tmp_path):
    heads = [
        head.model_copy(update={"role": dear.Role.MIXED, "concept": None}) if head.concept == "color" else head
        for head in roles.heads
    ]
    without = roles.model_copy(update={"heads": tuple(heads)})
    photos = make_photos(tmp_path / "photos", ["ant", "bee"], 3)
    index = dear.index_images(photos, tmp_path / "index", clip=clip, roles=without)
    assert index.manifest.lacking == ["color"]
    with pytest.raises(ConfigError, match="The role map of this index has no head for color"):
        dear.search(clip, photos / "ant" / "0.png", index=index.out, by="color")
    adapter = dear.DeAR(clip, without)
    tokens, _ = update_index(adapter, photos, tmp_path / "tokens")
    with pytest.warns(DearWarning, match="No head of this adapter's role map is about color"):
        dear.search(adapter, photos / "ant" / "0.png", index=tokens.out, by="color")
    with pytest.raises(ConfigError, match="no attribute to search by"):
        head_encoder(clip, roles.all_mixed())
