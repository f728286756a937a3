"""`dear app`: an adapter in a window."""

from __future__ import annotations

from dear.cli.commands import single_command
from dear.cli.console import say
from dear.options.commands import App


def open_window(options: App) -> None:
    """Open an adapter in a window of the browser: predict, search, teach; served on this computer only."""
    from dear.workflows.app import serve
    from dear.workflows.machine import using_threads

    with using_threads(options.threads):
        serve(options, say=say).page.wait()


app = single_command(open_window, App, plugins=True)
