"""Tables: the golden ones, arithmetic over seeds and data sets, half-done grids, and the paper beside ours."""

import csv
import io
from pathlib import Path
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cells import PAPER_CLIP, WORLD_CLIP, cell, cross_cell, few_shot_cell, scores, zero_shot_cell
from dear.errors import DataError
from dear.evaluation.published import data_sets
from dear.evaluation.results import Backbone, harmonic_mean
from dear.evaluation.summary import HM_NOTE, Row, by_section, further_readouts, summarise
from dear.evaluation.tables import NO_RESULTS, to_csv, to_markdown
from dear.paper.page import write_paper
from dear.reports.compare_data import make_comparison
from dear.reports.compare_page import text
from papers import findings

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
ELEVEN = data_sets("base-to-novel")
PERCENT = st.floats(1, 100)


def half_done_grid():
    """Two data sets: one method done, one with seeds missing, a variant on one data set only."""
    return [
        zero_shot_cell("dtd"),
        *(cell("dtd", seed, (80.0 + seed, 70.0), (70.0 - seed, 72.0)) for seed in (1, 2, 3)),
        cell("dtd", variant="mask=all_mixed"),
        cell("caltech101", base=(98.0, 97.0), novel=(94.0, 95.0), unreadable=1),
        zero_shot_cell("caltech101", base=97.0, novel=93.0),
    ]


def every_protocol():
    drawn = {"world-broad-a": (30.0, 33.0), "world-broad-r": (20.0, 23.0)}
    return [
        *half_done_grid(),
        few_shot_cell(shots=16, accuracies=(70.0, 68.0)),
        few_shot_cell(shots=1),
        few_shot_cell(shots=1, seed=2, accuracies=(64.0, 64.0)),
        cross_cell(),
        cross_cell(protocol="domain", data="world-broad", targets=drawn, backbone=WORLD_CLIP, skipped=2),
    ]


def table_rows(markdown):
    """Every line of every table, as its cells."""
    lines = [line for line in markdown.splitlines() if line.startswith("|") and "---" not in line]
    return [[entry.strip() for entry in line.strip("|").split("|")] for line in lines]


def csv_rows(results):
    return list(csv.DictReader(io.StringIO(to_csv(results))))


def only_summary(results, readout=None):
    ((section, cells),) = by_section(results).items()
    return summarise(section, cells, readout)


def test_golden_markdown():
    assert to_markdown(every_protocol()) == (GOLDEN / "tables.md").read_text(encoding="utf-8")


def test_golden_csv():
    assert to_csv(every_protocol()) == (GOLDEN / "tables.csv").read_text(encoding="utf-8")


def test_validation_scores_never_stand_beside_the_papers():
    shown = to_markdown([cell("dtd", tested_on="validation", epochs=10), cell("dtd", seed=2, epochs=5, cached_views=4)])
    validation, test = shown.split("## Base-to-novel")[1:]
    assert test.startswith(", 16 shots\n")
    assert "paper" in test
    assert validation.startswith(", 16 shots, validation images\n")
    assert "paper:" not in validation
    assert "Trained for 10 epochs on new views of each image in every epoch." in validation
    assert "Trained for 5 epochs on 4 cached views per image." in test


def test_one_backbone_with_two_names_is_one():
    other = WORLD_CLIP.model_copy(update={"name": "local-dir:elsewhere"})
    assert len(by_section([cell("dtd", backbone=WORLD_CLIP), cell("dtd", seed=2, backbone=other)])) == 1


def test_no_results_are_a_sentence_and_a_header():
    assert to_markdown([]) == NO_RESULTS == "There are no results yet: no cell of the grid is done.\n"
    assert to_csv([]) == (
        "protocol,method,variant,data,seed,shots,recipe,tested_on,epochs,cached_views,images,unreadable,skipped,"
        "seconds,steps,parameters,peak_memory_mb,artefact_bytes,backbone,pretrained,weights,role_map,settings,adapter_sha256\n"
    )


def test_order_does_not_depend_on_the_order_of_seeds_and_methods():
    results = half_done_grid()
    shuffled = [results[0], *reversed(results[1:5]), *reversed(results[5:])]
    assert to_csv(shuffled) == to_csv(results)
    assert to_markdown(shuffled) == to_markdown(results)


