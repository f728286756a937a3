"""Serve an adapter over HTTP: POST a photo, get its classes. `pip install fastapi uvicorn python-multipart`, then

DEAR_RUN=runs/mine uvicorn serve:app --app-dir examples
curl -F photo=@photo.jpg http://127.0.0.1:8000/predict
"""

import os
from functools import cache

import dear

LARGEST = 20_000_000  # bytes of a photo


@cache
def model() -> dear.Model:
    """The adapter, loaded on first use and shared by all threads."""
    return dear.load(os.environ["DEAR_RUN"])


def answer(photo: bytes, top_k: int = 3) -> dict:
    """The classes of a photo as plain values; raises a `DearError` if the bytes are not a photo."""
    if len(photo) > LARGEST:
        raise dear.errors.ImageError(f"The photo has {len(photo):,} bytes, more than the limit of {LARGEST:,}.")
    (found,) = model().predict(photo, top_k=top_k, workers=1)
    return {"label": found.label, "classes": [{"name": name, "probability": p} for name, p in found.top]}


def make_app():
    """The service."""
    from fastapi import FastAPI, File, HTTPException

    service = FastAPI(title="DeAR")

    @service.post("/predict")
    def predict(photo: bytes = File(), top_k: int = 3) -> dict:  # no `async`: it runs in a thread of its own
        try:
            return answer(photo, top_k)
        except dear.DearError as error:
            raise HTTPException(400, str(error)) from None

    return service


def __getattr__(name):
    """`app` is made when a server asks for it, so that the rest works without FastAPI."""
    if name == "app":
        return make_app()
    raise AttributeError(name)
