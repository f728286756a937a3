"""Strange surroundings of a command: closed streams, a deleted working folder, a locale without its letters."""

import os
import subprocess
import sys

import pytest

from needs import needs_posix

STREAMS = """
import os, sys
for number in {closed}:
    os.close(number)
for name in {none}:
    setattr(sys, name, None)
from dear.entry import open_streams
open_streams()
first = os.open({file!r}, os.O_RDWR | os.O_CREAT)
print("out")
print("err", file=sys.stderr)
sys.stdin.read() if 0 in {closed} else None
os.write(first, str(first).encode())
"""


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (1, 2), (0, 1, 2)], ids=str)
def test_a_closed_stream_is_opened_again_so_that_no_file_gets_its_number(tmp_path, closed):
    """With stderr closed, every command ended with 1 and nothing done."""
    needs_posix()
    names = [("stdin", "stdout", "stderr")[number] for number in closed]
    script = STREAMS.format(closed=closed, none=names, file=str(tmp_path / "file"))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert int((tmp_path / "file").read_text()) > 2
    assert done.stdout == ("" if 1 in closed else "out\n")


def test_a_deleted_working_folder_is_one_sentence(tmp_path):
    """MKL ended the process with a message about a library that cannot be loaded."""
    needs_posix()
    script = "import os, sys; os.rmdir(os.getcwd()); from dear.entry import main; main()"
    (tmp_path / "gone").mkdir()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
    done = subprocess.run(
        [sys.executable, "-c", script, "ls", "methods"],
        cwd=tmp_path / "gone",
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr == "dear: the working folder does not exist any more: change to another one.\n"


def test_names_that_a_locale_lacks_are_escaped(tmp_path):
    script = "from dear.entry import open_streams; open_streams(); print('caf\\u00e9 \\u2026')"
    env = {**os.environ, "PYTHONIOENCODING": "ascii:strict", "LC_ALL": "C"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "caf\\xe9 \\u2026\n")
