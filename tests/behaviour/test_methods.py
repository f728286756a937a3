"""One suite for every registered method: what the engine may rely on."""

import inspect
from dataclasses import replace

import pytest
import torch

import dear
from dear.errors import ConfigError
from dear.methods.base import Method

METHODS = dear.list_methods()
MEMBERS = [name for name, _ in inspect.getmembers(Method) if not name.startswith("_")]


@pytest.fixture(params=METHODS)
def method(request, clip, roles):
    cls = dear.get_method(request.param)
    method = cls(clip, roles) if request.param == "dear" else cls(clip)
    method.set_classes(["cat", "dog"], "a photo of a {}.")
    return method


def test_both_methods_are_here():
    assert METHODS == ["dear", "zero_shot"]


def test_meets_the_protocol(method):
    assert len(MEMBERS) > 8
    assert not [name for name in [*MEMBERS, "clip", "name"] if not hasattr(method, name)]


def test_prefix_then_rest_is_the_whole(method, images):
    with torch.no_grad():
        assert torch.equal(method.from_prefix(method.image_prefix(images)).logits, method(images).logits)


def test_batches_do_not_matter(method, images):
    with torch.no_grad():
        whole = method(images).logits
        parts = torch.cat([method(image[None]).logits for image in images])
    assert torch.allclose(whole, parts, atol=1e-4)


def test_loss_trains_exactly_what_is_trainable(method, images):
    terms = method.loss(method(images), torch.tensor([0, 1, 0]), images=images)
    assert terms.total.ndim == 0
    assert terms.scalars()["total"] == pytest.approx(terms.total.item())
    if method.trainable():
        terms.total.backward()
    got = {name for name, p in method.named_parameters() if p.grad is not None}
    assert got == set(method.trainable())


def test_disabled_is_zero_shot(method, clip, images):
    zero_shot = dear.ZeroShot(clip)
    zero_shot.set_classes(["cat", "dog"])
    with method.disabled():
        assert torch.equal(method(images).logits, zero_shot(images).logits)


def test_saved_and_loaded(method, clip, images, tmp_path):
    loaded = dear.load(method.save_pretrained(tmp_path / "a"), clip=clip)
    assert type(loaded) is type(method)
    with torch.no_grad():
        assert torch.equal(loaded(images).logits, method(images).logits)


def test_another_method_joins_without_touching_anything(clip, images, tmp_path, monkeypatch):
    """Class offsets learned on frozen features: trained, saved and loaded by code that has never heard of them."""
    import dear.methods.registry as registry

    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))

    @dear.register
    class Offsets(dear.ZeroShot):
        name = "offsets"

        def __init__(self, clip, classes=2):
            super().__init__(clip)
            self.offsets = torch.nn.Parameter(torch.zeros(classes))

        def from_prefix(self, prefix, *, strategy="fusion"):
            out = super().from_prefix(prefix, strategy=strategy)
            return replace(out, logits=out.logits + self.offsets)

        def trainable(self):
            return {"offsets": self.offsets}

        def settings(self):
            return {"classes": len(self.offsets)}

        @classmethod
        def from_artefact(cls, clip, settings, files):
            return cls(clip, **settings)

    method = dear.get_method("offsets")(clip)
    method.set_classes(["cat", "dog"])
    labels = torch.tensor([1, 1, 1])
    optimizer = torch.optim.AdamW(method.trainable().values(), lr=1.0)
    for _ in range(10):
        optimizer.zero_grad()
        method.loss(method(images), labels, images=images).total.backward()
        optimizer.step()
    assert method(images).logits.argmax(1).tolist() == [1, 1, 1]
    loaded = dear.load(method.save_pretrained(tmp_path / "offsets"), clip=clip)
    assert torch.equal(loaded(images).logits, method(images).logits)


def test_names_are_taken_once_and_typos_answered():
    with pytest.raises(ConfigError, match=r"The method name 'dear' is taken by dear\.methods\.dear\.model"):

        @dear.register
        class Impostor(dear.ZeroShot):
            name = "dear"

    with pytest.raises(ConfigError, match="Nameless needs a class attribute 'name'"):

        @dear.register
        class Nameless:
            pass

    with pytest.raises(ConfigError, match=r"No method is called 'deer'. Did you mean 'dear'\?"):
        dear.get_method("deer")
