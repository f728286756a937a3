"""An adapter that is saved over another one, with a crash or a full disk at every change of its folder."""

import pytest

import dear
from dear.errors import ArtefactError, CorruptArtefactError, ForeignArtefactError
from faults import crashing, filling, names_below
from helpers import move_parameters, varied_roles
from needs import needs


@pytest.fixture
def old(clip):
    model = dear.DeAR(clip, varied_roles(clip)).for_classes(["ant", "bee"])
    move_parameters(model)
    return model


@pytest.fixture
def others(clip, old):
    """The same method with other values, and one with other files and tensors."""
    same = dear.DeAR(clip, varied_roles(clip)).for_classes(["cow", "dog"])
    for parameter in same.method.parameters():
        parameter.data += 1.0
    return {"same files": same, "other files": dear.DeAR(clip, mask="all_mixed").for_classes(["cow", "dog"])}


def facts(model):
    """What an adapter is: the bits of its tensors, its classes and its settings."""
    tensors = {name: value.numpy().tobytes() for name, value in model.method.state_dict().items()}
    return tensors, model.classes.names, model.config.model_dump_json(), sorted(model.method.files)


@pytest.mark.parametrize(
    ("which", "what"), [("same files", "before"), ("other files", "before"), ("other files", "full")]
)
def test_a_mixture_of_two_adapters_is_always_noticed(clip, old, others, tmp_path, which, what):
    """The old one, the new one, or one sentence; saving again makes it whole and leaves nothing behind."""
    needs("/proc/self/fd")
    new, number, ended, seen = others[which], 0, None, set()
    whole = [facts(dear.load(one.save_pretrained(tmp_path / str(id(one))), clip)) for one in (old, new)]
    while ended is None or ended.how != "done" or ended.changes >= number:
        number += 1
        place = tmp_path / str(number)
        folder = old.save_pretrained(place / "out")

        def save(folder=folder):
            new.save_pretrained(folder, overwrite=True)

        ended = filling(save, place, number) if what == "full" else crashing(save, place, number, after=False)
        assert ended.how in ("done", "crashed", "refused"), ended
        try:
            seen.add(whole.index(facts(dear.load(folder, clip))))
        except (CorruptArtefactError, ForeignArtefactError):
            seen.add("refused")
        save()
        assert facts(dear.load(folder, clip)) == whole[1]
        assert not {name for name in names_below(place) if ".tmp" in name and what == "full"}
        assert number < 60
    assert seen == {0, 1, "refused"}
    assert number > 8


def test_an_adapter_with_a_file_of_another_one_is_refused(clip, old, others, tmp_path):
    """By hand: each single file of the new one beside the others of the old one."""
    fresh = others["same files"].save_pretrained(tmp_path / "new")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        folder = old.save_pretrained(tmp_path / name)
        (folder / name).write_bytes((fresh / name).read_bytes())
        with pytest.raises(ArtefactError, match=r"is damaged \(truncated or altered since it was saved\)"):
            dear.load(folder, clip)