@pytest.mark.covers("T4")
@given(st.lists(st.tuples(PERCENT, PERCENT, PERCENT, PERCENT), min_size=1, max_size=4))
def test_hm_is_that_of_the_means_and_its_deviation_that_of_the_seeds(seeds):
    results = [
        cell(data, seed, (base, base), (novel, novel))
        for seed, numbers in enumerate(seeds)
        for data, base, novel in (("dtd", *numbers[:2]), ("eurosat", *numbers[2:]))
    ]
    summary, row = only_summary(results), Row("dear", "")
    halves = {
        "dtd": [one[:2] for one in seeds],
        "eurosat": [one[2:] for one in seeds],
        None: [((one[0] + one[2]) / 2, (one[1] + one[3]) / 2) for one in seeds],
    }
    for data, pairs in halves.items():
        base, novel, hm = (
            summary.stat(row, data, column) if data else summary.average(row, column).stat
            for column in ("base", "novel", "hm")
        )
        assert hm.mean == pytest.approx(harmonic_mean(base.mean, novel.mean))
        assert hm.seeds == len(seeds)
        if len(seeds) > 1:
            assert hm.std == pytest.approx(stdev(harmonic_mean(*pair) for pair in pairs), abs=1e-9)


@pytest.mark.covers("T4")
def test_one_sentence_defines_hm_on_every_table_and_page(tmp_path):
    results = [cell("dtd", seed, (80.0 + seed, 70.0), (60.0, 72.0), method=name) for seed in (1, 2) for name in "ab"]
    page = text(make_comparison(results, {}))
    write_paper(tmp_path, findings())
    paper = (tmp_path / "tables" / "table-2.md").read_text(encoding="utf-8")
    assert all(HM_NOTE in one for one in (to_markdown(results), page, paper))


def test_the_average_harmonic_mean_is_that_of_the_averages():
    results = [cell("dtd", base=(90.0, 0.0), novel=(30.0, 0.0)), cell("eurosat", base=(30.0, 0.0), novel=(90.0, 0.0))]
    average = only_summary(results).average(Row("dear", ""), "hm")
    assert average.stat.mean == 60
    assert only_summary(results, "decoupled").average(Row("dear", ""), "hm").stat.mean == 0


def test_averages_go_over_the_seeds_that_have_every_data_set():
    summary = only_summary(half_done_grid())
    average = summary.average(Row("dear", ""), "base")
    assert average.stat == (89.5, None, 1)
    assert average.data == ("dtd", "caltech101")
    assert summary.average(Row("dear", "mask=all_mixed"), "base").data == ("dtd",)
    apart = only_summary([cell("dtd", 1), cell("eurosat", 2)])
    assert apart.average(Row("dear", ""), "base") is None
    assert ["**average**", "dear", "0", "—", "—", "—"] in [
        [entry for entry in row if entry] for row in table_rows(to_markdown([cell("dtd", 1), cell("eurosat", 2)]))
    ]


def test_one_seed_has_no_spread_and_one_data_set_no_average():
    markdown = to_markdown([cell()])
    assert not any(" ± " in entry for row in table_rows(markdown) for entry in row)
    assert "average**" not in markdown


def test_the_whole_grid_stands_beside_the_printed_average():
    variants = ("", "mask=all_mixed", "lambda_reg=0.0,lambda_fusion=0.0", "beta=0.5")
    results = [cell(data, variant=variant) for data in ELEVEN for variant in variants]
    rows = table_rows(to_markdown(results).split("###")[0])
    averages = {row[1]: row[4::2] for row in rows[-len(variants) :]}
    assert averages["dear"] == ["85.94", "79.73", "82.72"]
    assert averages["dear, mask=all_mixed"] == ["85.31", "76.98", "80.93"]
    assert averages["dear, lambda_reg=0.0,lambda_fusion=0.0"] == ["86.75", "74.21", "79.99"]
    assert averages["dear, beta=0.5"] == ["", "", ""]
    assert "the paper's Table 2; Table 6; Table 5; Supplement, Table 5, with" in to_markdown(results)


def test_the_numbers_that_the_paper_prints_of_a_readout_stand_beside_it():
    decoupled = to_markdown([cell(data) for data in ELEVEN]).split("### Readout: decoupled\n")[1]
    ours_and_paper = ["70.00", "85.94", "65.00", "78.50", "67.41", "82.05"]
    assert table_rows(decoupled)[-1] == ["**average**", "dear", "1", *ours_and_paper]


def test_harmonic_means_that_do_not_follow_are_printed_with_those_that_do():
    markdown = to_markdown([cell("oxford_pets"), cell("eurosat")])
    assert "| 96.81 [97.42] |" in markdown
    assert "|         92.22 |" in markdown
    assert "[in brackets]" in markdown
    assert "[in brackets]" not in to_markdown([cell("eurosat")])


