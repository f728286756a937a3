"""Files that are opened for reading: regular ones only, and nothing stays open."""

import os

import pytest

from dear.storage.files import NotRegularError, open_regular, read_regular


def test_what_is_refused_is_closed(tmp_path):
    """Each folder that was passed left a file descriptor open."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for _ in range(2):
        for name in ("fifo", "folder"):
            free = os.dup(0)
            os.close(free)
            with pytest.raises(NotRegularError, match="it is not a regular file"):
                open_regular(tmp_path / name)
            after = os.dup(0)
            os.close(after)
            assert after == free  # the lowest free descriptor is the same as before


def test_regular_files_are_read(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link") == b"content"
    with pytest.raises(NotRegularError, match="more than the 3 that fit"):
        read_regular(tmp_path / "file", most=3)
