"""`dear train`: from a folder of photos to an adapter."""

from __future__ import annotations

from pathlib import Path

from dear.cli.commands import single_command
from dear.cli.console import say
from dear.cli.results import print_choice, print_trained
from dear.options.parts import Train

MOST_NAMED = 5


def train(options: Train) -> None:
    """Adapt a CLIP to DATA; OUT then contains the adapter, its log and its options as config.yaml."""
    from dear.workflows.train import train_run

    trained = train_run(options, say=say, record_options=True)
    _print_problems(trained.problems, trained.progress.skipped, options.out)
    for one in trained.warnings:
        say(f"warning: {one}")
    if trained.choice is not None:
        print_choice(trained.choice)
    print_trained(trained, options.out)


def _print_problems(problems: tuple[str, ...], skipped: int, out: Path) -> None:
    for problem in problems[:MOST_NAMED]:
        say(f"skipped: {problem}")
    if len(problems) > MOST_NAMED:
        say(f"… and {len(problems) - MOST_NAMED} more, all named in {out / 'metrics.jsonl'}.")
    if skipped:
        say(f"note: unreadable images were skipped {skipped} times.")


app = single_command(train, Train, config=True, plugins=True)
