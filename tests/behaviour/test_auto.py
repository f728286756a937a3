"""`--method auto`: honest trials, the same result every time, and nothing that goes wrong ends it."""

import errno
import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

import dear
from dear.data.open import open_dataset
from dear.engine.job import make_job
from dear.engine.run import Reading
from dear.errors import ConfigError, FolderError, TrainingError
from dear.evaluation.choice import read_choice
from dear.workflows import auto, auto_search, auto_trials
from dear.workflows.auto_candidates import names_of
from dear.workflows.auto_search import Pace, in_turn
from helpers import make_photos

METHODS = "tip_adapter,linear_probe,clip_adapter"
CLASSES = ("cat", "dog", "hot air balloon", "tea pot")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return make_photos(tmp_path_factory.mktemp("photos"), CLASSES, 6)


@pytest.fixture
def fit(photos, clip):
    def fit(out=None, **options):
        options = {"candidates": METHODS, "cached_views": 2, "epochs": 2, "budget": "1h", "workers": 0, **options}
        return dear.fit(photos, clip, method="auto", out=out, **options)

    return fit


def timeless(folder):
    """auto.json without what a clock measured, and the bytes of adapter and card."""
    content = json.loads((folder / "auto.json").read_text())
    del content["seconds"]
    return content, *((folder / name).read_bytes() for name in ("adapter_model.safetensors", "README.md"))


def stopping(monkeypatch, error, at):
    """Raise an error instead of the trial of a number."""
    real, count = auto_trials.answer, [0]

    def answer(*arguments):
        count[0] += 1
        if count[0] == at:
            raise error
        return real(*arguments)

    monkeypatch.setattr(auto_search, "answer", answer)


@pytest.fixture
def trials(photos):
    job = make_job(open_dataset(str(photos)), shots=5, seed=3)
    return job, auto_trials.make_trials(job)


def test_every_photo_is_held_out_once_and_no_class_is_taught_that_is_left_out(trials):
    job, found = trials
    learned = [one for one in found if one.kind == "learned"]
    assert sorted(item.id for one in learned for item in one.tested) == sorted(item.id for item in job.items)
    for one in found:
        assert not {item.id for item in one.taught} & {item.id for item in one.tested}
    first, second = (one for one in found if one.kind == "novel")
    assert not set(first.taught_classes) & set(first.tested_classes)
    assert (first.taught_classes, first.tested_classes) == (second.tested_classes, second.taught_classes)
    assert {item.label for item in first.taught} == set(first.taught_classes)


def test_held_out_photos_cannot_be_reached_by_the_training(trials, clip):
    job, found = trials
    for one in found:
        part = auto_trials.trial_job(job, one, clip).job if job.method == "zero_shot" else None
        data = auto_trials._among(job, one.taught_classes, one.taught)
        assert part is None or part.dataset == data
        reached = {item.id for split in (data.train, data.val, data.test) for item in split}
        assert not reached & {item.id for item in one.tested}


def test_result_is_an_ordinary_run_with_the_record_of_the_choice(fit, tmp_path):
    model = fit(tmp_path / "run")
    choice = read_choice(tmp_path / "run")
    assert model.name == choice.chosen
    assert dear.load(tmp_path / "run", clip=model.clip).name == choice.chosen
    assert [one.method for one in choice.candidates] == ["zero_shot", "tip_adapter", "linear_probe", "clip_adapter"]
    assert {one.state for one in choice.candidates} == {"tried"}
    assert not (tmp_path / "run" / "auto").exists()
    assert "## How the method was chosen" in (tmp_path / "run" / "README.md").read_text()
    probe, plain = choice.candidate("linear_probe"), choice.candidate("zero_shot")
    assert not probe.names_novel
    assert probe.answers["left out 1"] == plain.answers["left out 1"]
    model.save_pretrained(tmp_path / "run", overwrite=True)
    assert "## How the method was chosen" in (tmp_path / "run" / "README.md").read_text()