def test_a_spread_that_the_paper_prints_is_shown():
    assert "| 70.85 ± 0.25 |" in to_markdown([cell("imagenet", variant="mask=shuffled")])


@pytest.mark.parametrize(
    "results",
    [
        [cell("dtd", shots=8)],
        [cell("world-textures", backbone=WORLD_CLIP)],
        [cell("average")],
        [few_shot_cell("dtd", shots=16)],
        [cross_cell(data="sun397")],
        [cell("dtd", method="nobody")],
    ],
)
def test_the_paper_is_quoted_only_for_what_it_did(results):
    assert not any("paper" in row for row in table_rows(to_markdown(results)))


def test_an_average_with_a_data_set_of_ours_is_not_compared():
    rows = table_rows(to_markdown([cell("dtd"), cell("my-photos")]))
    assert rows[1][4] == "83.90"
    assert rows[3] == ["**average**", "dear", "1", "80.00", "", "60.00", "", "68.57", ""]


def test_drawn_data_sets_say_what_they_stand_for():
    markdown = to_markdown([cell("world-textures", backbone=WORLD_CLIP)])
    assert "(world-textures for DTD): the paper's numbers do not apply to them." in markdown


def test_backbones_shots_and_sources_are_never_mixed():
    other = Backbone(name="ViT-B-16-quickgelu", pretrained="openai", weights_sha256="d" * 64)
    results = [cell(), cell(backbone=other), cell(shots=4), cross_cell(), cross_cell(data="sun397")]
    assert len(by_section(results)) == 5
    assert to_markdown(results).count("\n## ") == 4


def test_a_cell_twice_is_refused():
    with pytest.raises(DataError) as caught:
        to_markdown([cell(variant="beta=0.5"), cell(variant="beta=0.5", base=(1.0, 1.0))])
    assert str(caught.value) == "There are two base-to-novel results of dear, beta=0.5 on dtd with seed 1."


def test_a_readout_that_the_protocol_uses_everywhere_has_no_table():
    assert further_readouts([cell(), zero_shot_cell()]) == ("decoupled",)
    assert further_readouts([zero_shot_cell()]) == ()
    assert further_readouts([few_shot_cell()]) == ("decoupled",)
    assert further_readouts([cross_cell()]) == ("fusion", "decoupled")
    assert further_readouts([cross_cell(readouts={"default": "fusion"})]) == ("decoupled",)
    assert further_readouts([cell(readouts={"default": "fusion", "novel": "decoupled"})]) == ("fusion", "decoupled")


def test_the_main_table_reads_each_method_by_its_own_readouts():
    other = cell(method="other", readouts={"default": "decoupled", "novel": "fusion"})
    rows = {row[1]: row for row in table_rows(to_markdown([cell(), other, zero_shot_cell()]).split("###")[0])}
    assert rows["dear"][3::2] == ["80.00", "60.00", "68.57"]
    assert rows["other"][3::2] == ["70.00", "60.00", "64.62"]
    assert rows["zero_shot"][3::2] == ["50.00", "55.00", "52.38"]


def test_a_readout_s_table_has_the_methods_that_have_it():
    main, *further = to_markdown([cross_cell(), zero_shot_cell(), cell()]).split("### Readout: ")
    assert [text.split("\n")[0] for text in further] == ["decoupled", "fusion", "decoupled"]
    assert {row[1] for row in table_rows(main)} == {"method", "dear", "zero_shot"}
    assert {row[1] for row in table_rows(further[0].split("\n## ")[0])} == {"method", "dear"}
    transfer = [dict(zip(("data", "accuracy"), (row[0], row[3]), strict=True)) for row in table_rows(further[1])[1:]]
    assert [row["accuracy"] for row in transfer] == ["71.00", "40.00", "50.00", "45.00"]
    assert [row[3] for row in table_rows(further[2])[1:]] == ["70.00", "45.00", "55.00", "50.00"]


def test_an_average_by_a_readout_does_not_hide_missing_data_sets():
    results = [cell("dtd"), zero_shot_cell("dtd"), zero_shot_cell("eurosat")]
    decoupled = to_markdown(results).split("### Readout: decoupled\n")[1]
    assert table_rows(decoupled)[-1][3] == "70.00 (1 of 2 sets)"


