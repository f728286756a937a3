"""Open an adapter in a window: a page in the browser, served on this computer only."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dear.app.page import Page, build, gradio
from dear.app.run_photos import photos_of_run
from dear.app.studio import OpenIndex, Studio
from dear.backbone.clip import short_name
from dear.backbone.load import load_clip
from dear.data.prompts import DEFAULT_TEMPLATE, class_list
from dear.engine.ranks import local_device
from dear.engine.workspace import Say, log
from dear.errors import BackboneError, ConfigError, DearError, RoleMapError
from dear.methods.zero_shot import ZeroShot
from dear.model.model import Model
from dear.options.commands import App
from dear.options.reading import check
from dear.reports.explanation_view import roles_of
from dear.retrieval.encoder import encoder_of, model_encoder
from dear.retrieval.index import INDEX, Index, read_index
from dear.roles.rolemap import RoleMap
from dear.storage.files import as_folder
from dear.workflows.app_world import WORLD_NOTE, world_index, world_run
from dear.workflows.machine import using_threads
from dear.workflows.opened_run import model_of
from dear.workflows.report import PAGE as REPORT

LOOPBACK = "127.0.0.1"


class OpenedApp(NamedTuple):
    """An app that is open: its address, and how to close it."""

    address: str
    page: Page

    def close(self) -> None:
        """Stop serving."""
        self.page.close()


def open_app(
    run: str | Path | None = None,
    *,
    index: str | Path | None = None,
    clip: str | None = None,
    pretrained: str | None = None,
    classes: Sequence[str] | None = None,
    port: int | None = None,
    browser: bool = True,
    wait: bool = True,
    host: str = LOOPBACK,
    device: str | None = None,
    threads: int | None = None,
    allow_pickled: bool = False,
) -> OpenedApp:
    """Open an adapter in a page of the browser: predict, search, look at heads, teach, read the report.

    Args:
        run: folder of a run or adapter; by default the quickstart's, which is trained at the first time.
        index: folder of a search index; by default RUN/index if it exists.
        clip: a backbone by name instead of a run, to try classes that are typed in.
        pretrained: tag of the backbone's weights.
        classes: other classes than the run's; for a backbone, those to begin with.
        port: port to serve at; by default the first free one from 7860 on.
        browser: open the page in the default browser.
        wait: return only after Ctrl-C; otherwise at once, and the page is served until `close` or the end of Python.
        host: address to serve at. Anybody who can reach it can use the app, so change it only in a container that
            others protect, such as a Hugging Face Space.
        device: "cpu", "cuda"; by default a GPU if there is one.
        threads: threads to compute with on a CPU; by default all.
        allow_pickled: also read a backbone's weights from a pickled file (tensors only, never code).
    """
    options = check(
        App,
        {
            "run": run,
            "index": index,
            "clip": clip,
            "pretrained": pretrained,
            "classes": classes,
            "port": port,
            "no_browser": not browser,
            "device": device,
            "threads": threads,
            "allow_pickled": allow_pickled,
        },
    )
    with using_threads(threads):
        opened = serve(options, host=host)
        if wait:
            opened.page.wait()
    return opened


def serve(options: App, *, host: str = LOOPBACK, say: Say = log) -> OpenedApp:
    """Open the app as the options say: what `dear.open_app` and `dear app` do before they wait."""
    gradio()  # a missing package is reported before anything is trained
    page = build(make_studio(options, say))
    address = page.open(host=host, port=options.port, browser=not options.no_browser)
    say(f"open {address} in a browser; Ctrl-C ends it")
    return OpenedApp(address, page)


def make_studio(options: App, say: Say = log) -> Studio:
    """Load everything that the app shows."""
    if options.clip is not None:
        return _plain_studio(options)
    is_world = options.run is None
    run = world_run(say) if options.run is None else as_folder(options.run)
    model = model_of(run, options.device, allow_pickled=options.allow_pickled)
    known = model.required_classes().names
    photos = photos_of_run(run, model)
    folder = options.index or (world_index(model.clip, say) if is_world else _own_index(run))
    report = run / REPORT
    return Studio(
        model=model.for_classes(options.classes) if options.classes else model,
        title="A small world of drawings" if is_world else run.resolve().name,
        note=WORLD_NOTE if is_world else f"{model.name} on {short_name(model.clip.name)}, {len(known)} classes",
        roles=_roles(model),
        search=None if folder is None else _search(read_index(as_folder(folder)), model, options),
        report=report if report.is_file() else None,
        photos=None if options.classes else photos,
    )


def _plain_studio(options: App) -> Studio:
    """A backbone as it is, for classes that are typed in."""
    assert options.clip is not None
    clip = load_clip(
        options.clip, options.pretrained, local_device(options.device), allow_pickled=options.allow_pickled
    )
    listed = class_list(options.classes, DEFAULT_TEMPLATE) if options.classes else None
    model = Model(clip, ZeroShot(clip, ZeroShot.Config()), listed)
    return Studio(
        model=model,
        title=short_name(clip.name),
        note="A CLIP as it is, without training: type the classes that your photos could show.",
        roles=_roles(model),
        search=None if options.index is None else _search(read_index(as_folder(options.index)), model, options),
    )


def _own_index(run: Path) -> Path | None:
    return run / "index" if (run / "index" / INDEX).exists() else None


def _roles(model: Model) -> RoleMap | None:
    try:
        return roles_of(model)
    except (RoleMapError, BackboneError, ConfigError):
        return None


def _search(index: Index, model: Model, options: App) -> OpenIndex:
    """The index with what made it: the model or its CLIP if they did, else what the index names."""
    with suppress(DearError):  # its CLIP may not have the layers and heads of the index
        own = encoder_of(index, model.clip) if "heads" in index.manifest.made_by else model_encoder(model)
        if own.mark == index.model_sha256:
            return OpenIndex(index, own)
    found = encoder_of(index, device=local_device(options.device), allow_pickled=options.allow_pickled)
    return OpenIndex(index, found)
