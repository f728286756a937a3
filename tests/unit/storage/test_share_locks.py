"""Shares of a folder: several at once, never beside the whole, and each held by one process."""

import json
import os
import socket
from contextlib import ExitStack

import pytest

from dear.errors import FolderBusyError
from dear.storage.locks import LOCK, SHARES, check_ours, kind_of, locked, locked_share


def refused(holder):
    with pytest.raises(FolderBusyError, match=f"process {os.getpid()} on {socket.gethostname()} since "), holder:
        raise AssertionError


def test_shares_of_one_division_are_locked_at_once(tmp_path):
    with locked_share(tmp_path, "grid", 1, 3), locked_share(tmp_path, "grid", 3, 3):
        assert kind_of(tmp_path) == "grid"
        refused(locked_share(tmp_path, "grid", 3, 3))
        refused(locked_share(tmp_path, "grid", 3, 4))
        refused(locked(tmp_path, "grid"))
        check_ours(tmp_path, "paper", resume=False, overwrite=False)  # locks and markers are not content
    with locked(tmp_path, "grid"):
        assert not (tmp_path / SHARES).exists()
        refused(locked_share(tmp_path, "grid", 1, 3))
    with locked_share(tmp_path, "grid", 3, 4):
        pass


def test_what_another_process_is_writing_is_left_alone(tmp_path):
    with locked_share(tmp_path, "grid", 1, 2):
        (tmp_path / ".table.csv.abcdefgh.tmp").write_text("half")
        with locked_share(tmp_path, "grid", 2, 2):
            assert (tmp_path / ".table.csv.abcdefgh.tmp").exists()


@pytest.mark.parametrize("place", [LOCK, f"{SHARES}/2-of-4.lock"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_holder_on_another_machine(tmp_path, place, gone):
    """Its locks may not be seen here, but its signature and heartbeat are; a refusal leaves them as they are."""
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    signature = json.dumps({"host": "elsewhere", "pid": 7, "since": "2026-11-17"})
    path.write_text(signature)
    if gone:
        os.utime(path, (1, 1))
    for holder in (locked_share(tmp_path, "grid", 1, 3), locked(tmp_path, "grid")):
        with ExitStack() as stack:
            if not gone:
                stack.enter_context(pytest.raises(FolderBusyError, match="process 7 on elsewhere since 2026-11-17"))
            with holder:
                assert gone
        assert gone or path.read_text() == signature


def test_the_signature_of_a_killed_process_counts_for_nothing(tmp_path):
    (tmp_path / SHARES).mkdir()
    killed = {"host": socket.gethostname(), "pid": os.getppid(), "since": "2026-11-17"}  # its number is used again
    (tmp_path / SHARES / "2-of-4.lock").write_text(json.dumps(killed))
    with locked_share(tmp_path, "grid", 1, 3):
        pass
    with locked(tmp_path, "grid"):
        pass
