"""Homes, temporary folders and working folders that are missing or cannot be written, and every umask.

Each command runs in a forked child that has given up root's right to ignore permissions, so that those of the folders
hold for whoever runs the tests. It must succeed, or say one sentence and write nothing anywhere else.
"""

import ctypes
import os
import pwd
import stat
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from unittest.mock import patch

import pytest

from dear.cli import main
from faults import FORK
from helpers import make_photos
from needs import needs, needs_posix

CAPABILITIES = 0x20080522
"""The version of the system call that sets them."""


def obey_permissions():
    """Give up all capabilities, among them the one to ignore permissions; nothing changes for ordinary users."""
    header, none = (ctypes.c_uint32 * 2)(CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")


def typed(words, place, *, where=None, change=lambda: None, **environment):
    """Type a command in a child; its exit code, what it printed, and what it said."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"

        def run():
            for number, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            os.chdir(where or place)
            os.environ.pop("DEAR_CACHE")
            for name, value in environment.items():
                os.environ.pop(name, None) if value is None else os.environ.update({name: str(value)})
            tempfile.tempdir, sys.argv = None, ["dear", *map(str, words)]
            code = 1
            try:
                obey_permissions()
                change()
                main()
            except SystemExit as stop:
                code = int(stop.code or 0)
            except BaseException:  # noqa: BLE001  # whatever it is, it is what we look for
                traceback.print_exc()
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)

        child = FORK.Process(target=run)
        child.start()
        child.join(300)
        return child.exitcode, out.read_text(), err.read_text()


@pytest.fixture
def place(tmp_path, model, tiny_folders):
    """A folder with photos, an adapter, and folders that can and cannot be written."""
    needs_posix(), needs("/proc/self/fd")
    make_photos(tmp_path / "photos", ["ant", "bee"], 4)
    model.save_pretrained(tmp_path / "adapter")
    for name in ("home", "sealed"):
        (tmp_path / name).mkdir()
    (tmp_path / "sealed").chmod(0o555)
    yield tmp_path
    (tmp_path / "sealed").chmod(0o755)


@pytest.fixture
def train(tiny_folders):
    clip = ["--clip", f"local-dir:{tiny_folders['shallow']}", "--pretrained", "random"]
    few = ["--set", "mask=all_mixed", "--shots", "1", "--epochs", "1", "--batch-size", "2", "--threads", "1"]
    return lambda photos, out: ["train", photos, *clip, *few, "--workers", "1", "--out", out]


def one_sentence(found):
    """What was said by a command that was refused."""
    code, out, err = found
    lines = [line for line in err.splitlines() if line.startswith("dear: ")]
    assert (code, out, len(lines)) == (2, "", 1), found
    assert "Traceback" not in err
    assert lines[0].endswith("."), err
    return lines[0]


def without_home():
    """As in a container whose user has no entry in the list of users."""

    def unknown(number):
        raise KeyError(number)

    patch.object(pwd, "getpwuid", unknown).start()


SURROUNDINGS = {
    "read-only HOME": {"HOME": "sealed"},
    "HOME that does not exist": {"HOME": "nowhere/at/all"},
    "HOME that is a file": {"HOME": "photos/ant/0.png"},
    "empty HOME": {"HOME": ""},
    "read-only TMPDIR": {"HOME": "home", "TMPDIR": "sealed"},
    "TMPDIR that does not exist": {"HOME": "home", "TMPDIR": "nowhere"},
}


def settings(place, name):
    return {key: value and str(place / value) for key, value in SURROUNDINGS[name].items()}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_a_training_and_its_predictions_need_no_home_and_no_temporary_folder(place, train, name):
    before = {path.name for path in place.iterdir()}
    code, _, err = typed(train(place / "photos", place / "run"), place, **settings(place, name))
    assert (code, "Traceback" in err) == (0, False), err
    table = ["predict", place / "run", place / "photos", "--out", place / "run" / "labels.csv", "--workers", "0"]
    code, _, err = typed(table, place, **settings(place, name))
    assert (code, "Traceback" in err) == (0, False), err
    assert len((place / "run" / "labels.csv").read_text().splitlines()) == 9
    assert {path.name for path in place.iterdir()} == {*before, "run"}
    assert not list((place / "sealed").iterdir())


def test_who_has_no_home_at_all_can_train(place, train):
    """`Path.home` raises RuntimeError for a user that the system does not know, if HOME is not set."""
    code, _, err = typed(train(place / "photos", place / "run"), place, change=without_home, HOME=None)
    assert (code, "Traceback" in err) == (0, False), err
    for words in (["cache", "list"], ["cache", "clear"], ["doctor"]):
        code, _, err = typed(words, place, change=without_home, HOME=None)
        assert (code, "Traceback" in err) == (0, False), err
    assert "no such home folder" in one_sentence(typed(["cache", "list"], place, DEAR_CACHE="~nobody of this name/x"))


def test_no_place_for_temporary_files_is_one_sentence(place):
    def nowhere():
        patch.object(tempfile, "_candidate_tempdir_list", lambda: [str(place / "sealed")]).start()

    table = ["predict", place / "adapter", place / "photos", "--out", place / "labels.csv", "--workers", "0"]
    found = typed(table, place, change=nowhere, HOME=place / "home")
    if found[0]:
        assert "temporary" in one_sentence(found)
        assert not (place / "labels.csv").exists()


def test_a_working_folder_that_cannot_be_written_is_one_sentence(place, train):
    found = typed(train(place / "photos", "run"), place, where=place / "sealed", HOME=place / "home")
    assert "The folder run cannot be made (Permission denied)" in one_sentence(found)
    sealed = ["predict", place / "adapter", place / "photos", "--out", "labels.csv", "--workers", "0"]
    found = typed(sealed, place, where=place / "sealed", HOME=place / "home")
    assert "labels.csv cannot be" in one_sentence(found)
    code, _, err = typed(["predict", place / "adapter", place / "photos"], place, where=place / "sealed", HOME="x")
    assert code == 0, err


def test_a_run_that_may_only_be_read_can_be_used(place):
    for path in (place / "adapter").rglob("*"):
        path.chmod(0o444)
    (place / "adapter").chmod(0o555)
    code, _, err = typed(["predict", place / "adapter", place / "photos"], place, HOME=place / "home")
    assert code == 0, err
    (place / "adapter").chmod(0o755)


MASKED = """
import os, sys
os.umask({mask})
from dear.entry import main
main()
"""


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_files_have_the_permissions_that_the_umask_leaves(place, train, mask, tmp_path):
    """Temporary files are private; those that are renamed into place must not stay so, nor become public."""
    script = [sys.executable, "-c", MASKED.format(mask=mask), *map(str, train(place / "photos", "run"))]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in (tmp_path / "run").rglob("*")}
    assert len(modes) > 5
    wrong = {str(path): oct(mode) for path, mode in modes.items() if mode & mask}
    assert not wrong
    public = [path for path in modes if path.is_file() and not path.name.startswith(".")]
    assert {oct(modes[path]) for path in public} == {oct(0o666 & ~mask)}


def test_the_child_obeys_permissions(place):
    """The tests above could fail: without this, root writes everywhere."""
    found = typed([], place, change=lambda: (place / "sealed" / "file").write_text("x"), HOME=place / "home")
    assert found[0] == 1
    assert "PermissionError" in found[2]
