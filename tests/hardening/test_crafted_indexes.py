"""Search indexes of strangers with a valid seal, and with nonsense where they name what made them."""

import pytest

import dear
from dear.errors import DataError
from dear.retrieval.encoder import encoder_of
from dear.retrieval.index import INDEX, Manifest, read_index
from helpers import make_photos


@pytest.fixture
def crafted(clip, roles, tmp_path):
    """The index of a CLIP, opened after entries of `made_by` were changed."""
    photos = make_photos(tmp_path / "photos", ["ant"], 2)
    index = dear.index_images(photos, tmp_path / "index", clip=clip, roles=roles)

    def change(**entries):
        made_by = {name: value for name, value in (index.manifest.made_by | entries).items() if value is not ...}
        content = index.manifest.model_copy(update={"made_by": made_by}).model_dump()
        (index.out / INDEX).write_text(Manifest.encode(content))
        return read_index(index.out)

    return change


def test_further_entries_are_ignored(crafted, clip):
    assert encoder_of(crafted(more=1)).mark == encoder_of(crafted(), clip).mark


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("heads", []),
        ("heads", {"color": 3}),
        ("heads", {"color": [3]}),
        ("heads", {"color": ["3"]}),
        ("heads", {"color": "3.1"}),
        ("seed", "x"),
        ("seed", [1]),
        ("clip", 3),
        ("clip", ...),
        ("pretrained", ...),
        ("precision", [1]),
        ("precision", "int8"),
        ("run", 5),
        ("run", []),
    ],
)
def test_nonsense_about_what_made_an_index_is_damage(crafted, name, value):
    index = crafted(**{name: value})
    with pytest.raises(DataError, match=r"^The index in .* is damaged: make it again with overwrite=True\.$"):
        encoder_of(index)


@pytest.mark.parametrize("entries", [{"seed": 2**70}, {"seed": -1}, {"heads": {"color": ["99.0"]}}, {"run": "a\0b"}])
def test_values_out_of_range_are_one_sentence(crafted, entries):
    index = crafted(**entries)
    with pytest.raises(dear.DearError) as said:
        encoder_of(index)
    assert "\n" not in str(said.value)