def test_same_bytes_again_and_after_a_kill(fit, tmp_path, monkeypatch):
    fit(tmp_path / "whole")
    fit(tmp_path / "again")
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "again")
    with monkeypatch.context() as patch:
        stopping(patch, SystemExit("killed"), at=9)
        with pytest.raises(SystemExit):
            fit(tmp_path / "killed")
    stored = sorted(path.name for path in (tmp_path / "killed" / "auto").iterdir())
    assert len(stored) == 8
    with monkeypatch.context() as patch:
        stopping(patch, AssertionError("a stored answer was computed again"), at=24)
        fit(tmp_path / "killed", resume=True)
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "killed")


def test_photos_pass_the_towers_once(fit, clip, monkeypatch):
    seen, real = [], clip.vision.embed
    monkeypatch.setattr(clip.vision, "embed", lambda images: (seen.append(len(images)), real(images))[1])
    fit(candidates="clip_adapter")
    photos, views = 4 * 4, 2
    assert sum(seen) == photos * (1 + views)


def test_first_interrupt_takes_the_best_so_far(fit, tmp_path, monkeypatch):
    stopping(monkeypatch, KeyboardInterrupt(), at=10)
    fit(tmp_path / "run")
    choice = read_choice(tmp_path / "run")
    states = {one.method: one.state for one in choice.candidates}
    assert choice.interrupted
    assert states == {
        "zero_shot": "tried",
        "tip_adapter": "not tried",
        "linear_probe": "not tried",
        "clip_adapter": "not tried",
    }
    assert choice.chosen == "zero_shot"


def test_interrupt_before_anything_is_known_ends_it(fit, tmp_path, monkeypatch):
    stopping(monkeypatch, KeyboardInterrupt(), at=2)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "run")


def test_candidate_that_fails_is_named_and_left_out(fit, tmp_path, monkeypatch):
    stopping(monkeypatch, TrainingError("The loss is not finite."), at=8)
    fit(tmp_path / "run")
    choice = read_choice(tmp_path / "run")
    assert choice.candidate("tip_adapter").state == "failed"
    assert choice.candidate("tip_adapter").why == "The loss is not finite."
    assert choice.candidate("clip_adapter").state == "tried"


def test_candidates_that_do_not_fit_are_not_tried(fit, tmp_path):
    fit(tmp_path / "run", budget="0.001s")
    choice = read_choice(tmp_path / "run")
    assert [one.state for one in choice.candidates] == ["tried", "not tried", "not tried", "not tried"]
    assert choice.seconds.estimated.keys() >= {"tip_adapter", "clip_adapter"}


def test_preparation_does_not_lengthen_the_estimate():
    """Three seconds before the first of 600 quick steps were multiplied by the steps: 18 minutes instead of 9 s."""
    pace = Pace()
    assert [pace.whole(step, 600, 3.0 + step * 0.01) for step in (1, 2, 200)] == [None] * 3
    assert pace.whole(400, 600, 7.0) == pytest.approx(9.0, rel=0.01)


def test_plain_clip_is_waited_for_however_short_the_budget_is(fit, tmp_path, monkeypatch):
    """Nothing can be ranked without plain CLIP, and a node may need longer to start than the budget is."""

    class Late:
        """Other machines whose answers come after the budget."""

        candidates = ()

        def ask(self, method, trial):
            pass

        def cancel(self, method=None):
            pass

        def answers(self, method, trial, seconds):
            if seconds is not None:
                return None
            one = next(one for one in self.candidates if one.method == method)
            ready = auto_trials.trial_job(one.job, trial, one.model.clip)
            return auto_trials.answer(one.job, trial, ready, Reading(0, tmp_path / "cache"), lambda *_: None)

    late, search = Late(), auto_search.Search

    def watched(candidates, *rest, **options):
        late.candidates = candidates
        return search(candidates, *rest, **options)

    monkeypatch.setattr(auto, "Search", watched)
    monkeypatch.setattr(auto, "_elsewhere", lambda options, trials: nullcontext(late))
    fit(tmp_path / "run", budget="1s")
    choice = read_choice(tmp_path / "run")
    assert choice.chosen == "zero_shot"
    assert {one.method for one in choice.candidates if one.state == "tried"} == {"zero_shot"}


