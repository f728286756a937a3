"""The choice of a method: its document, its ranking from answers alone, its sentences, the curve of fewer photos."""

import json
import math

import numpy as np
import pytest

from dear.errors import DataError
from dear.evaluation.choice import CandidateRecord, Choice, Expected, Gain, Seconds, TrialRecord, read_choice
from dear.evaluation.choice_ranking import is_clearly_behind, rank, weighted_mean
from dear.evaluation.choice_words import notes, section, summary, table
from dear.evaluation.expected_gains import expected_gains
from dear.evaluation.more_photos import more_photos
from dear.workflows.auto_candidates import DEFAULT

CLASSES = 4


def made(rights, *, images=40, keep_novel=1.0, chosen="zero_shot", seconds=None, curve=None, novel=True, **more):
    """A choice in which each method is right about the first photos: {method: (learned, left out)}."""
    labels = [index % CLASSES for index in range(images)]
    everything = list(range(images))
    trials = [TrialRecord(name="fold 1", kind="learned", images=everything, classes=list(range(CLASSES)))]
    if novel:
        trials.append(TrialRecord(name="left out 1", kind="novel", images=everything, classes=list(range(CLASSES))))

    def answers(right):
        return [label if index < right else (label + 1) % CLASSES for index, label in enumerate(labels)]

    candidates = [
        CandidateRecord(
            method=method,
            state="tried",
            bytes=1000,
            answers={trial.name: answers(right) for trial, right in zip(trials, counts, strict=False)},
        )
        for method, counts in rights.items()
    ]
    return Choice(
        data="photos",
        mark="m",
        seed=1,
        shots=10,
        fold_shots=8,
        keep_novel=keep_novel,
        classes=list("abcd"),
        images=[f"{index} [1,\n2].png" for index in everything],
        labels=labels,
        trials=trials,
        candidates=candidates,
        curve={shots: {"fold 1": answers(right)} for shots, right in (curve or {}).items()},
        chosen=chosen,
        seconds=Seconds(training=seconds or {}),
        **more,
    )


def test_document_is_read_back_and_short(tmp_path):
    choice = made({"zero_shot": (20, 30), "ape_t": (30, 30)})
    choice.write(tmp_path / "auto.json")
    assert read_choice(tmp_path) == choice
    text = (tmp_path / "auto.json").read_text()
    assert text == choice.to_json()
    assert len(text.splitlines()) < 140, "answers are one line each"
    (tmp_path / "auto.json").write_text(text.replace('"dear-auto"', '"other"'))
    with pytest.raises(DataError, match="record of a choice"):
        read_choice(tmp_path)
    assert read_choice(tmp_path / "nothing") is None


def test_ranking_agrees_with_plain_arithmetic():
    ranking = rank(made({"zero_shot": (20, 32), "ape_t": (32, 32), "coop": (36, 20)}))
    assert [one.method for one in ranking.standings] == ["ape_t", "coop", "zero_shot"]
    by_method = {one.method: one for one in ranking.standings}
    assert by_method["coop"].learned.value == 90
    assert by_method["coop"].novel.value == 50
    assert by_method["coop"].combined.value == pytest.approx(2 / (1 / 90 + 1 / 50))
    assert by_method["coop"].forgets.value == 30
    assert by_method["coop"].gains.value == 40
    assert by_method["ape_t"].behind == (0, 0, 0)
    for one in ranking.standings:
        assert one.learned.low <= one.learned.value <= one.learned.high


def test_interval_is_that_of_a_share():
    """The resampled interval of 30 right answers of 40 is near the normal one, 75 ± 13.4."""
    one = rank(made({"zero_shot": (30, 30)})).standings[0]
    assert one.learned.low == pytest.approx(75 - 13.4, abs=2.5)
    assert one.learned.high == pytest.approx(75 + 13.4, abs=2.5)


def test_weight_of_left_out_classes_decides():
    rights = {"zero_shot": (8, 36), "ape_t": (28, 36), "coop": (39, 12)}
    assert rank(made(rights)).chosen == "ape_t"
    assert rank(made(rights, keep_novel=0.0)).chosen == "coop"
    assert rank(made(rights, novel=False)).chosen == "coop"
    assert rank(made(rights, novel=False)).taken.novel is None


def test_weighted_mean_has_the_known_limits():
    learned, novel = np.array([90.0, 0.0]), np.array([45.0, 50.0])
    assert weighted_mean(learned, novel, 1.0).tolist() == pytest.approx([60.0, 0.0])
    assert weighted_mean(learned, novel, 0.0).tolist() == [90.0, 0.0]
    assert weighted_mean(learned, novel, 1e9)[0] == pytest.approx(45.0)


def test_within_noise_the_cheapest_is_taken_and_clear_gains_are_not_given_up():
    assert rank(made({"zero_shot": (30, 30), "ape_t": (31, 30)})).chosen == "zero_shot"
    assert rank(made({"zero_shot": (30, 30), "ape_t": (38, 30)})).chosen == "ape_t"


