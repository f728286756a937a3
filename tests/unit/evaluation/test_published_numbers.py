"""The paper's numbers: whole, in its own words, and wrong only where the paper is."""

import json
from importlib import resources

import pytest

from dear.evaluation.published import (
    AVERAGE,
    OWN,
    TABLES,
    Printed,
    data_sets,
    find_published,
    published_table,
    readout_variant,
)

CATALOG = [row["name"] for row in json.loads((resources.files("dear") / "assets/datasets/catalog.json").read_text())]
ELEVEN = CATALOG[:11]

HARMONIC_MEANS_THAT_DO_NOT_FOLLOW = {
    ("base-to-novel", "zero_shot", "oxford_pets"): 94.44,  # novel 97.26 would give 94.12, and the printed average
    ("base-to-novel", "maple", "imagenet"): 73.45,
    ("base-to-novel", "provp", "sun397"): 78.70,
    ("base-to-novel", "provp", "ucf101"): 82.94,
    ("base-to-novel", "mmrl", "dtd"): 73.92,
    ("base-to-novel", "dear", "caltech101"): 97.37,
    ("base-to-novel", "dear", "oxford_pets"): 97.42,
    ("base-to-novel", "dear", "stanford_cars"): 78.46,
    ("base-to-novel", "dear", "food101"): 90.99,
    ("base-to-novel", "dear", "dtd"): 79.53,
    ("seeds", "dear", AVERAGE): 82.59,
    ("seeds", "dear", "imagenet"): 74.57,
}
AVERAGES_THAT_ARE_NOT_THE_MEAN = {
    ("zero_shot", "novel"): 74.28,
    ("provp", "base"): 83.32,
    ("provp", "novel"): 74.00,
}


def test_every_shipped_file_is_a_table():
    files = {file.name for file in (resources.files("dear") / "assets" / "published").iterdir()}
    assert files == {f"{name}.json" for name in (*TABLES, OWN)}
    for name in TABLES:
        table = published_table(name)
        assert "Table" in table.source
        labels = [(row.method, row.variant) for row in table.rows]
        assert len(set(labels)) == len(labels)
        for row in table.rows:
            assert set(row.scores) <= {AVERAGE, *CATALOG}
            assert set(row.spread) <= set(row.scores)
            for printed in row.scores.values():
                numbers = printed.model_dump(exclude_none=True).values()
                assert numbers
                assert all(0 < number <= 100 for number in numbers)


def test_base_to_novel_has_thirteen_methods_on_eleven_data_sets():
    table = published_table("base-to-novel")
    assert len(table.rows) == 13
    for row in table.rows:
        assert list(row.scores) == [AVERAGE, *ELEVEN]
        for printed in row.scores.values():
            assert None not in (printed.base, printed.novel, printed.hm)
            assert printed.accuracy is None


@pytest.mark.parametrize(("name", "targets"), [("cross-dataset", CATALOG[1:11]), ("domain", CATALOG[11:])])
def test_transfer_tables_are_whole_and_their_averages_are_of_the_targets(name, targets):
    assert data_sets(name) == tuple(targets)
    for row in published_table(name).rows:
        assert list(row.scores) == ["imagenet", AVERAGE, *targets]
        mean = sum(row.scores[data].accuracy for data in targets) / len(targets)
        assert row.scores[AVERAGE].accuracy == pytest.approx(mean, abs=0.01)


def test_averages_are_the_means_of_their_rows():
    found = {}
    for row in published_table("base-to-novel").rows:
        for quantity in ("base", "novel"):
            mean = sum(row.scores[data].get(quantity) for data in ELEVEN) / 11
            if abs(mean - row.scores[AVERAGE].get(quantity)) > 0.0101:
                found[row.method, quantity] = round(mean, 2)
    assert found == AVERAGES_THAT_ARE_NOT_THE_MEAN


