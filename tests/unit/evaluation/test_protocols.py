"""The four protocols as lists of cells."""

import pytest

from dear.errors import ConfigError
from dear.evaluation.cells import Cell, make_cells


def grid(protocol="base-to-novel", data=("dtd", "eurosat"), **changes) -> list[Cell]:
    usual = {"methods": ["zero_shot", "dear"], "seeds": [1, 2], "shots": [16]}
    return make_cells(protocol, data, **{**usual, **changes})


def test_base_to_novel():
    cells = grid()
    assert len(cells) == 2 * 2 * 2
    assert [(cell.data, cell.method, cell.seed) for cell in cells[:3]] == [
        ("dtd", "zero_shot", 1),
        ("dtd", "zero_shot", 2),
        ("dtd", "dear", 1),
    ]
    assert {cell.half for cell in cells} == {"base"}
    assert cells[0].tests == (("dtd", "base"), ("dtd", "novel"))


def test_few_shot():
    cells = grid("few-shot", shots=[1, 2, 4], methods=["dear"], seeds=[1])
    assert [(cell.data, cell.shots) for cell in cells[:4]] == [("dtd", 1), ("dtd", 2), ("dtd", 4), ("eurosat", 1)]
    assert cells[0].half == "all"
    assert cells[0].tests == (("dtd", "all"),)


@pytest.mark.parametrize("protocol", ["cross-dataset", "domain"])
def test_transfer_learns_once_and_tests_everywhere(protocol):
    cells = grid(protocol, data=["dtd", "imagenet", "eurosat"], source="imagenet", seeds=[1])
    assert [(cell.method, cell.data) for cell in cells] == [("zero_shot", "imagenet"), ("dear", "imagenet")]
    assert cells[0].tests == (("imagenet", "all"), ("dtd", "all"), ("eurosat", "all"))


def test_choices_are_variants_of_the_methods_that_have_them():
    cells = grid(
        data=["dtd"], seeds=[1], choices={"mask": ["roles", "all_mixed"], "beta": [0.8], "roles": ["vit-b-16"]}
    )
    assert [(cell.method, cell.variant) for cell in cells] == [
        ("zero_shot", ""),
        ("dear", "beta=0.8"),
        ("dear", "mask=all_mixed,beta=0.8"),
    ]
    assert cells[1].choices == (("mask", "roles"), ("beta", 0.8), ("roles", "vit-b-16"))


def test_several_role_maps_are_told_apart():
    cells = grid(data=["dtd"], seeds=[1], methods=["dear"], choices={"roles": ["a/roles.json", "b/roles.json"]})
    assert [cell.variant for cell in cells] == ["roles=a/roles.json", "roles=b/roles.json"]
    assert len({cell.slug for cell in cells}) == 2


def test_every_cell_has_a_file_name_of_its_own():
    cells = grid(data=["photos/a b", "photos/a_b", "photos_a_b", "x" * 300], choices={"first_layer": [None, 9]})
    slugs = [cell.slug for cell in cells]
    assert len(set(slugs)) == len(cells)
    assert all(len(slug) < 200 and "/" not in slug and " " not in slug for slug in slugs)
    assert grid(data=["dtd"])[0].slug == "zero_shot-dtd-16shots-seed1"
    assert {cell.variant for cell in cells if cell.method == "dear"} == {"", "first_layer=9"}


def test_what_is_said_twice_is_done_once():
    assert grid(data=["dtd", "dtd"], seeds=[1, 1], methods=["dear", "dear"], choices={"beta": [0.5, 0.5]}) == grid(
        data=["dtd"], seeds=[1], methods=["dear"], choices={"beta": [0.5]}
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data": []}, "A grid needs at least one data set, one method, one seed and one number of shots."),
        ({"seeds": []}, "A grid needs at least one"),
        ({"source": "imagenet"}, "and only they, need a source"),
        ({"protocol": "domain"}, "and only they, need a source"),
        ({"methods": ["deer"]}, "No method is called 'deer'. Did you mean 'dear'?"),
        (
            {"choices": {"betta": [1]}},
            "None of the methods zero_shot, dear has a setting 'betta'. Did you mean 'beta'?",
        ),
        ({"choices": {"xyz": [1]}}, "has a setting 'xyz'. Known: alpha_cls, attributes, beta,"),
        ({"methods": ["zero_shot"], "choices": {"beta": [1]}}, "'beta'. They have no settings at all."),
    ],
)
def test_what_cannot_be_meant(changes, sentence):
    with pytest.raises(ConfigError) as error:
        grid(**changes)
    assert sentence in str(error.value)