def test_a_curve_that_fails_does_not_end_the_search(fit, tmp_path, monkeypatch):
    real_answer, real_rank = auto_search.answer, auto_search.rank

    def no_memory(job, trial, *rest):
        if trial.shots is not None:
            raise MemoryError
        return real_answer(job, trial, *rest)

    def clip_adapter_first(choice):
        found = real_rank(choice)
        has_it = any(one.method == "clip_adapter" for one in found.standings)
        return replace(found, chosen="clip_adapter") if has_it else found

    monkeypatch.setattr(auto_search, "answer", no_memory)
    monkeypatch.setattr(auto_search, "rank", clip_adapter_first)
    fit(tmp_path / "run")
    choice = read_choice(tmp_path / "run")
    assert choice.chosen == "clip_adapter"
    assert choice.curve == {}


def test_a_disk_that_is_full_for_the_card_is_one_sentence(fit, tmp_path, monkeypatch):
    def full(folder, markdown):
        raise OSError(errno.ENOSPC, "No space left on device", str(folder / "README.md"))

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("dear.workflows.train.add_to_card", full)
        with pytest.raises(FolderError, match=r"README\.md cannot be read or written \(No space left on device\)"):
            fit(run)
    fit(run, resume=True)
    assert "combined" in (run / "README.md").read_text(), "the section about the choice"


def test_resumed_choice_is_not_made_again(fit, tmp_path, monkeypatch):
    fit(tmp_path / "run")
    monkeypatch.setattr(auto, "_searched", None)
    (tmp_path / "run" / "auto").mkdir()  # as a crash leaves it between writing the choice and removing the answers
    (tmp_path / "run" / "auto" / "zero_shot-fold-1.json").write_text("{}")
    fit(tmp_path / "run", resume=True)
    assert not (tmp_path / "run" / "auto").exists()
    with pytest.raises(ConfigError, match="begun with other photos or options"):
        fit(tmp_path / "run", resume=True, keep_novel=0.5)


def test_named_method_and_choice_do_not_mix(fit, photos, clip, tmp_path):
    dear.fit(photos, clip, method="zero_shot", out=tmp_path / "run")
    with pytest.raises(ConfigError, match="was named, not chosen"):
        fit(tmp_path / "run", resume=True)
    fit(tmp_path / "run", overwrite=True)
    assert read_choice(tmp_path / "run") is not None
    dear.fit(photos, clip, method="zero_shot", out=tmp_path / "run", overwrite=True)
    assert read_choice(tmp_path / "run") is None


def test_killed_while_overwriting_resumes(fit, photos, clip, tmp_path, monkeypatch):
    dear.fit(photos, clip, method="clip_adapter", out=tmp_path / "run", epochs=1)
    with monkeypatch.context() as patch:
        stopping(patch, SystemExit("killed"), at=3)
        with pytest.raises(SystemExit):
            fit(tmp_path / "run", overwrite=True)
    assert dear.load(tmp_path / "run", clip=clip).name == "clip_adapter", "the old run is whole until the new one is"
    fit(tmp_path / "run", resume=True)
    fit(tmp_path / "other")
    assert timeless(tmp_path / "run") == timeless(tmp_path / "other")


