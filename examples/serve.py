"""Serve an adapter over HTTP: POST a photo, get its classes. `pip install fastapi uvicorn python-multipart`, then

DEAR_RUN=runs/mine DEAR_THREADS=2 uvicorn serve:app --app-dir examples
curl -F photo=@photo.jpg http://127.0.0.1:8000/predict
curl -F photo=@photo.jpg -F classes=cat -F classes=dog "http://127.0.0.1:8000/predict?top_k=2"
curl http://127.0.0.1:8000/health; curl http://127.0.0.1:8000/version
"""

import asyncio
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

LARGEST, MOST_PIXELS = 20_000_000, 50_000_000  # bytes and pixels of a photo
MOST_CLASSES, LONGEST_NAME = 1000, 100  # of a request's class list; names are measured in letters
MOST_WAITING, MOST_BYTES = 256, 500_000_000  # requests that are being received or answered, and their bytes
SLOWEST = 60  # seconds in which a request must have arrived
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
        Image.MAX_IMAGE_PIXELS = MOST_PIXELS  # of a photo's header; one with more is not decoded
        self.model = dear.load(run)
        self.own_classes = self.model.required_classes().names
        self.views = OrderedDict()  # used by the worker only, so that it needs no lock
        self.view(self.own_classes).predict(Image.new("RGB", (64, 64)))  # the first call is the slowest
        self.waiting = Queue()  # bounded by `Limits`, which also counts requests that are still being received
        self.worker = Thread(target=self.work, daemon=True)
        self.worker.start()

    async def answer(self, photo: bytes, classes: list[str] | None = None, top_k: int = 3) -> dict:
        """The classes of a photo as plain values; raises a `DearError` for an invalid photo or class list."""
        if len(photo) > LARGEST:
            raise dear.errors.ImageError(f"The photo has {len(photo):,} bytes, more than the limit of {LARGEST:,}.")
        if classes and (len(classes) > MOST_CLASSES or max(map(len, classes)) > LONGEST_NAME):
            limits = f"{MOST_CLASSES} classes, and names of {LONGEST_NAME} letters"
            raise dear.errors.ClassListError(f"The class list is too long: a request is limited to {limits}.")
        request = Request(photo, tuple(classes or self.own_classes), top_k, Future())
        self.waiting.put(request)
        found = await asyncio.wrap_future(request.answer)
        return {"label": found.label, "classes": [{"name": n, "probability": p} for n, p in found.top[:top_k]]}

    def work(self) -> None:
        """Answer requests for ever: those with the same classes together."""
        while True:
            requests = [self.waiting.get()]
            try:
                while len(requests) < BATCH:
                    requests.append(self.waiting.get_nowait())
            except Empty:
                pass
            requests = [one for one in requests if one.answer.set_running_or_notify_cancel()]  # clients may have left
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


class Limits:
    """Middleware that bounds a request's body, the number of requests and their bytes, while they are received."""

    def __init__(self, app) -> None:
        self.app, self.requests, self.bytes = app, 0, 0

    async def __call__(self, scope, receive, send) -> None:
        """Answer 413 or 503 as soon as a limit is exceeded; what comes after it is not read."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self.app(scope, receive, send)
        from starlette.exceptions import HTTPException
        from starlette.responses import JSONResponse

        size, most = 0, LARGEST + 200_000  # a long class list, and what separates the parts of a form
        deadline, arrived = asyncio.get_running_loop().time() + SLOWEST, False

        def check() -> None:
            if size > most:
                raise HTTPException(413, f"The request is too large: a photo is limited to {LARGEST:,} bytes.")
            if self.requests > MOST_WAITING or self.bytes > MOST_BYTES:
                raise HTTPException(503, "Too many photos are waiting: try again in a second.", {"Retry-After": "1"})

        async def counted():
            nonlocal size, arrived
            try:
                async with asyncio.timeout_at(None if arrived else deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"The photo did not arrive within {SLOWEST} seconds.") from None
            arrived = not message.get("more_body", False)
            new = len(message.get("body", b""))
            size, self.bytes = size + new, self.bytes + new
            check()
            return message

        self.requests += 1
        try:
            check()
            return await self.app(scope, counted, send)
        except HTTPException as error:  # only before the app is asked; the app answers its own
            answer = JSONResponse({"detail": error.detail}, error.status_code, error.headers)
            return await answer(scope, receive, send)
        finally:
            self.requests, self.bytes = self.requests - 1, self.bytes - size


def make_app():
    """The HTTP service; the model is loaded before the first request is accepted."""
    from fastapi import FastAPI, File, Form, HTTPException, Query
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse

    if not os.environ.get("DEAR_RUN"):
        raise SystemExit("Set DEAR_RUN to the folder of a run or adapter, as in DEAR_RUN=runs/mine.")

    Photo, Names, Count = Annotated[bytes, File()], Annotated[list[str] | None, Form()], Annotated[int, Query(ge=1)]

    @asynccontextmanager
    async def lifespan(app: FastAPI):
        app.state.service = Service(os.environ["DEAR_RUN"])
        yield

    app = FastAPI(title="DeAR", lifespan=lifespan)
    app.add_middleware(Limits)

    @app.post("/predict")
    async def predict(photo: Photo, classes: Names = None, top_k: Count = 3) -> dict:
        try:
            return await app.state.service.answer(photo, classes, top_k)
        except dear.DearError as error:
            raise HTTPException(400, str(error)) from None

    @app.exception_handler(RequestValidationError)
    async def invalid(request, error) -> JSONResponse:
        first = error.errors()[0]
        return JSONResponse({"detail": f"{first['loc'][-1]} is not valid: {first['msg']}."}, 422)

    @app.get("/health")
    async def health() -> dict:
        if not app.state.service.worker.is_alive():
            raise HTTPException(503, "The worker has ended: restart the service.")
        return {"status": "ok", "waiting": app.state.service.waiting.qsize()}

    @app.get("/version")
    async def about() -> dict:
        return app.state.service.about()

    return app


def __getattr__(name):
    """`app` is made when a server asks for it, so that the rest works without FastAPI."""
    if name == "app":
        return make_app()
    raise AttributeError(name)
