"""The tabs of the page: fields and buttons, wired to the functions of this package."""

from __future__ import annotations

import io
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dear.app.dropped import VARIABLE as FOLDER
from dear.app.finding import can_swap, kinds, search_photos
from dear.app.heads import heads_page
from dear.app.predicting import explain_photo, predict_photos
from dear.app.studio import ALL_PHOTOS, MOST_PHOTOS, Session, Studio, named_photos, taught_classes
from dear.app.teaching import PACKED, add_lessons, learn, lessons_html, packed
from dear.data.images import readable_suffixes
from dear.errors import ConfigError, DearError, ImageError
from dear.reports.render import render
from dear.storage.documents import read_text
from dear.storage.files import sha256, write_result

STRICT = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""What a page within the page may load: nothing but what it contains. It has no scripts."""
WORKERS = "model"
"""All work of the model waits in one line, of which two are done at a time."""
FAILED = "Something went wrong here, and the terminal says what: try again, or with another photo."
TEACHING = "teaching"
"""What changes a session is done one after the other: each reads what the one before has written."""
SIDE, LARGE = 256, 1024
"""Pixels to which an example is enlarged, such as a drawing of the world, and to which a photo is reduced."""


@dataclass
class Wiring:
    """What the tabs share: Gradio, the studio, the session, and fields that several tabs read."""

    gr: Any
    studio: Studio
    session: Any
    turn: Any
    """Number of the next example."""
    photos: Any = None
    classes: Any = None
    folder: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(dir=os.environ.get(FOLDER))
    )
    """Files on their way to a browser; removed when the app ends."""

    def call(
        self,
        events: Sequence[Any],
        function: Callable[..., Any],
        inputs: Any,
        outputs: Any,
        name: str = "",
        line: str = WORKERS,
    ) -> Any:
        """Call a function when something happens; a mistake becomes a sentence in its first output.

        The function returns a tuple with one value per output. With a name, it can be called over HTTP as well.
        """
        count = len(outputs)

        def guarded(*values: Any) -> Any:
            try:
                found = function(*values)
            except DearError as error:
                found = (problem(str(error)), *(self.gr.skip() for _ in range(count - 1)))
            except Exception:  # one bad request must not end the others
                logging.getLogger("dear").exception("a request of the app failed")
                found = (problem(FAILED), *(self.gr.skip() for _ in range(count - 1)))
            return found if count > 1 else found[0]

        return self.gr.on(
            list(events),
            guarded,
            inputs,
            outputs,
            api_name=name or None,
            api_visibility="public" if name else "private",
            concurrency_id=line,
            concurrency_limit=2 if line == WORKERS else 1,
            show_progress="minimal",
        )

    def file(self, name: str, content: bytes) -> str:
        """The path of a file, which Gradio serves under a name of its own; the same content is one file."""
        path = Path(self.folder.name) / sha256(content) / name
        write_result(path, content)
        return str(path)

    def photo_field(self, label: str, *, several: bool = False, **how: Any) -> Any:
        """Where photos are dropped; only files that were uploaded here are accepted, never addresses."""
        field = self.gr.File(
            label=label,
            file_count="multiple" if several else "single",
            file_types=sorted(readable_suffixes()),
            type="filepath",
            height=140,
            **how,
        )
        return _only_files(field)

    def camera_field(self, label: str, **how: Any) -> Any:
        """Where photos are taken, with the same rule; Gradio would decode a photo that a request contains as text."""
        field = _only_files(self.gr.Image(label=label, sources=["webcam"], type="filepath", image_mode=None, **how))

        def uploaded(shot: Any) -> str | None:
            if shot is not None and not shot.path:
                raise ConfigError("Photos are uploaded, not sent within a request.")
            return None if shot is None else str(shot.path)

        field.preprocess = uploaded
        return field


def _only_files(field: Any) -> Any:
    """The same field; Gradio downloads addresses that a request names instead of a file, and this app does not."""
    move = field.async_move_resource_to_block_cache

    async def checked(place: Any) -> Any:
        if place is not None and "://" in str(place):
            raise ConfigError("Photos are uploaded, not fetched from an address.")
        return await move(place)

    field.async_move_resource_to_block_cache = checked
    return field


def problem(sentence: str) -> str:
    """A sentence about what is wrong, as a part of the page."""
    return render("app_problem.html", sentence=sentence)


def framed(page: str, title: str) -> str:
    """A whole page within the page, without scripts and without access to anything."""
    whole = render("app_frame_head.html", policy=STRICT) + page
    return render("app_frame.html", page=whole, title=title)


def predict_tab(wiring: Wiring) -> None:
    """Photos in, answers and reasons out."""
    gr, studio = wiring.gr, wiring.studio
    with gr.Tab("Predict", id="predict"):
        with gr.Row():
            with gr.Column(scale=1, min_width=300):
                wiring.photos = wiring.photo_field(
                    f"Photos (at most {MOST_PHOTOS})", several=True, elem_id="dear-photos"
                )
                example = gr.Button("Try an example", visible=studio.photos is not None, elem_id="dear-example")
                with gr.Accordion("Use the camera", open=False):
                    camera = wiring.camera_field("Camera", elem_id="dear-camera")
                own = ", ".join(studio.class_names[:4]) + (", …" if len(studio.class_names) > 4 else "")
                wiring.classes = gr.Textbox(
                    label="Classes, separated by commas",
                    info=f"Empty: those of this adapter ({own})." if own else "For example: cat, dog, bird",
                    elem_id="dear-classes",
                )
                reject = gr.Checkbox(
                    label="Answer “none of these” if unsure",
                    value=True,
                    visible=studio.model.calibration is not None,
                    elem_id="dear-reject",
                )
                classify = gr.Button("Classify", variant="primary", elem_id="dear-classify")
            with gr.Column(scale=2, min_width=300):
                answers = gr.HTML(elem_id="dear-answers")
        with gr.Row(equal_height=True, visible=False) as explaining:
            which = gr.Dropdown([], label="Photo to explain", elem_id="dear-which", scale=3)
            why = gr.Button("Why this answer?", elem_id="dear-why", scale=1)
        reasons = gr.HTML(elem_id="dear-reasons")

    def predicted(paths: Any, text: Any, wanted: Any, session: Any) -> tuple[Any, ...]:
        names = [one.name for one in named_photos(paths)]
        found = predict_photos(studio, session or Session(), paths, text, bool(wanted))
        return found.html(), gr.Dropdown(choices=names, value=names[0]), "", gr.Row(visible=True)

    def changed(paths: Any, *others: Any) -> tuple[Any, ...]:
        return (
            predicted(paths, *others) if paths else ("", gr.Dropdown(choices=[], value=None), "", gr.Row(visible=False))
        )

    inputs, outputs = [wiring.photos, wiring.classes, reject, wiring.session], [answers, which, reasons, explaining]
    wiring.call([classify.click, wiring.classes.submit, reject.input], predicted, inputs, outputs, "predict")
    wiring.call([wiring.photos.change], changed, inputs, outputs)
    camera.input(lambda shot: [shot] if shot else None, camera, wiring.photos, api_visibility="private")
    turn = wiring.turn
    wiring.call([example.click], lambda turn: _example(wiring, turn), [turn], [answers, wiring.photos, turn])
    wiring.call(
        [why.click],
        lambda paths, one, text, session: (
            framed(explain_photo(studio, session or Session(), paths, one, text), "Why this answer?"),
        ),
        [wiring.photos, which, wiring.classes, wiring.session],
        [reasons],
        "explain",
    )


def _example(wiring: Wiring, turn: int) -> tuple[Any, ...]:
    """The next test photo of the run, as a file that was not dropped but could have been."""
    studio = wiring.studio
    if studio.photos is None or not studio.photos.tested:
        raise ConfigError("There are no test photos of this adapter here: drop a photo of your own.")
    examples = studio.photos.examples()
    for number in range(turn, turn + len(examples)):
        with suppress(ImageError):
            image = examples.open(number % len(examples))
            break
    else:
        raise ConfigError("No test photo of this adapter can be read here: drop a photo of your own.")
    if (times := SIDE // max(image.size)) > 1:
        image = image.resize((image.width * times, image.height * times), 0)
    image.thumbnail((LARGE, LARGE))
    content = io.BytesIO()
    image.save(content, "PNG")
    return "", [wiring.file("example.png", content.getvalue())], number + 1


def search_tab(wiring: Wiring) -> None:
    """The nearest photos of an index."""
    gr, studio = wiring.gr, wiring.studio
    if studio.search is None:
        return
    choices, parts = kinds(studio), can_swap(studio)
    with gr.Tab("Search", id="search"), gr.Row():
        with gr.Column(scale=1, min_width=300):
            photo = wiring.photo_field("Photo to look for", elem_id="dear-query")
            text = gr.Textbox(
                label="Words", info="Instead of a photo, or besides it: a striped star", elem_id="dear-words"
            )
            by = gr.Dropdown(choices, value=choices[0][1], label="Compare by", elem_id="dear-by")
            with gr.Accordion("Take one attribute from another photo", open=False, visible=parts):
                swap = gr.Dropdown([("nothing", ""), *choices[1:-1]], value="", label="Attribute", elem_id="dear-swap")
                other = wiring.photo_field("Other photo", elem_id="dear-other")
            button = gr.Button("Search", variant="primary", elem_id="dear-search")
        with gr.Column(scale=2, min_width=300):
            found = gr.HTML(elem_id="dear-found")
    wiring.call(
        [button.click, text.submit, photo.upload],
        lambda *values: (search_photos(studio, *values),),
        [photo, text, by, swap, other],
        [found],
        "search",
    )


def heads_tab(wiring: Wiring) -> None:
    """What each attention head does."""
    gr, studio = wiring.gr, wiring.studio
    with gr.Tab("Heads", id="heads") as tab:
        more = gr.Button(
            "Show the photos that each head responds to", visible=studio.photos is not None, elem_id="dear-examples"
        )
        page = gr.HTML(elem_id="dear-heads")
    wiring.call([tab.select], lambda: (framed(heads_page(studio), "Heads"),), [], [page])
    wiring.call(
        [more.click],
        lambda: (framed(heads_page(studio, with_examples=True), "Heads"),),
        [],
        [page],
    )


def teach_tab(wiring: Wiring) -> None:
    """Correct a label, or add a class."""
    gr, studio = wiring.gr, wiring.studio
    with gr.Tab("Teach", id="teach") as tab:
        gr.HTML(render("app_teach.html"))
        with gr.Row(equal_height=True):
            which = gr.Dropdown([ALL_PHOTOS], value=ALL_PHOTOS, label="Photos", elem_id="dear-teach-which")
            label = gr.Dropdown(
                list(studio.class_names),
                value=None,
                allow_custom_value=True,
                label="They show",
                info="Choose a class, or type a new one.",
                elem_id="dear-label",
            )
        with gr.Row():
            add = gr.Button("Add", elem_id="dear-add")
            start = gr.Button("Learn", variant="primary", elem_id="dear-learn")
            forget = gr.Button("Forget all", elem_id="dear-forget")
            save = gr.DownloadButton("Download what it learned", visible=False, elem_id="dear-save")
        lessons = gr.HTML(lessons_html(Session()), elem_id="dear-lessons")

    def choices(paths: Any) -> tuple[Any, ...]:
        return (gr.Dropdown(choices=[ALL_PHOTOS, *(one.name for one in named_photos(paths))], value=ALL_PHOTOS),)

    def added(paths: Any, one: Any, name: Any, session: Any) -> tuple[Any, ...]:
        new = add_lessons(studio, session or Session(), paths, one, name)
        return lessons_html(new), new, gr.Dropdown(choices=list(taught_classes(studio, new)))

    def learned(session: Any, text: Any) -> tuple[Any, ...]:
        new, outcome = learn(studio, session or Session(), text)
        saved = wiring.file(f"{PACKED}.zip", packed(new))
        return lessons_html(new, outcome), new, gr.DownloadButton(value=saved, visible=True)

    def forgotten() -> tuple[Any, ...]:
        labels = gr.Dropdown(choices=list(studio.class_names), value=None)
        return lessons_html(Session()), Session(), labels, gr.DownloadButton(visible=False)

    wiring.call([tab.select], choices, [wiring.photos], [which])
    outputs = [lessons, wiring.session, label]
    changing = partial(wiring.call, line=TEACHING)
    changing([add.click], added, [wiring.photos, which, label, wiring.session], outputs, "add")
    changing([start.click], learned, [wiring.session, wiring.classes], [lessons, wiring.session, save], "learn")
    changing([forget.click], forgotten, [], [*outputs, save], "forget")


def report_tab(wiring: Wiring) -> None:
    """The report of the run, if there is one."""
    gr, studio = wiring.gr, wiring.studio
    if studio.report is None:
        return
    path = studio.report
    with gr.Tab("Report", id="report") as tab:
        page = gr.HTML(elem_id="dear-report")
    wiring.call(
        [tab.select],
        lambda: (framed(read_text(path, error=ConfigError), "Report"),),
        [],
        [page],
    )