def test_killed_before_the_first_answer_of_an_overwriting_search_resumes(fit, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    fit(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(auto, "_searched", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path / "run", overwrite=True)
    fit(tmp_path / "run", resume=True)
    assert read_choice(tmp_path / "run").candidates
    assert not (tmp_path / "run" / "auto").exists()


def test_one_photo_per_class(fit, tmp_path):
    model = fit(tmp_path / "run", shots=1, candidates=None)
    assert model.name == read_choice(tmp_path / "run").chosen == "ape_t"
    assert fit(shots=1).name == "tip_adapter", "the cheapest of the candidates that were named"


def test_few_classes_are_not_left_out(tmp_path, clip):
    photos = make_photos(tmp_path / "photos", CLASSES[:3], 4)
    options = {"candidates": "tip_adapter", "cached_views": 2, "workers": 0}
    dear.fit(photos, clip, method="auto", out=tmp_path / "run", **options)
    assert {one.kind for one in read_choice(tmp_path / "run").trials} == {"learned"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"beta": 0.5}, "'beta' is a setting of one method"),
        ({"roles": "auto"}, "never searches for a role map"),
        ({"no_cache": True}, "needs a cache"),
        ({"cached_views": 0}, "trains on cached views"),
        ({"candidates": "tip_adaptor"}, "No method is called 'tip_adaptor'"),
        ({"budget": "soon"}, "budget is 'soon': give a time such as 90s, 5m or 1h"),
        ({"keep_novel": -1.0}, "keep_novel is -1.0"),
    ],
)
def test_wrong_options_are_one_sentence(fit, tmp_path, options, words):
    with pytest.raises(ConfigError, match=words):
        fit(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_options_of_the_choice_need_auto(photos, clip):
    for option in ({"budget": "5m"}, {"candidates": "coop"}, {"keep_novel": 0.0}):
        with pytest.raises(ConfigError, match="works with method='auto' only"):
            dear.fit(photos, clip, method="zero_shot", **option)


def test_caches_that_do_not_fit_are_refused(fit, tmp_path, monkeypatch):
    usage = auto.check_room.__globals__["shutil"].disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("dear.workflows.auto_candidates.shutil.disk_usage", lambda folder: usage)
    with pytest.raises(ConfigError, match=r"The caches need 0\.0 GB and .*cache has 0\.0 GB"):
        fit(tmp_path / "run")


def test_cheapest_come_first_and_plain_clip_is_always_tried():
    from dear.options.parts import Fit
    from dear.options.reading import check

    names = names_of(check(Fit, {"data": "x", "method": "auto", "candidates": "dear,tip_adapter_f,textrefiner"}))
    assert names == ["zero_shot", "tip_adapter_f", "textrefiner", "dear"]


def test_expensive_methods_are_tried_in_the_order_of_what_they_gained_elsewhere():
    methods = ["zero_shot", "gda", "clip_adapter", "coop", "own_method", "mmrl", "clip_lora"]  # in the order of cost
    order = [one.method for one in in_turn([SimpleNamespace(method=name) for name in methods])]
    assert order[:3] == methods[:3], "methods on features by their cost"
    assert order[3] == "clip_lora"
    assert order[-1] == "own_method", "nothing is known about it"


def test_command_prints_ranking_reason_and_report(dear_, one_clip, photos, tmp_path):
    words = ["--candidates", METHODS, "--cached-views", "2", "--epochs", "2", "--budget", "1h", "--clip", "tiny"]
    code, out, err = dear_("train", photos, "--method", "auto", "--out", tmp_path / "run", *words)
    assert code == 0, err
    assert "trying 4 methods on 16 photos, 6 trainings each" in err
    assert out.splitlines()[0].split() == ["method", "learned", "left", "out", "combined", "expected", "time", "size"]
    assert "on photos like yours" in out
    assert all(len(line) <= 80 for line in out.split("done:")[0].splitlines())
    choice = read_choice(tmp_path / "run")
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert f"method: {choice.chosen}\n" in config, "the config file repeats the training"
    assert "budget" not in config
    code, _, err = dear_("report", tmp_path / "run")
    assert code == 0, err
    assert "How the method was chosen" in (tmp_path / "run" / "report.html").read_text()
