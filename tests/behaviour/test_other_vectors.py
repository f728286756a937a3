"""Files with other settings than those that came with the methods: what they say is read, nothing is taken as known."""

import itertools
import json
from dataclasses import replace

import torch
from safetensors.torch import save_file

from vectors import compare, feature_methods
from vectors.__main__ import OWN, check, main
from vectors.compare import optimiser_numbers, read_pair
from vectors.readers import reader_of


def write(folder, facts, tensors):
    """The pair in a folder; the path of its tensors."""
    (folder / "other.json").write_text(json.dumps(facts))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "other.safetensors")
    return folder / "other.safetensors"


def agrees(folder, facts, tensors):
    fits, line = check(write(folder, facts, tensors))
    assert fits, line


def searched_plainly(facts, tensors, scale, steps):
    """The file of Tip-Adapter after the published search over another grid."""
    keys, values, settings = tensors["cache/keys"], tensors["cache/values"], facts["settings"]
    betas, alphas = ([i * (end - 0.1) / n + 0.1 for i in range(n)] for end, n in zip(scale, steps, strict=True))

    def logits(part, beta, alpha):
        affinity = tensors[f"input/{part}_features"] @ keys
        return tensors[f"out/zero_shot_{part}"] + alpha * torch.exp(-beta * (1 - affinity)) @ values

    grid = torch.stack([torch.stack([logits("val", beta, alpha) for alpha in alphas]) for beta in betas])
    right = (grid.argmax(-1) == tensors["input/val_labels"]).sum(-1)
    best, found = 0, [0.0, 0.0]
    for (i, beta), (j, alpha) in itertools.product(enumerate(betas), enumerate(alphas)):
        if right[i, j] > best:
            best, found = right[i, j], [beta, alpha]
    tensors = {
        **tensors,
        "search/beta": torch.tensor(betas),
        "search/alpha": torch.tensor(alphas),
        "out/logits_val_grid": grid,
        "out/acc_val_grid": right * 100 / grid.shape[2],
        "out/logits_test_best": logits("test", *found),
    }
    settings = {**settings, "search_scale": scale, "search_step": steps}
    return {**facts, "found": found, "settings": settings}, tensors


def test_a_search_over_large_numbers_is_followed(tmp_path):
    facts, tensors = searched_plainly(*read_pair(OWN / "tip_adapter.json"), [50, 80.7], [7, 2])
    exact = torch.tensor(facts["found"], dtype=torch.float64)
    assert float((exact.float() - exact).abs().max()) > 1e-6  # a method keeps them in single precision
    agrees(tmp_path, facts, tensors)


def test_a_search_that_decides_nothing_finds_the_first_values(tmp_path):
    facts, tensors = read_pair(OWN / "tip_adapter.json")
    always = (tensors["out/logits_val_grid"].argmax(-1) == tensors["input/val_labels"]).flatten(0, 1).all(0)
    assert 0 < int(always.sum()) < len(always)
    for name in ("input/val_features", "input/val_labels", "out/zero_shot_val", "out/logits_val_init"):
        tensors[name] = tensors[name][always]
    facts, tensors = searched_plainly(facts, tensors, [7, 3], [4, 3])
    assert facts["found"] == [0.1, 0.1]
    agrees(tmp_path, facts, tensors)


def test_the_search_has_the_keys_of_the_epoch_that_was_selected(monkeypatch, tmp_path):
    facts, tensors = read_pair(OWN / "tip_adapter_f.json")
    right, keys = feature_methods.searched, []

    def noted(run):
        keys.append(run.model.method.keys.detach().clone())
        return right(run)

    monkeypatch.setattr(feature_methods, "searched", noted)
    for epoch in (0, 1):
        facts["settings"]["selected_epoch_by_peer"] = epoch
        agrees(tmp_path, facts, tensors)
    assert torch.equal(keys[0], tensors["step1/keys"])
    assert torch.equal(keys[1], tensors["step2/keys"])


def test_files_without_novel_classes_are_read(tmp_path):
    for stem in ("clip_adapter", "mm_adapter"):
        facts, tensors = read_pair(OWN / f"{stem}.json")
        del facts["novel_classes"]
        for name in ("out/logits_novel", "out/logits_all"):
            tensors.pop(name, None)
        agrees(tmp_path, facts, tensors)


def test_start_words_win_over_contexts_of_each_class(tmp_path):
    facts, tensors = read_pair(OWN / "textrefiner.json")
    facts["settings"] |= {"csc": True, "n_ctx": 16}  # both are without effect beside words
    agrees(tmp_path, facts, tensors)


def test_files_without_sentences_are_read():
    facts, _ = read_pair(OWN / "ape.json")
    facts["settings"]["cupl_prompts"] = None
    assert feature_methods.described(facts).descriptions == {}


def test_other_files_of_a_folder_do_not_stop_the_comparison(tmp_path, monkeypatch, capsys):
    write(tmp_path, *read_pair(OWN / "clip_adapter.json"))
    (tmp_path / "weights.safetensors").write_bytes(b"no pair")
    (tmp_path / "broken.safetensors").write_bytes(b"no tensors")
    (tmp_path / "broken.json").write_text("{}")
    monkeypatch.setattr("sys.argv", ["vectors", str(tmp_path)])
    assert main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["broken", "other", "1"]
    assert lines[-1] == "1 passed, 1 failed"


def test_what_rounding_decides_is_computed_in_double_precision(monkeypatch):
    path, right, given = OWN / "clip_adapter.safetensors", compare.compare_in, []

    def rounded(dtype, *args):
        given.append(dtype)
        found, unread = right(dtype, *args)
        coarse = {"step2/up.weight": 1.0} if dtype == torch.float32 else {}
        return [replace(one, error=coarse.get(one.name, one.error)) for one in found], unread

    monkeypatch.setattr(compare, "compare_in", rounded)
    fits, line = check(path)
    assert fits
    assert given == [torch.float32, torch.float64]
    assert ", 1 in double precision" in line
    monkeypatch.setattr(compare, "compare_in", lambda dtype, *args: rounded(torch.float32, *args))
    assert not check(path)[0]


def test_the_first_step_of_adam_takes_the_files_gradients_in_double_precision():
    for stem, name, dtype, taken in (
        ("ape_t", "res", torch.float64, True),
        ("ape_t", "res", torch.float32, False),
        ("clip_adapter", "up.weight", torch.float64, False),
    ):
        facts, tensors = read_pair(OWN / f"{stem}.json")
        run = compare.start(reader_of(facts)(facts, tensors), facts, tensors, dtype)
        zeros = torch.zeros_like(tensors[f"grad/{name}"])
        found = compare.followed(run, {"total": {name: zeros}})["total"][name]
        assert torch.equal(found, tensors[f"grad/{name}"] if taken else zeros)


def test_the_optimiser_is_read_from_its_words(tmp_path):
    facts = {"settings": {"optimiser": "adamw betas 0.9/0.99 eps 1e-4 weight_decay 0.01"}}
    assert optimiser_numbers(facts) == {"betas": (0.9, 0.99), "eps": 1e-4, "decay": 0.01}
    assert optimiser_numbers({"settings": {}}) == {}
    facts, tensors = read_pair(OWN / "clip_adapter.json")
    facts["settings"]["optimiser"] = "sgd momentum 0.5 weight_decay 0.5"
    path = write(tmp_path, facts, tensors)
    wrong = {d.name for d in compare.compare(path, reader_of(facts))[0] if not d.fits}
    assert {"step2/down.weight", "step2/up.weight"} <= wrong