def test_harmonic_means_follow_from_base_and_novel():
    """The printed average harmonic mean is that of the averages, not the average of the harmonic means."""
    found = {}
    for name in TABLES:
        for row in published_table(name).rows:
            for data, printed in row.scores.items():
                if not printed.hm_follows:
                    found[name, row.method, data] = round(printed.computed_hm, 2)
    assert found == HARMONIC_MEANS_THAT_DO_NOT_FOLLOW


def test_rounding_alone_never_makes_a_harmonic_mean_suspicious():
    for base, novel in [(27.194, 36.286), (99.995, 0.014), (72.43499, 68.13501), (50, 50)]:
        hm = 2 * base * novel / (base + novel)
        assert Printed(base=round(base, 2), novel=round(novel, 2), hm=round(hm, 2)).hm_follows
    assert not Printed(base=99.0, novel=95.8, hm=96.95).hm_follows
    assert Printed(hm=74.73).hm_follows
    assert Printed(hm=74.73).computed_hm is None


def test_the_default_is_the_same_row_in_every_ablation():
    for name in ("base-to-novel", "mask-strategies", "losses", "inference-strategy"):
        row = next(row for row in published_table(name).rows if (row.method, row.variant) == ("dear", ""))
        assert row.scores[AVERAGE] == Printed(base=85.94, novel=79.73, hm=82.72)


@pytest.mark.parametrize(
    ("protocol", "variant", "data", "source", "printed"),
    [
        ("base-to-novel", "", "dtd", "Table 2", Printed(base=83.9, novel=75.6, hm=79.62)),
        ("base-to-novel", "", "imagenet", "Table 2", Printed(base=78.12, novel=71.8, hm=74.83)),
        ("cross-dataset", "", "eurosat", "Table 3", Printed(accuracy=53.5)),
        ("domain", "", "imagenet_r", "Table 4", Printed(accuracy=78.83)),
        ("base-to-novel", "mask=all_mixed", AVERAGE, "Table 5", Printed(base=85.31, novel=76.98, hm=80.93)),
        (
            "base-to-novel",
            "lambda_reg=0.0,lambda_fusion=0",
            AVERAGE,
            "Table 6",
            Printed(base=86.75, novel=74.21, hm=79.99),
        ),
        (
            "base-to-novel",
            "readout=decoupled",
            AVERAGE,
            "Supplement, Table 5",
            Printed(base=85.94, novel=78.5, hm=82.05),
        ),
        ("base-to-novel", "threshold=40", "imagenet", "Supplement, Table 6, left", Printed(hm=71.1)),
        ("base-to-novel", "mask=shuffled", "imagenet", "Supplement, Table 6, right", Printed(hm=70.85)),
    ],
)
def test_numbers_are_found_by_the_names_the_grid_uses(protocol, variant, data, source, printed):
    found = find_published(protocol, "dear", variant, data)
    assert (found.source, found.printed) == (source, printed)


def test_a_readout_is_part_of_the_variant():
    assert readout_variant("", "some") == "readout=some"
    assert readout_variant("mask=all_mixed", "some") == "mask=all_mixed,readout=some"
    assert find_published("base-to-novel", "dear", readout_variant("", "decoupled"))
    assert find_published("base-to-novel", "dear", readout_variant("", "logits")) is None
    assert find_published("base-to-novel", "dear", readout_variant("mask=all_mixed", "decoupled")) is None


def test_spread_is_found_with_its_number():
    assert find_published("base-to-novel", "dear", "mask=shuffled", "imagenet").spread == Printed(hm=0.25)
    seeds = published_table("seeds").rows[1]
    assert seeds.spread["imagenet"] == Printed(base=0.39, novel=0.17, hm=0.23)


def test_what_the_paper_does_not_print_is_not_found():
    assert find_published("few-shot", "dear", "", "dtd") is None
    assert find_published("base-to-novel", "dear", "beta=0.5") is None
    assert find_published("base-to-novel", "dear", "mask=all_mixed", "dtd") is None
    assert find_published("base-to-novel", "nobody") is None
    assert data_sets("few-shot") == ()
