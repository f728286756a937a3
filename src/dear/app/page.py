"""The page in a browser: how it is built from tabs, and how it is served.

Gradio is imported when the page is built, with its telemetry switched off before.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module, resources
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from dear.app.dropped import prepare_folder
from dear.app.studio import LARGEST_PHOTO, Studio
from dear.app.tabs import Wiring, heads_tab, predict_tab, report_tab, search_tab, teach_tab
from dear.errors import ConfigError, MissingExtraError, option
from dear.reports.render import render

HEADERS = {
    "content-security-policy": "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; form-action 'self'; base-uri 'self'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""The browser refuses everything that is not of this server, whatever a library or a file asks for."""
FONTS, MONOSPACE = ("system-ui", "sans-serif"), ("ui-monospace", "monospace")
COLORS = {
    **dict.fromkeys(("body_text_color_subdued", "block_info_text_color", "block_title_text_color"), "*neutral_600"),
    **dict.fromkeys(("block_label_text_color", "input_placeholder_color"), "*neutral_600"),
    **dict.fromkeys(("body_text_color_subdued_dark", "block_info_text_color_dark"), "*neutral_300"),
    **dict.fromkeys(("block_title_text_color_dark", "block_label_text_color_dark"), "*neutral_300"),
    "input_placeholder_color_dark": "*neutral_300",
    **dict.fromkeys(("button_primary_background_fill", "button_primary_background_fill_dark"), "*primary_700"),
    "link_text_color": "*primary_700",
    "link_text_color_dark": "*primary_300",
}
"""Where the theme's own colours have too little contrast."""
SESSIONS = 100
"""Browsers whose sessions are in memory."""
HOUR = 3600
"""Seconds after which dropped photos are deleted."""


def gradio() -> Any:
    """Import Gradio without telemetry; raises `MissingExtraError` if it is not installed."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    if find_spec("gradio") is None:
        raise MissingExtraError('The app needs gradio: pip install "dear-vlm[app]".')
    prepare_folder()
    return import_module("gradio")


class Page(NamedTuple):
    """A page that is built and can be served."""

    blocks: Any
    settings: dict[str, Any]

    def open(self, *, host: str, port: int | None, browser: bool) -> str:
        """Serve the page until `close`, and return its address."""
        middleware = import_module("starlette.middleware").Middleware
        guards = [middleware(WithHeaders), *([middleware(OwnPages)] if is_loopback(host) else [])]
        try:
            _, address, _ = self.blocks.launch(
                server_name=host,
                server_port=port,
                inbrowser=browser,
                prevent_thread_lock=True,
                app_kwargs={"middleware": guards},
                **self.settings,
            )
        except OSError:
            place = f"Port {port}" if port else "Every port from 7860 on"
            raise ConfigError(f"{place} is used by another program: choose one with {option(port=8000)}.") from None
        return str(address)

    def wait(self) -> None:
        """Return when Ctrl-C is pressed."""
        self.blocks.block_thread()

    def close(self) -> None:
        """Stop serving."""
        self.blocks.close(verbose=False)


def build(studio: Studio) -> Page:
    """The page of a studio."""
    gr = gradio()
    blocks = gr.Blocks(title=f"{studio.title} – DeAR", analytics_enabled=False, delete_cache=(HOUR, HOUR))
    with blocks:
        gr.HTML(render("app_header.html", title=studio.title, note=studio.note), elem_id="dear-header")
        wiring = Wiring(gr, studio, session=gr.State(None), turn=gr.State(0))
        with gr.Tabs(elem_id="dear-tabs", overflow_behavior="wrap"):
            predict_tab(wiring)
            search_tab(wiring)
            heads_tab(wiring)
            teach_tab(wiring)
            report_tab(wiring)
    return Page(
        blocks,
        {
            "share": False,
            "quiet": True,
            "show_error": True,
            "footer_links": [],
            "run_history": False,
            "ssr_mode": False,
            "pwa": False,
            "mcp_server": False,
            "enable_monitoring": False,
            "max_file_size": LARGEST_PHOTO,
            "state_session_capacity": SESSIONS,
            "theme": _theme(gr),
            "css": _file("page.css"),
            "js": _file("page.js"),
        },
    )


def _theme(gr: Any) -> Any:
    """Gradio's plain theme with fonts of the system, which need no file."""
    system = gr.themes.utils.fonts.Font
    fonts, monospace = ([system(name) for name in names] for names in (FONTS, MONOSPACE))
    return gr.themes.Base(primary_hue="blue", font=fonts, font_mono=monospace).set(**COLORS)


def _file(name: str) -> str:
    return resources.files("dear.app").joinpath(name).read_text(encoding="utf-8")


def is_loopback(name: str) -> bool:
    """Whether a name or address is this computer's own and no other one's."""
    with suppress(ValueError):
        return ip_address(name.strip("[]")).is_loopback
    return name.lower() == "localhost"


class OwnPages:
    """Refuses what pages of other servers ask for: a browser that runs them can reach this computer.

    A page can let its own name point here, which the header Host shows; or send a form to this server, which the header
    Origin shows.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or refuse it."""
        headers = {name: value.decode("latin-1") for name, value in scope.get("headers", ())}
        if scope["type"] == "lifespan" or _is_own(headers.get(b"host", ""), headers.get(b"origin")):
            await self._app(scope, receive, send)
            return
        responses = import_module("starlette.responses")
        answer = responses.PlainTextResponse("This app answers only to pages of its own, at http://127.0.0.1.", 403)
        await answer(scope, receive, send)


def _is_own(host: str, origin: str | None) -> bool:
    """Whether a request was sent to this computer by its name, and by a page of this server or by no page."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        sender = urlsplit(origin).netloc if origin is not None else host
    except ValueError:
        return False
    return is_loopback(name) and sender == host


class WithHeaders:
    """Adds our headers to every answer of the server."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        await self._app(scope, receive, with_headers)
