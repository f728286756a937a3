"""Downloads from an imitation of the hub: what is requested, what is shown, and what is said when it goes wrong."""

import dear

OPENAI = "timm/vit_base_patch16_clip_224.openai"


def test_weights_come_from_the_imitation(hub, clip):
    loaded = dear.load_clip("ViT-B-16-quickgelu", "openai")
    assert loaded.weights_sha256 == clip.weights_sha256
    assert hub.seen(f"{OPENAI}/resolve/")
    assert any(one.cdn and one.method == "GET" for one in hub.requests)