def test_noise_is_paired_over_photos():
    """Two answers more on the same photos are clear; the same difference from disjoint mistakes is noise."""
    nested = made({"zero_shot": (30, 30), "ape_t": (34, 30)})
    other = nested.candidates[1].answers["fold 1"]
    crossed = [other[-1 - index] - nested.labels[-1 - index] for index in range(40)]
    moved = [(label + gap) % CLASSES for label, gap in zip(nested.labels, crossed, strict=True)]
    answers = {**nested.candidates[1].answers, "fold 1": moved}
    second = nested.candidates[1].model_copy(update={"answers": answers})
    mixed = nested.model_copy(update={"candidates": [nested.candidates[0], second]})
    width = [one.gains.high - one.gains.low for one in (rank(nested).of("ape_t"), rank(mixed).of("ape_t"))]
    assert rank(mixed).of("ape_t").learned.value == rank(nested).of("ape_t").learned.value == 85
    assert width[0] < 0.8 * width[1]


KNOWN = Expected(spread=3.0, gains={"coop": Gain(learned=1.0, novel=0.0), "ape_t": Gain(learned=0.5, novel=0.0)})


def expected_scores(choice):
    return {one.method: one.expected for one in rank(choice).standings}


def test_few_photos_are_ranked_by_what_is_known_and_many_by_themselves():
    """Of 8 photos, 2 more right answers are worth less than what tables say; of 800, 2 in 8 decide."""
    few = {"zero_shot": (4, 6), "ape_t": (6, 6), "coop": (5, 6)}
    many = {method: (100 * learned, 100 * novel) for method, (learned, novel) in few.items()}
    assert rank(made(few, images=8)).chosen == "zero_shot", "within noise the cheapest, if nothing is known"
    assert rank(made(few, images=8, expected=KNOWN)).chosen == "coop"
    assert rank(made(many, images=800, expected=KNOWN)).chosen == "ape_t"


def test_expected_score_is_the_mean_of_photos_and_tables_by_their_certainty():
    rights = {"zero_shot": (20, 30), "ape_t": (26, 30), "coop": (22, 30)}
    photos = {one.method: one.combined.value for one in rank(made(rights)).standings}
    assert expected_scores(made(rights)) == photos
    sure, unsure = (KNOWN.model_copy(update={"spread": spread}) for spread in (1e-6, 100.0))
    assert expected_scores(made(rights, expected=unsure)) == pytest.approx(photos, abs=0.1)
    moved = 100 / (
        1 + math.exp(-1.0 * math.sqrt(10 / 16))
    )  # half of the photos are right: log-odds 0; 10 shots, not 16
    tables = expected_scores(made(rights, expected=sure))
    assert tables["coop"] == pytest.approx(2 / (1 / moved + 1 / 75), abs=1e-6)
    assert tables["zero_shot"] == pytest.approx(photos["zero_shot"])
    between = expected_scores(made(rights, expected=KNOWN))
    for method in ("ape_t", "coop"):
        assert min(photos[method], tables[method]) < between[method] < max(photos[method], tables[method])


def test_trials_are_never_more_certain_than_trials_usually_are():
    """800 photos alone would decide; if trials are usually off by much more than the spread of methods, tables do."""
    many = {"zero_shot": (400, 600), "ape_t": (600, 600), "coop": (500, 600)}
    doubtful = KNOWN.model_copy(update={"trials": 100.0})
    assert KNOWN.trials == 0
    assert rank(made(many, images=800, expected=KNOWN)).chosen == "ape_t"
    assert rank(made(many, images=800, expected=doubtful)).chosen == "coop"


def test_cheapest_of_those_with_nearly_the_best_expected_score_is_taken():
    alike = Expected(spread=1e-6, gains={"ape_t": Gain(learned=0.50, novel=0.0), "coop": Gain(learned=0.52, novel=0.0)})
    apart = alike.model_copy(update={"gains": {**alike.gains, "coop": Gain(learned=0.7, novel=0.0)}})
    rights = {"zero_shot": (20, 30), "ape_t": (26, 30), "coop": (26, 30)}
    assert rank(made(rights, expected=alike)).chosen == "ape_t"
    assert rank(made(rights, expected=alike)).best.method == "coop"
    assert rank(made(rights, expected=apart)).chosen == "coop"
    assert (
        "coop is as good within noise, but is no cheaper." in summary(made(rights, expected=alike, chosen="ape_t"))[1]
    )
    assert "it has the best expected score" in summary(made(rights, expected=apart, chosen="coop"))[1]


def test_a_method_that_is_behind_on_these_photos_is_not_called_ahead():
    sure = Expected(spread=1e-6, gains={"ape_t": Gain(learned=3.0, novel=0.0)})
    choice = made({"zero_shot": (20, 30), "ape_t": (22, 30), "coop": (40, 30)}, expected=sure, chosen="ape_t")
    assert rank(choice).chosen == "ape_t"
    assert "ahead" not in " ".join(summary(choice))


