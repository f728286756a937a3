"""Serve an adapter over HTTP: POST a photo, get its classes. `pip install fastapi uvicorn python-multipart`, then

DEAR_RUN=runs/mine DEAR_THREADS=2 uvicorn serve:app --app-dir examples
curl -F photo=@photo.jpg http://127.0.0.1:8000/predict
curl -F photo=@photo.jpg -F classes=cat -F classes=dog "http://127.0.0.1:8000/predict?top_k=2"
curl http://127.0.0.1:8000/about
"""

import os
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Annotated, NamedTuple

import torch
from PIL import Image

import dear

LARGEST = 20_000_000  # bytes of a photo
MOST_CLASSES, LONGEST_NAME = 1000, 100  # of a request's class list; names are measured in letters
BATCH = 16  # photos that are classified together
VIEWS = 32  # class lists whose text features stay in memory


class Request(NamedTuple):
    """A photo that waits for the worker."""

    photo: bytes
    classes: tuple[str, ...]
    top_k: int
    answer: Future


class Service:
    """A model with one worker thread, which classifies together what is waiting when it becomes free."""

    def __init__(self, run: str) -> None:
        if threads := os.environ.get("DEAR_THREADS"):
            torch.set_num_threads(int(threads))
        self.model = dear.load(run)
        self.own_classes = self.model.required_classes().names
        self.views = OrderedDict()  # used by the worker only, so that it needs no lock
        self.view(self.own_classes).predict(Image.new("RGB", (64, 64)))  # the first call is the slowest
        self.waiting = Queue()
        Thread(target=self.work, daemon=True).start()

    def answer(self, photo: bytes, classes: list[str] | None = None, top_k: int = 3) -> dict:
        """The classes of a photo as plain values; raises a `DearError` for an invalid photo or class list."""
        if len(photo) > LARGEST:
            raise dear.errors.ImageError(f"The photo has {len(photo):,} bytes, more than the limit of {LARGEST:,}.")
        if classes and (len(classes) > MOST_CLASSES or max(map(len, classes)) > LONGEST_NAME):
            limits = f"{MOST_CLASSES} classes, and names of {LONGEST_NAME} letters"
            raise dear.errors.ClassListError(f"The class list is too long: a request is limited to {limits}.")
        request = Request(photo, tuple(classes or self.own_classes), max(1, top_k), Future())
        self.waiting.put(request)
        found = request.answer.result()
        return {"label": found.label, "classes": [{"name": n, "probability": p} for n, p in found.top[: max(1, top_k)]]}

    def work(self) -> None:
        """Answer requests for ever: those with the same classes together."""
        while True:
            requests = [self.waiting.get()]
            try:
                while len(requests) < BATCH:
                    requests.append(self.waiting.get_nowait())
            except Empty:
                pass
            for classes in dict.fromkeys(request.classes for request in requests):
                self.classify([request for request in requests if request.classes == classes])

    def classify(self, requests: list[Request]) -> None:
        """Answer requests that have the same classes; if a photo cannot be read, each is answered by itself."""
        try:
            view = self.view(requests[0].classes)
            photos, top_k = [request.photo for request in requests], max(request.top_k for request in requests)
            for request, found in zip(requests, view.predict(photos, top_k=top_k, batch_size=BATCH), strict=True):
                request.answer.set_result(found)
        except Exception as error:  # noqa: BLE001  # the worker must survive, and every caller must get an answer
            if len(requests) == 1:
                requests[0].answer.set_exception(error)
            else:
                for request in requests:
                    self.classify([request])

    def view(self, classes: tuple[str, ...]) -> dear.Model:
        """The model for a class list; the lists that were used last keep their text features."""
        if classes not in self.views:
            self.views[classes] = self.model if classes == self.own_classes else self.model.for_classes(classes)
        self.views.move_to_end(classes)
        if len(self.views) > VIEWS:
            self.views.popitem(last=False)
        return self.views[classes]

    def about(self) -> dict:
        """What answers: versions, backbone and classes; no local paths."""
        clip = self.model.clip
        return {
            "versions": {"dear": dear.__version__, **{name: version(name) for name in ("torch", "open_clip_torch")}},
            "method": self.model.name,
            "backbone": {
                "name": Path(clip.name).name if clip.name.startswith("local-dir:") else clip.name,
                "pretrained": clip.pretrained and Path(clip.pretrained).name,
                "weights_sha256": clip.weights_sha256,
            },
            "classes": list(self.own_classes),
            "threads": torch.get_num_threads(),
        }


def make_app():
    """The HTTP service; the model is loaded before the first request is accepted."""
    from fastapi import FastAPI, File, Form, HTTPException

    if not os.environ.get("DEAR_RUN"):
        raise SystemExit("Set DEAR_RUN to the folder of a run or adapter, as in DEAR_RUN=runs/mine.")

    Photo, Names = Annotated[bytes, File()], Annotated[list[str] | None, Form()]

    @asynccontextmanager
    async def lifespan(app: FastAPI):
        app.state.service = Service(os.environ["DEAR_RUN"])
        yield

    app = FastAPI(title="DeAR", lifespan=lifespan)

    @app.post("/predict")
    def predict(photo: Photo, classes: Names = None, top_k: int = 3) -> dict:
        try:  # no `async`: each call waits for the worker in a thread of its own
            return app.state.service.answer(photo, classes, top_k)
        except dear.DearError as error:
            raise HTTPException(400, str(error)) from None

    @app.get("/about")
    def about() -> dict:
        return app.state.service.about()

    return app


def __getattr__(name):
    """`app` is made when a server asks for it, so that the rest works without FastAPI."""
    if name == "app":
        return make_app()
    raise AttributeError(name)
