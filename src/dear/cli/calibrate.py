"""`dear calibrate`: probabilities that one can believe."""

from __future__ import annotations

import json

import typer

from dear.cli.commands import single_command
from dear.cli.console import printable, say
from dear.options.commands import Calibrate


def calibrate(options: Calibrate) -> None:
    """Fit the probabilities of a run, and when to answer 'none of these', on photos that were held out."""
    from dear.workflows.calibrate import calibrate_run

    found = calibrate_run(options, say)
    if options.as_json:
        typer.echo(json.dumps(found.model_dump(), indent=1))
        return
    images = (
        f"{found.images:,} {'validation images' if found.source == 'validation' else 'photos held out from the shots'}"
    )
    typer.echo(f"Temperature {found.temperature:.3g}, fitted on {images}.")
    typer.echo(
        f"Gap between confidence and accuracy there (ECE): {100 * found.ece_before:.1f} % before, "
        f"{100 * found.ece_after:.1f} % after."
    )
    typer.echo(
        f"'dear predict --reject' answers 'none of these' below {100 * found.reject_below:.0f} %, "
        "which rejects 5 % of those photos."
    )
    typer.echo(printable(f"Stored in the adapter: 'dear predict {options.run} PHOTO' now uses it."))


app = single_command(calibrate, Calibrate, plugins=True)
