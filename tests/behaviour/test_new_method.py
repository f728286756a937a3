"""A method of a user's own joins by registering, and its name is taken once."""

import pytest
import torch

import dear
from dear.errors import ConfigError
from helpers import build, plain_images


@pytest.fixture
def registry(monkeypatch):
    import dear.methods.registry as registry

    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    return registry


def test_another_method_joins_without_touching_anything(registry, tiny_clips, tmp_path):
    """Class offsets learned on frozen features: trained, saved and loaded by code that has never heard of them."""

    @dear.register
    class Offsets(dear.Method):
        name = "offsets"

        def __init__(self, clip, config, **more):
            super().__init__(clip, config, **more)
            self.offsets = torch.nn.Parameter(torch.zeros(2))

        def forward(self, clip, image, text, batch=None):
            out = super().forward(clip, image, text, batch)
            return dear.Output({"logits": out.logits + self.offsets}, out.features)

    clip = tiny_clips["plain"]
    model, images = build("offsets", clip, ["cat", "dog"]), plain_images(clip, 3)
    labels = torch.tensor([1, 1, 1])
    optimizer = torch.optim.AdamW(model.trainable().values(), lr=1.0)
    for _ in range(10):
        optimizer.zero_grad()
        model.loss(images, labels)["total"].backward()
        optimizer.step()
    assert model(images).logits.argmax(1).tolist() == [1, 1, 1]
    loaded = dear.load(model.save_pretrained(tmp_path / "offsets"), clip=clip)
    assert torch.equal(loaded(images).logits, model(images).logits)


def test_names_are_taken_once_and_typos_answered(registry):
    with pytest.raises(ConfigError, match=r"The method name 'dear' is taken by dear\.methods\.dear\.method:DearMethod"):

        @dear.register
        class Impostor(dear.Method):
            name = "dear"

    with pytest.raises(ConfigError, match="Nameless cannot be registered as a method: the class attribute 'name'"):

        @dear.register
        class Nameless(dear.Method):
            pass

    with pytest.raises(
        ConfigError, match=r"Linear cannot be registered as a method: it is not a subclass of dear\.Method"
    ):
        dear.register(torch.nn.Linear)
    with pytest.raises(ConfigError, match=r"No method is called 'deer'. Did you mean 'dear'\?"):
        dear.get_method("deer")
