"""Options by their former names: they work for one version more, with a note that says the new name."""

from __future__ import annotations

from typing import Any

from dear.cli.console import say

RENAMED = {
    "--batch": "--batch-size",
    "--root": "--data-root",
    "--most-images": "--max-images",
    "--top": "--top-k",
    "--count": "--top-k",
    "--attribute": "--by",
    "--strategy": "--readout",
}
HALVES = ("all", "base", "novel")


def with_new_names(command: Any, words: list[str]) -> list[str]:
    """The words of a command line with options by the names they have now; says so for each that had another."""
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    found = []
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        new = RENAMED.get(name)
        if name == "--classes" and (value or "".join(words[place + 1 : place + 2])) in HALVES:
            new = "--half"
        if "--" in words[:place] or name in known or new not in known:
            found.append(word)
            continue
        say(f"note: {name} is now called {new}.")
        found.append(f"{new}{equals}{value}")
    return found
