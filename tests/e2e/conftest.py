"""The command line in this process: what it would exit with, print and complain about."""

import sys

import pytest

from dear.cli import main


@pytest.fixture
def dear_(monkeypatch, capsys):
    def dear_(*words):
        monkeypatch.setattr(sys, "argv", ["dear", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return dear_
