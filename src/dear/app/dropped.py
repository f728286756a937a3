"""Where dropped photos are while the app runs: a folder that is removed at the end, or by the next app after a kill.

Gradio's own folder is shared by all its programs, and nothing removes what a killed one leaves there.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from dear.storage.files import ABANDONED, is_running

VARIABLE = "GRADIO_TEMP_DIR"
PREFIX = "dear-app-"


def prepare_folder() -> None:
    """Let Gradio put dropped photos into a new folder, unless the user has named one; before Gradio is imported."""
    if named := os.environ.get(VARIABLE):
        Path(named).mkdir(parents=True, exist_ok=True)
        return
    place = Path(tempfile.gettempdir())
    for left in place.glob(f"{PREFIX}*"):
        if _is_abandoned(left):
            shutil.rmtree(left, ignore_errors=True)
    os.environ[VARIABLE] = made = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Whether a folder is ours and that of a process that has ended, some time ago."""
    named = re.fullmatch(rf"{PREFIX}(\d{{1,9}})-\w{{8}}", folder.name)
    if not named or os.name != "posix" or is_running(int(named[1])):
        return False
    with suppress(OSError):
        facts = folder.lstat()
        ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
        return ours and time.time() - facts.st_mtime > ABANDONED  # in a container, it may be unknown here and alive
    return False
