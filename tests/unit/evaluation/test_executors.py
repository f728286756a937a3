"""Processes of a grid end with it, at once and without waiting for cells that run; those of others do not."""

from contextlib import closing
from types import SimpleNamespace

import pytest

import light_cells
from dear.evaluation import executors


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "begin_process", light_cells.begin)
    monkeypatch.setattr(executors, "run_in_process", light_cells.run)
    return SimpleNamespace(threads=1, place=tmp_path)


def was_ended(options):
    return (options.place / "begun").exists() and not (options.place / "ended").exists()


def test_an_error_of_a_cell_ends_the_others(options):
    def run_all():
        with closing(executors.InProcesses(2).run(["long", "bad"], options)) as outcomes:
            for _, run in outcomes:
                run()

    with pytest.raises(ValueError, match="bad cell"):
        run_all()
    assert was_ended(options)


def test_closing_the_iterator_ends_cells_that_run(options):
    outcomes = executors.InProcesses(2).run(["long", "short", "long"], options)
    index, run = next(outcomes)
    assert (index, run()) == (1, "short")
    outcomes.close()
    assert was_ended(options)


def test_ctrl_c_ends_only_processes_of_the_grid(options):
    child = light_cells.a_child_of_somebody_else()
    try:
        outcomes = executors.InProcesses(2).run(["long", "short"], options)
        next(outcomes)
        with pytest.raises(KeyboardInterrupt):
            outcomes.throw(KeyboardInterrupt())
        assert was_ended(options)
        child.join(2)
        assert child.is_alive()
    finally:
        child.terminate()
        child.join()


def test_cells_that_may_fail_do_not_end_the_others(options):
    """A caller that notes an error and asks for the next cell gets all of them."""
    found = {}
    (options.place / "begun").touch()
    with closing(executors.InProcesses(2).run(["bad", "short", "short"], options)) as outcomes:
        for index, run in outcomes:
            try:
                found[index] = run()
            except ValueError as error:
                found[index] = str(error)
    assert found == {0: "bad cell", 1: "short", 2: "short"}