def test_method_of_which_nothing_is_known_is_expected_to_gain_nothing():
    rights = {"zero_shot": (20, 30), "other": (20, 30)}
    assert expected_scores(made(rights, expected=KNOWN))["other"] == pytest.approx(60.0)


def test_every_default_candidate_that_was_measured_is_known():
    known = expected_gains(DEFAULT)
    assert set(DEFAULT) - {"zero_shot", "linear_probe"} == set(known.gains), "linear_probe names no new classes"
    assert 1 < known.spread < 10


def test_clearly_behind_looks_at_shared_trials_only():
    choice = made({"zero_shot": (36, 36)})
    worse = made({"coop": (10, 36)}).candidates[0]
    assert is_clearly_behind(choice, worse)
    assert is_clearly_behind(choice, worse.model_copy(update={"answers": {"fold 1": worse.answers["fold 1"]}}))
    assert not is_clearly_behind(choice, made({"coop": (34, 36)}).candidates[0])


def test_sentences_for_people():
    times = {"zero_shot": 1.0, "ape_t": 5.0, "dear": 245.0}
    rights = {"zero_shot": (20, 36), "ape_t": (36, 36), "dear": (37, 36)}
    text = " ".join(summary(made(rights, seconds=times, chosen="ape_t")))
    assert "ape_t: about 90 % on photos like yours (plain CLIP 50 %), keeps what it knew." in text
    assert "dear is as good within noise, but takes 4 min longer." in text
    losing = made({"zero_shot": (4, 36), "coop": (40, 20)}, chosen="coop")
    assert "loses about 40 points on classes that it was not taught" in summary(losing)[0]
    assert "clearly ahead" in summary(losing)[1]
    assert (
        summary(made({"zero_shot": (30, 30), "ape_t": (30, 30)}))[0] == "Plain CLIP: about 75 % on photos like yours."
    )


def test_those_without_a_place_are_named():
    found = made({"zero_shot": (20, 20)})
    others = [
        CandidateRecord(method="coop", state="behind"),
        CandidateRecord(method="mmrl", state="not tried"),
        CandidateRecord(method="dear", state="failed", why="It needs more."),
    ]
    seconds = Seconds(estimated={"mmrl": 720.0})
    found = found.model_copy(update={"candidates": [*found.candidates, *others], "seconds": seconds})
    said = " ".join(notes(found))
    assert "clearly behind: coop." in said
    assert "Not tried: mmrl (would take about 12 min)." in said
    assert "Left out: dear (It needs more)." in said
    assert [row[0] for row in table(found)] == ["method", "zero_shot *"]


def test_card_does_not_depend_on_time():
    one, other = (
        made({"zero_shot": (20, 36), "ape_t": (36, 36), "dear": (37, 36)}, seconds={"dear": time}, chosen="ape_t")
        for time in (1.0, 500.0)
    )
    assert section(one) == section(other)
    assert summary(one) != summary(other)


def test_one_photo_per_class_has_no_ranking():
    found = made({}, chosen="ape_t").model_copy(update={"trials": [], "candidates": []})
    assert "nothing can be held out" in summary(found)[0]
    assert table(found) == []


def curve_of(accuracy, images=400):
    """A choice whose chosen method has a known accuracy by photos per class."""
    rights = {"zero_shot": (0, 0), "ape_t": (round(images * accuracy(8)), 0)}
    fewer = {str(shots): round(images * accuracy(shots)) for shots in (2, 4, 6)}
    return made(rights, images=images, chosen="ape_t", curve=fewer, novel=False)


def test_curve_is_extrapolated_as_it_was_made():
    found = more_photos(curve_of(lambda shots: 0.95 - 0.5 / shots))
    assert found.measured[8].value == pytest.approx(88.75, abs=0.2)
    assert found.gains[4].value == pytest.approx(100 * (0.5 / 10 - 0.5 / 14), abs=0.4)
    assert found.gains[16].value == pytest.approx(100 * (0.5 / 10 - 0.5 / 26), abs=0.6)
    assert found.sentence().startswith("4 more photos per class would bring about 1 point (")


def test_curve_is_silent_about_noise_and_says_that_nothing_is_gained():
    flat = more_photos(curve_of(lambda shots: 0.8))
    assert "hardly help" in flat.sentence()
    few = more_photos(curve_of(lambda shots: 0.7 + 0.1 * (shots == 6) + 0.05 * (shots == 8), images=12))
    assert "cannot be said" in few.sentence()
    assert more_photos(made({"zero_shot": (1, 1)})).sentence() == ""


def test_the_same_choice_has_the_same_ranking_in_any_process():
    choice = made({"zero_shot": (20, 32), "ape_t": (32, 31)})
    again = Choice.from_json(json.dumps(json.loads(choice.to_json())))
    assert rank(again) == rank(choice)
