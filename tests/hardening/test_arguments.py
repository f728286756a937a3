"""Arguments of wrong types: one sentence that names the argument, from every function that `dear` offers."""

import pytest
import torch

import dear
from dear.errors import DearError
from dear.retrieval.update import update_index
from small_runs import FEW

WRONG = {
    "fit": [
        {name: value}
        for name, values in {
            "data": (3, None, [1], "a\0b", "a" * 5000),
            "clip": (3, []),
            "shots": ("x", True, -1, 1.5, None),
            "seed": ("a", -1, 2.5),
            "half": (3, "both"),
            "method": (3, None, []),
            "recipe": (3, None),
            "train": (3, {"epochs": 1}),
            "out": (3, "", "a\0b", []),
            "cache": (3, ""),
            "cached_views": ("a", -1, 1.5),
            "workers": ("x", -3, 1.5, None),
            "template": (3, "", "no place"),
            "on_step": (3, "print"),
            "roles": (3, [], "a" * 5000),
            "mask": (3, None),
            "beta": ("x", True, [1], float("nan")),
        }.items()
        for value in values
    ],
    "evaluate": [
        {"run": 3},
        {"data": 3},
        {"half": 3},
        {"batch_size": 0},
        {"batch_size": "x"},
        {"cache": 3},
        {"workers": "a"},
        {"template": 3},
        {"run": None},
        {"data": "caltech101", "data_root": 3},
    ],
    "search": [
        {"source": 3, "index": None},
        {"query": 3},
        {"query": None},
        {"by": 3},
        {"top_k": 0},
        {"top_k": "x"},
        {"index": 3},
        {"text": 3},
        {"without": 3},
        {"without": ["size"]},
        {"swap": 3},
        {"swap": {"color": 3}},
        {"min_score": "x"},
        {"min_score": float("nan")},
    ],
    "index_images": [
        {"folder": 3},
        {"folder": "nowhere"},
        {"out": 3},
        {"clip": 3},
        {"roles": 3},
        {"kinds": 3},
        {"kinds": [3]},
        {"run": 3, "clip": None},
        {"batch_size": 0},
        {"workers": "x"},
    ],
    "discover_roles": [
        {"clip": 3},
        {"images": 3},
        {"out": 3},
        {"rule": 3},
        {"pool": 3},
        {"examples": "x"},
        {"max_images": "x"},
        {"max_images": 0},
        {"phrases": "x"},
        {"first_layer": 99},
        {"centroids": 3},
    ],
    "predict": [
        {"images": 3},
        {"images": [3]},
        {"images": ["a\x00b"]},
        {"batch_size": 0},
        {"batch_size": "x"},
        {"workers": "x"},
        {"readout": 3},
        {"top_k": "x"},
        {"classes": 3},
        {"classes": [1]},
        {"template": 3},
    ],
    "load": [{"folder": 3}, {"folder": None}, {"folder": "a\0b"}, {"clip": 3}, {"device": 3, "clip": None}],
    "load_clip": [
        {"name": 3},
        {"device": []},
        {"seed": "x"},
        {"precision": 3},
        {"pretrained": 3},
        {"name": "ViT-B-32", "pretrained": "a" * 5000},
        {"name": "local-dir:" + "a" * 300},
        {"name": "local-dir:a\x00"},
    ],
    "open_dataset": [{"source": 3}, {"source": "a\0b"}, {"template": 3}, {"source": "caltech101", "root": 3}],
    "DeAR": [{"clip": 3}, {"roles": 3}, {"config": 3}, {"text_tokens": "x"}, {"nonsense": 1}],
    "for_classes": [
        {"classes": 3},
        {"classes": "cat"},
        {"classes": {"cat"}},
        {"classes": []},
        {"template": 3},
        {"chunk": "a"},
        {"chunk": -1},
        {"chunk": 0},
    ],
    "Model": [{"clip": 3}, {"method": 3}, {"classes": 3}, {"chunk": "x"}],
    "forward": [{"images": "x"}, {"images": torch.zeros(2, 3)}, {"images": None}, {"given": 3, "images": None}],
    "others": [
        {"report": 3},
        {"report": None},
        {"get_method": 3},
        {"register": 3},
        {"register": int},
        {"RoleMap.load": 3},
        {"RoleMap.load": "a" * 5000},
        {"RoleMap.from_json": 3},
        {"save": 3},
        {"save": ""},
    ],
}


@pytest.fixture
def calls(clip, model, photos, tmp_path):
    """Every function, with arguments that work but for the one that is put in."""
    index = tmp_path / "index"

    def searched(**changed):
        if not index.exists():
            update_index(model, photos, index)
        return dear.search(**{"source": model, "query": "x", "index": index, **changed})

    def others(**changed):
        ((name, value),) = changed.items()
        called = {"RoleMap.load": dear.RoleMap.load, "RoleMap.from_json": dear.RoleMap.from_json}
        called |= {"save": model.save_pretrained}
        return (called.get(name) or getattr(dear, name))(value)

    indexed = {"folder": photos, "out": tmp_path / "heads", "clip": clip, "roles": model.method.roles}
    discovered = {"clip": clip, "images": photos, "out": tmp_path / "roles", "sentence_model": "none of this name"}
    fitted = {"data": photos, "clip": clip, "shots": 1, "train": FEW, "mask": "all_mixed", "cache": tmp_path / "cache"}
    return {
        "fit": lambda **changed: dear.fit(**{**fitted, "cached_views": 1, **changed}),
        "evaluate": lambda **changed: dear.evaluate(**{"run": model, "data": photos, **changed}),
        "search": searched,
        "index_images": lambda **changed: dear.index_images(**{**indexed, **changed}),
        "discover_roles": lambda **changed: dear.discover_roles(**{**discovered, **changed}),
        "predict": lambda **changed: model.predict(**{"images": [photos / "ant" / "0.png"], **changed}),
        "load": lambda **changed: dear.load(**{"folder": saved(model, tmp_path), "clip": clip, **changed}),
        "load_clip": lambda **changed: dear.load_clip(**{"name": "world", **changed}),
        "open_dataset": lambda **changed: dear.open_dataset(**{"source": photos, **changed}),
        "DeAR": lambda **changed: dear.DeAR(**{"clip": clip, "mask": "all_mixed", **changed}),
        "for_classes": lambda **changed: model.for_classes(**{"classes": ["cat", "dog"], **changed}),
        "Model": lambda **changed: dear.Model(**{"clip": clip, "method": model.method, **changed}),
        "forward": lambda **changed: model(**changed),
        "others": others,
    }


def saved(model, folder):
    return model.save_pretrained(folder / "adapter", overwrite=True)


@pytest.mark.covers("C7")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_type_is_refused_in_one_sentence(calls, name):
    for wrong in WRONG[name]:
        try:
            calls[name](**wrong)
        except DearError as error:
            said = str(error)
        except Exception as error:
            raise AssertionError(f"{name} with {str(wrong)[:80]}: {type(error).__name__}: {error}") from error
        else:
            raise AssertionError(f"{name} takes {str(wrong)[:80]}")
        assert "\n" not in said, said
        assert len(said) < 600, said
