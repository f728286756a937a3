"""Nobody waits blindly: stages, who hears of them, bars at any width, and lines where there is no terminal."""

import io
import logging
import re
import sys

import pytest
import typer

import dear
from cells import cell
from dear.cli.console import cell_text, speaking
from dear.entry import first_words
from dear.errors import ConfigError, is_typed
from dear.evaluation.eta import RemainingTime
from dear.progress import display as bars
from dear.progress import stages as progress
from dear.progress.display import Above, Bars, Lines, fitting_words, shown_of, watched
from dear.progress.stages import Stage, duration, heard_by, stage, time_left

METRICS = {
    **{"step": 12, "steps": 500, "epoch": 3, "lr": 0.1, "skipped": 0, "images_per_second": 12.3, "problems": []},
    **{"total": 0.478, "ce": 0.186, "reg_image": 0.045, "reg_text": 0.247, "weight_cls": 0.5},
}


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def now(monkeypatch):
    """A clock that one sets."""
    time = [1000.0]
    for module in (progress, bars):
        monkeypatch.setattr(module, "clock", lambda: time[0])
    return time


def drawn_at(width: int, at: Stage) -> str:
    """What a terminal of a width shows of a stage."""
    stream = Terminal()
    drawn = Bars(stream, width=width)
    drawn.opened(at)
    drawn._progress.refresh()
    lines = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "\r", stream.getvalue())
    drawn.close()
    return next(
        "".join(parts)
        for parts in [re.findall(r"[^\r\n]+", line) for line in reversed(lines.split("\n"))]
        if "/" in "".join(parts)
    )


@pytest.mark.covers("F3")
@pytest.mark.parametrize("width", [60, 80, 120])
def test_count_bar_time_left_and_loss_are_seen_at_every_width(monkeypatch, now, width):
    monkeypatch.setenv("TERM", "xterm")
    at = Stage("training", 12_000, 11_000, facts=METRICS)
    now[0] += 110
    text = drawn_at(width, at)[-width:]
    told = re.search(r"(11,000/12,000) +(\S+) +(10 s left) +(loss 0\.478)(.*)", text)
    assert told, text
    assert set(told[2]) <= set("━╸╺")
    assert len(told[0].rstrip()) <= width
    assert ("reg_image 0.045" in told[5]) == (width == 120)  # further terms only if there is room
    assert "…" not in told[0]


def test_words_fit_the_room_they_have():
    at = Stage("training", 500, 12, facts=METRICS)
    assert at.words()[:3] == ["loss 0.478", "epoch 3", "12 images/s"]
    for room in range(120):
        assert len(fitting_words(at, room)) <= room
    assert fitting_words(at, 30) == "loss 0.478  epoch 3"
    assert fitting_words(Stage("reading images"), 10) == "reading i…"
    assert Stage("any", facts={"step": 1, "problems": [], "lr": 0.1}).words() == []


def test_one_bar_for_the_whole_and_one_for_its_part():
    outer, inner, deeper = Stage("cells", outer=True), Stage("training"), Stage("reading images")
    assert shown_of([outer, inner, deeper]) == [outer, inner]
    assert shown_of([inner, deeper]) == [inner]
    assert shown_of([]) == []


@pytest.mark.covers("F9")
def test_without_a_terminal_there_is_a_line_every_30_seconds(now):
    stream = io.StringIO()
    with heard_by(Lines(stream)), stage("testing", 100) as advance:
        for done in range(1, 100):
            now[0] += 1
            advance(done)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "testing: 30 of 100, about 1 min left"
    assert len(lines) == 3


def test_a_line_comes_even_if_nothing_is_counted(now, monkeypatch):
    stream, waits = io.StringIO(), iter([False, False, True])
    lines = Lines(stream)
    monkeypatch.setattr(lines._over, "wait", lambda seconds: now.__setitem__(0, now[0] + 20) or next(waits))
    with heard_by(lines), stage("clustering phrases"):
        lines._watch.join()
    assert stream.getvalue() == "clustering phrases: …\n"


def test_lines_name_the_whole_and_the_part(now):
    stream = io.StringIO()
    with heard_by(Lines(stream)), stage("cells", 4, outer=True), stage("training", 500) as advance:
        now[0] += 31
        advance(12, METRICS)
    assert stream.getvalue().startswith("cells: 0 of 4; training: 12 of 500, about 21 min left, loss 0.478, epoch 3")


def test_what_was_done_before_takes_no_time(now):
    at = Stage("training", 100, 60, first=50)
    now[0] += 10
    assert at.seconds_left() == pytest.approx(40)
    assert Stage("training", 100, 50, first=50).seconds_left() is None
    assert Stage("training", 100, 50, first=None).seconds_left() is None
    with heard_by(calls := Heard()), stage("training", 100, done=None) as advance:
        advance(51)
    assert calls.stages[0].first == 50


class Heard:
    """Remembers stages."""

    def __init__(self):
        self.stages, self.events = [], []

    def opened(self, stage):
        self.stages.append(stage)
        self.events.append(("opened", stage.name))

    def moved(self, stage):
        self.events.append((stage.name, stage.done, stage.total))

    def closed(self, stage):
        self.events.append(("closed", stage.name))