def test_notes_name_the_readouts_of_methods_that_have_several():
    notes = [line for line in to_markdown([cell(), zero_shot_cell(), cross_cell()]).splitlines() if "Readouts" in line]
    assert notes == [
        "- Readouts of dear in the main table: all by fusion.",
        "- Readouts of dear in the main table: source by fusion, targets by decoupled.",
    ]


def test_recipes_are_never_mixed_and_the_paper_s_is_its_own():
    shown = to_markdown([cell(), cell(recipe="shared")])
    own, shared = shown.split("## Base-to-novel, 16 shots")[1:]
    assert "paper" in own
    assert shared.startswith(", shared recipe\n")
    assert not any("paper" in row for row in table_rows(shared))


def test_csv_has_every_number_by_the_further_readouts():
    crossed, domain = csv_rows([cross_cell(), cross_cell(protocol="domain")])
    assert (crossed["source_imagenet"], crossed["target_dtd"], crossed["average"]) == ("71.00", "45.00", "50.00")
    by_fusion = [crossed[f"{name}_fusion"] for name in ("source_imagenet", "target_dtd", "average")]
    decoupled = [crossed[f"{name}_decoupled"] for name in ("source_imagenet", "target_dtd", "average")]
    assert by_fusion == ["71.00", "40.00", "45.00"]
    assert decoupled == ["70.00", "45.00", "50.00"]
    assert (domain["source_imagenet"], domain["source_imagenet_decoupled"]) == ("71.00", "70.00")


def test_csv_has_no_readout_of_a_protocol_that_shows_nothing_new():
    header = csv_rows([cell(), zero_shot_cell(), cross_cell()])[0].keys()
    assert [name for name in header if name.startswith("base")] == ["base", "base_decoupled"]
    assert [name for name in header if name.startswith("average")] == ["average", "average_decoupled", "average_fusion"]
    plain = csv_rows([cell(), zero_shot_cell()])[1]
    assert (plain["base"], plain["base_decoupled"]) == ("50.00", "")


def test_csv_is_one_plain_table():
    header, *rows = csv.reader(io.StringIO(to_csv(every_protocol())))
    assert len(set(header)) == len(header)
    assert {len(row) for row in rows} == {len(header)}
    assert len(rows) == len(every_protocol())


def test_csv_says_what_a_cell_cost():
    spent = cell(recipe="shared", parameters=1234, peak_memory_mb=512.126, artefact_bytes=99)
    first, second = csv_rows([spent, zero_shot_cell()])
    names = ("recipe", "parameters", "peak_memory_mb", "artefact_bytes")
    assert [first[name] for name in names] == ["shared", "1234", "512.13", "99"]
    assert [second[name] for name in names] == ["own", "", "", ""]


def test_csv_copes_with_a_target_that_only_some_cells_have():
    first, second = csv_rows([cross_cell(targets={"dtd": (1.0, 2.0)}), cross_cell(2, targets={"eurosat": (3.0, 4.0)})])
    assert (first["target_dtd"], first["target_eurosat"], first["average"]) == ("2.00", "", "2.00")
    assert (second["target_dtd"], second["target_eurosat"], second["average"]) == ("", "4.00", "4.00")


def test_csv_counts_images_over_all_tests_and_leaves_weights_empty_where_there_are_none():
    row, plain = csv_rows([cell(unreadable=2, skipped=3), zero_shot_cell()])
    assert (row["images"], row["unreadable"], row["skipped"], row["seconds"]) == ("200", "2", "3", "12.50")
    assert (row["weight_cls"], row["weight_texture"]) == ("0.7500", "0.0500")
    assert (plain["weight_cls"], plain["weight_texture"], plain["adapter_sha256"]) == ("", "", "")


def test_names_with_signs_of_the_format_do_not_break_it():
    odd = cell('a|b,"c"')
    assert '| a\\|b,"c" |' in to_markdown([odd])
    assert csv_rows([odd])[0]["data"] == 'a|b,"c"'


def test_a_source_without_targets_is_a_table_too():
    alone = cross_cell(targets={})
    assert csv_rows([alone])[0]["source_imagenet"] == "71.00"
    assert table_rows(to_markdown([alone]))[1] == ["imagenet (source)", "dear", "1", "71.00", "71.50"]


def test_parts_come_in_any_order():
    swapped = cell(scores=(scores("dtd", "novel", (60.0, 65.0)), scores("dtd", "base", (80.0, 70.0))))
    assert to_markdown([swapped]) == to_markdown([cell()])
    assert swapped.backbone == PAPER_CLIP
