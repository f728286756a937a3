"""A full paper on tiny stand-ins: runs what is there, says what is missing, resumes, and is the same twice."""

import os
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

import dear.evaluation.cell_run as cell_run
import dear.paper.measures as measures
from dear.engine.settings import TrainSettings
from dear.engine.workspace import Workspace
from dear.errors import ConfigError, DearWarning, OverwriteError, RoleMapError
from dear.evaluation.shared_model import GRIDS
from dear.paper.run import make_paper
from dear.paper.survey import PaperRequest, describe_plan, survey
from helpers import varied_roles
from papers import tiny_eurosat, tiny_imagenet

pytestmark = pytest.mark.xdist_group("paper_run")  # one finished paper for all


@pytest.fixture(scope="module")
def order(tmp_path_factory, tiny_folders, tiny_clips) -> PaperRequest:
    """Of a paper whose ImageNet, ImageNetV2 and EuroSAT are there."""
    folder = tmp_path_factory.mktemp("paper")
    tiny_imagenet(folder / "data")
    tiny_eurosat(folder / "data")
    roles = folder / "roles.json"
    varied_roles(tiny_clips["shallow"]).save(roles)
    return PaperRequest(
        folder / "out",
        kind="full",
        clip=f"local-dir:{tiny_folders['shallow']}",
        pretrained="random",
        data_root=folder / "data",
        roles=str(roles),
        seeds=(1,),
        few_shots=(1, 16),
        train=TrainSettings(epochs=1, cached_views=0),
        images=6,
        jobs=1,
        workers=1,
    )


def report_of(folder: Path) -> dict[str, bytes]:
    """All files of a report; not the cells, which record how long they took."""
    places = [folder / "report.html", folder / "results.json"]
    places += [*(folder / "tables").iterdir(), *(folder / "figures").iterdir()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in places}


@pytest.fixture(scope="module")
def finished(order) -> tuple[dict[str, bytes], list[str]]:
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DearWarning)
        make_paper(order, said.append)
    return report_of(order.out), said


def test_what_is_there_runs_and_what_is_missing_is_told(finished):
    files, said = finished
    page = files["report.html"].decode()
    assert any(line.startswith("missing dtd: put it in ") and "Get dtd-r1.0.1.tar.gz" in line for line in said)
    assert "Get dtd-r1.0.1.tar.gz" in page
    assert "This report is not complete" not in page
    assert re.search(r"\| imagenet \(source\) +\| ImageNet +\|", files["tables/table-3.md"].decode())
    assert "Not run: the role map records no entropies" in files["tables/supplement-table-6-left.md"].decode()
    assert "by class" not in files["tables/figure-3.md"].decode()
    assert "same class" in files["tables/figure-3.md"].decode()
    assert "layer 2" in files["tables/mean-ablation.md"].decode()
    assert "figures/figure-3-query-1.png" in files
    assert "eurosat" in files["tables/role-gains.md"].decode()
    assert "figures/role-gains.svg" in files
    average = next(line for line in files["tables/table-2.md"].decode().splitlines() if line.startswith("| average "))
    assert "*" in average  # the paper's mean over the same data sets, not its average of eleven