def test_stages_are_told_to_whoever_listens_and_closed_when_work_fails(caplog):
    caplog.set_level(logging.INFO, logger="dear")
    heard = Heard()

    def fail():
        with heard_by(heard), stage("testing", 3) as advance:
            advance(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert heard.events == [("opened", "testing"), ("testing", 1, 3), ("closed", "testing")]
    assert caplog.messages == ["testing: 3"]
    with stage("testing", 3) as advance:
        advance(3)
    assert len(heard.events) == 3


def test_a_function_hears_stage_number_and_total():
    calls = []
    with watched(lambda *event: calls.append(event)), stage("testing", 2) as advance:
        advance(1)
        with watched(False), stage("silent", 1) as silent:
            silent(1)
        with watched(None), stage("told", 1):
            advance(2)
    assert calls == [("testing", 0, 2), ("testing", 1, 2), ("told", 0, 1), ("testing", 2, 2)]


@pytest.mark.covers("F9")
def test_python_functions_take_true_false_or_a_function(tmp_path, capsys):
    """One small training, test and prediction, heard in all three ways."""
    calls, counted = [], []
    settings = dear.TrainSettings(epochs=1, batch_size=16)
    how = {"shots": 1, "train": settings, "half": "base"}
    model = dear.fit("world-blooms", out=tmp_path / "run", progress=lambda *event: calls.append(event), **how)
    assert {name for name, _, _ in calls} >= {"loading world", "training"}
    trained = [one for one in calls if one[0] == "training"][-1]
    assert trained[1] == trained[2] > 0
    assert calls[-1][0] == "comparing with plain CLIP"
    images = [dear.open_dataset("world-blooms").open(item.id) for item in dear.open_dataset("world-blooms").test[:3]]
    model.predict(images, progress=lambda *event: counted.append(event), batch_size=2)
    assert counted == [("predicting", 0, 3), ("predicting", 2, 3), ("predicting", 3, 3)]
    model.predict(images, progress=lambda done, total: counted.append((done, total)), batch_size=2)  # as in 0.2
    assert counted[3:] == [(2, 3), (3, 3)]
    model.predict(images, progress=True)
    assert capsys.readouterr() == ("", "")
    for wrong in (3, "yes"):
        with pytest.raises(ConfigError, match="progress is of type"):
            model.predict(images, progress=wrong)
        with pytest.raises(ConfigError, match="progress is of type"):
            dear.fit("world-blooms", progress=wrong, **how)
        with pytest.raises(ConfigError, match="progress is of type"):
            dear.evaluate(model, "world-blooms", progress=wrong)


@pytest.mark.covers("F9")
def test_a_command_says_something_before_anything_heavy_is_imported():
    assert first_words(["train", "photos", "--clip", "ViT-B-16-quickgelu"]) == "loading ViT-B-16-quickgelu"
    assert first_words(["train", "--clip=local-dir:/a/b"]) == "loading b"
    assert first_words(["ls", "methods"]) == "loading"
    for quiet in ([], ["-h"], ["train", "--help"], ["--version"]):
        assert first_words(quiet) == ""


def test_bars_make_room_for_what_is_printed(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("RANK", raising=False)
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with speaking("loading x"):
        assert is_typed()
        assert isinstance(sys.stdout, Above)
        typer.echo("a result")
        sys.stderr.write("a remark\n")
        with stage("testing", 2) as advance:
            advance(1)
    assert (sys.stdout, sys.stderr) == (out, err)
    assert not is_typed()
    assert out.getvalue() == "a result\n"  # nothing but results, even on a terminal
    assert "loading x" in err.getvalue()
    assert "a remark" in err.getvalue()


def test_results_stay_clean_when_they_are_piped(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with speaking("loading x"):
        sys.stdout.write("a result\n")
    assert out.getvalue() == "a result\n"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (40, "40 s"), (61, "1 min"), (3599, "1 h"), (7800, "2 h 10 min"), (90000, "25 h")],
)
def test_times_in_words(seconds, words):
    assert duration(seconds) == words


@pytest.mark.covers("F15")
def test_the_time_left_of_a_grid_follows_its_cells():
    pace = RemainingTime(["dear", "dear", "dear", "zero_shot", "coop"], jobs=2)
    pace.add("zero_shot", 1.0)
    pace.add("dear", None)  # was there before
    assert pace.left() is None
    pace.add("dear", 10.0)
    assert (pace.waiting, pace.left()) == (2, None)
    pace = RemainingTime(["dear"] * 4 + ["coop"], jobs=2)
    for seconds in (10.0, 20.0, 30.0):
        pace.add("dear", seconds)
    assert pace.left() == pytest.approx((20 + 20) / 2)  # coop: as all so far


@pytest.mark.covers("F15")
def test_a_cell_is_told_with_the_time_left():
    result = cell()
    with stage("cells", 9, outer=True) as advance:
        advance(2)
        assert cell_text(2, 9, result).startswith("[2/9] ")
        advance(3, left=130)
        assert time_left() == 130
        assert cell_text(3, 9, result).startswith("[3/9, 2 min left] ")
        assert cell_text(9, 9, result).startswith("[9/9] ")
    assert time_left() is None
