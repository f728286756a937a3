"""Every method against the numbers of its published code, and proof that each comparison can fail.

The files are in `tests/vectors/data`; `make vectors FOLDER=DIR` runs the same comparison on others.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vectors.__main__ import OWN, check
from vectors.compare import compare, compare_in, read_pair
from vectors.readers import READERS, SPOILT, reader_of

PATHS = sorted(OWN.glob("*.safetensors"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_agrees_with_the_published_code(path):
    reader = reader_of(read_pair(path)[0])
    assert reader is not None
    differences, unread = compare(path, reader)
    assert [d for d in differences if not d.fits] == []
    assert unread == []


@pytest.mark.parametrize(("stem", "mistake"), [(stem, m) for stem in SPOILT for m in SPOILT[stem]])
def test_a_mistake_is_noticed(stem, mistake, monkeypatch):
    path = OWN / f"{stem}.safetensors"
    SPOILT[stem][mistake](monkeypatch)
    differences, _ = compare_in(torch.float64, path, reader_of(read_pair(path)[0]))  # what decides in the end
    assert [d for d in differences if not d.fits]


def test_every_file_has_a_mistake_that_it_notices():
    assert {path.stem for path in PATHS} == set(SPOILT)


def test_unknown_methods_and_wrong_numbers_fail(tmp_path):
    for suffix in (".json", ".safetensors"):
        shutil.copy((OWN / "coop").with_suffix(suffix), tmp_path / f"coop{suffix}")
        shutil.copy((OWN / "coop").with_suffix(suffix), tmp_path / f"nobody{suffix}")
    text = (tmp_path / "nobody.json").read_text()
    (tmp_path / "nobody.json").write_text(text.replace('"name": "coop"', '"name": "nobody"'))
    assert check(tmp_path / "coop.safetensors")[0]
    assert check(tmp_path / "nobody.safetensors") == (
        False,
        f"{'nobody':24} FAILED: no method of this name is known",
    )
    command = [sys.executable, "-m", "vectors", str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "1 passed, 1 failed"


def test_every_reader_has_a_file():
    assert {read_pair(path)[0]["name"] for path in PATHS} >= set(READERS)