def test_the_second_run_computes_nothing_and_writes_the_same(order, finished, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("this was done before")

    monkeypatch.setattr(cell_run, "train_model", refuse)
    monkeypatch.setattr(measures, "measure_retrieval", refuse)
    monkeypatch.setattr(measures, "measure", refuse)
    said: list[str] = []
    make_paper(order, said.append)
    assert report_of(order.out) == finished[0]
    assert any("none to do" in line for line in said)


def test_a_killed_run_goes_on_to_the_same_report(order, finished, tmp_path, monkeypatch):
    again, real, left = replace(order, out=tmp_path / "out"), cell_run.train_model, [7]

    def stopping(*given, **named):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(*given, **named)

    monkeypatch.setattr(cell_run, "train_model", stopping)
    with pytest.raises(KeyboardInterrupt):
        make_paper(again)
    looked = survey(again)
    assert looked.cost.done == 7
    assert "7 done" in describe_plan(again, looked)
    monkeypatch.setattr(cell_run, "train_model", real)
    make_paper(again)
    assert report_of(again.out) == finished[0]


def test_shares_of_the_cells_make_the_same_tables(order, finished, tmp_path, monkeypatch):
    again, done, said = replace(order, out=tmp_path / "out", only=("table-2",)), [], []
    for number in (1, 2, 3):
        assert make_paper(replace(again, cells=f"{number}/3"), said.append) == again.out
        done.append({path.name for path in (again.out / GRIDS / "base-to-novel" / "cells").iterdir()})
        assert not (again.out / "report.html").exists()
        assert not (again.out / GRIDS / "base-to-novel" / "table.csv").exists()
    assert [len(one) for one in done] == [2, 3, 4]  # plain CLIP and DeAR on two data sets
    assert done[0] < done[1] < done[2]
    assert said[-1].startswith("share 3/3: 1 cells done; after all shares, add ")
    monkeypatch.setattr(cell_run, "train_model", None)  # all cells are there
    assert make_paper(again) == again.out / "report.html"
    assert (again.out / "tables" / "table-2.md").read_bytes() == finished[0]["tables/table-2.md"]


def test_a_damaged_cell_is_done_again(order, finished):
    cells = sorted((order.out / GRIDS / "domain" / "cells").iterdir())
    cells[0].write_text("{")
    before = survey(order).cost
    assert before.cells - before.done == 1
    make_paper(order)
    assert report_of(order.out) == finished[0]


def exactly(order):
    return survey(order, lambda order, cell: cell_run.done_before(cell, order.options(cell.protocol), Workspace()))


def test_cells_of_another_setting_do_not_count(order, finished):
    assert survey(order).cost.done == survey(order).cost.cells == exactly(order).cost.done
    for changes in ({"train": TrainSettings(epochs=2)}, {"train": TrainSettings(epochs=1, cached_views=3)}):
        assert not [one for one in survey(replace(order, **changes)).done.values() if one.method == "dear"]
        assert not [one for one in exactly(replace(order, **changes)).done.values() if one.method == "dear"]


def test_cells_of_other_images_do_not_count(order, finished):
    (image,) = (order.data_root / "imagenetv2").rglob("0/w0.png")
    whole, everything = image.read_bytes(), {"base-to-novel", "few-shot", "cross-dataset", "domain"}
    os.utime(image, ns=(0, 0))
    assert {one.protocol for one in exactly(order).done.values()} == everything  # a copy is the same image
    image.write_bytes(whole + b"another")
    left = {one.protocol for one in exactly(order).done.values()}
    image.write_bytes(whole)
    assert left == {"base-to-novel", "few-shot", "cross-dataset"}


def test_an_output_folder_is_not_taken_silently(order, finished, tmp_path):
    with pytest.raises(OverwriteError, match="add resume=True to continue, or overwrite=True"):
        make_paper(order, if_exists="refuse")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "mine.png").write_text("mine")
    with pytest.raises(OverwriteError, match="already contains other files"):
        make_paper(replace(order, out=tmp_path), if_exists="overwrite")
    assert (tmp_path / "figures" / "mine.png").exists()


@pytest.mark.parametrize("roles", [None, "auto"])
def test_a_clip_without_a_shipped_map_needs_one(order, roles, tmp_path):
    """The advice was to use "auto", which had been used, or a mask, which a paper cannot set."""
    with pytest.raises(RoleMapError) as error:
        make_paper(replace(order, roles=roles, out=tmp_path / "paper"))
    assert str(error.value).endswith(
        "with these weights: find one with 'dear roles discover', and name it with roles='MAP'."
    )
    assert not (tmp_path / "paper").exists()


def test_starting_again_removes_nothing_before_all_is_checked(order, finished):
    with pytest.raises(RoleMapError):
        make_paper(replace(order, roles="none.json"), if_exists="overwrite")
    with pytest.raises(ConfigError, match="data_root='FOLDER'"):
        make_paper(replace(order, data_root=None), if_exists="overwrite")
    assert report_of(order.out) == finished[0]
    assert survey(order).cost.done == survey(order).cost.cells
