"""Names of files in the hub's cache, which other processes read while they change."""

from pathlib import Path

from dear.backbone.download import _link

SAFE = "open_clip_model.safetensors"


def test_a_name_that_gets_new_content_is_never_missing(tmp_path, monkeypatch):
    """Another process may look for the file at any time."""
    pointer, seen = tmp_path / SAFE, []
    pointer.write_bytes(b"damaged")
    (tmp_path / "blob").write_bytes(b"whole")
    link = Path.symlink_to
    monkeypatch.setattr(Path, "symlink_to", lambda *a: (seen.append(pointer.read_bytes()), link(*a)))
    _link(pointer, tmp_path / "blob")
    assert seen == [b"damaged"]
    assert pointer.is_symlink()
    assert pointer.read_bytes() == b"whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blob", SAFE]
