"""The list of commands is made without importing them, and says what they say themselves."""

import subprocess
import sys

import pytest
import typer.main

from dear.cli import COMMANDS, app

ROOT = typer.main.get_command(app)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says(name):
    assert " ".join(ROOT.commands[name].help.split()) == COMMANDS[name].about


def test_help_imports_neither_options_nor_torch():
    code = "import sys; from dear.cli import main\ntry: main()\nexcept SystemExit: pass\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, "-h"], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "dear.cli" in loaded
    assert not loaded & {"torch", "numpy", "pydantic", "dear.options.parts"}
