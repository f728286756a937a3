"""`examples/serve.py` over HTTP: one load, batches, class lists, and one sentence for what cannot be answered."""

import asyncio
import io
import struct
import sys
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from PIL import Image

import dear
from helpers import make_photos
from needs import needs

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.covers("N4")


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_folders):
    """Photos, and an adapter of zero epochs with three classes."""
    root = tmp_path_factory.mktemp("service")
    make_photos(root / "photos", ["ant", "bee", "cow"], 4)
    clip = dear.load_clip(f"local-dir:{tiny_folders['shallow']}", "random")
    dear.DeAR(clip, mask="all_mixed").for_classes(["ant", "bee", "cow"]).save_pretrained(root / "run")
    return root


@pytest.fixture
def serve(place, monkeypatch):
    monkeypatch.setenv("DEAR_RUN", str(place / "run"))
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.delitem(sys.modules, "serve", raising=False)
    import serve

    return serve


@pytest.fixture
def client(serve):
    with connected(serve) as client:
        yield client


def connected(serve):
    """A client; inside `with`, the service is started."""
    for package in ("fastapi", "httpx", "python_multipart"):
        needs(package)
    from fastapi.testclient import TestClient

    return TestClient(serve.app)


def photos_of(place):
    return [path.read_bytes() for path in sorted((place / "photos").rglob("*.png"))]


def sent(client, photo, **form):
    return client.post("/predict", files={"photo": photo}, data=form)


def test_simultaneous_first_requests_load_once_and_get_the_labels_of_serial_calls(serve, place, monkeypatch):
    loads, load = [], dear.load
    monkeypatch.setattr(dear, "load", lambda *names: loads.append(names) or load(*names))
    photos = photos_of(place)
    with connected(serve) as client, ThreadPoolExecutor(8) as pool:
        found = [one.json() for one in pool.map(lambda photo: sent(client, photo), photos)]
    assert len(loads) == 1
    model = load(place / "run")
    for photo, one in zip(photos, found, strict=True):
        (alone,) = model.predict(photo, top_k=3)
        assert one["label"] == alone.label
        assert [(c["name"], pytest.approx(c["probability"], abs=1e-5)) for c in one["classes"]] == list(alone.top)


def test_what_waits_is_classified_together_by_class_list(serve, place, monkeypatch):
    """The worker is held at its first photo until all others wait."""
    service, sizes, at_work, go_on = serve.Service(place / "run"), [], threading.Event(), threading.Event()
    predict = dear.Model.predict

    def watched(model, photos, **options):
        sizes.append(len(photos))
        at_work.set()
        assert go_on.wait(60)
        return predict(model, photos, **options)

    monkeypatch.setattr(dear.Model, "predict", watched)
    first, *others = photos_of(place)
    futures = [serve.Request(first, service.own_classes, 1, serve.Future())]
    service.waiting.put(futures[0])
    assert at_work.wait(60)
    for number, photo in enumerate(others):
        classes = ("cat", "dog") if number % 3 == 0 else service.own_classes
        futures.append(serve.Request(photo, classes, 1, serve.Future()))
        service.waiting.put(futures[-1])
    go_on.set()
    labels = [one.answer.result(60).label for one in futures]
    assert sizes == [1, 4, 7]
    monkeypatch.undo()
    expected = [service.model.predict(one.photo, one.classes)[0].label for one in futures]
    assert labels == expected


def test_class_lists_and_their_bounded_cache(serve, client, place, monkeypatch):
    monkeypatch.setattr(serve, "VIEWS", 2)
    service, (photo, *_) = client.app.state.service, photos_of(place)
    for classes in (["cat", "dog"], ["sun", "moon"], ["cat", "dog", "fish"]):
        found = sent(client, photo, classes=classes)
        assert found.status_code == 200
        assert {one["name"] for one in found.json()["classes"]} == set(classes)
    assert list(service.views) == [("sun", "moon"), ("cat", "dog", "fish")]
    assert sent(client, photo).json()["label"] in ("ant", "bee", "cow")
    assert len(client.post("/predict?top_k=2", files={"photo": photo}).json()["classes"]) == 2


def test_what_cannot_be_answered_is_one_sentence(serve, client, place, monkeypatch):
    monkeypatch.setattr(serve, "MOST_CLASSES", 3)
    (photo, *_) = photos_of(place)
    long = {"classes": ["a " * 49, "dog"]}
    for found, reason in [
        (sent(client, b"nothing"), "cannot be read: its bytes are damaged or not an image."),
        (sent(client, photo[: len(photo) // 2]), "cannot be read: its bytes are damaged or not an image."),
        (sent(client, photo, classes=["a", "b", "c", "d"]), "limited to 3 classes, and names of 100 letters."),
        (sent(client, photo, classes=["a" * 101]), "limited to 3 classes, and names of 100 letters."),
        (sent(client, photo, classes=["cat", "cat"]), "Class names appear twice: cat;"),
        (sent(client, photo, **long), "do not fit the text tower's 32 tokens"),
    ]:
        assert (found.status_code, reason in found.json()["detail"]) == (400, True), found.json()
    monkeypatch.setattr(serve, "LARGEST", 10)
    assert "more than the limit of 10" in sent(client, photo).json()["detail"]


def bomb() -> bytes:
    """A PNG of a few hundred bytes whose header says 60,000 × 40,000 pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 40_000, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 60_001))
        + chunk(b"IEND", b"")
    )


def large(width, height) -> bytes:
    """A photo of one colour."""
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    return file.getvalue()


def test_hostile_uploads_are_one_sentence_and_the_service_stays_alive(serve, client, place, monkeypatch):
    monkeypatch.setattr(serve, "LARGEST", 1_000_000)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    (photo, *_) = photos_of(place)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/tmp/written) (w) file closefile\n"
    for found, status, reason in [
        (sent(client, bomb()), 400, "far too many pixels"),
        (sent(client, large(200, 100)), 400, "far too many pixels"),
        (sent(client, eps), 400, "damaged or not an image"),
        (sent(client, b"<svg xmlns='http://www.w3.org/2000/svg'/>"), 400, "damaged or not an image"),
        (sent(client, b""), 400, "damaged or not an image"),
        (sent(client, b"x" * 1_500_000), 413, "limited to 1,000,000 bytes"),
    ]:
        assert (found.status_code, reason in found.json()["detail"]) == (status, True), found.json()
    for body, reason in [
        (
            {"files": {"photo": photo}, "params": {"top_k": 0}},
            "top_k is not valid: Input should be greater than or equal",
        ),
        ({"data": {"classes": "cat"}}, "photo is not valid: Field required."),
        ({"json": {"photo": "text"}}, "photo is not valid: Field required."),
    ]:
        found = client.post("/predict", **body)
        assert (found.status_code, reason in found.json()["detail"]) == (422, True), found.json()
    assert sent(client, photo).status_code == 200
    assert client.get("/health").json() == {"status": "ok", "waiting": 0}


def test_the_rest_of_a_long_upload_is_not_read(serve, client):
    """A gigabyte that comes in pieces, without a length."""
    head = b'--x\r\nContent-Disposition: form-data; name="photo"; filename="a.png"\r\n\r\n'
    pieces, answers = iter([head, *[b"x" * 100_000] * 10_000]), []

    async def receive():
        return {"type": "http.request", "body": next(pieces), "more_body": True}

    async def send(message):
        answers.append(message)

    headers = [(b"content-type", b"multipart/form-data; boundary=x")]
    scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b"", "headers": headers}
    asyncio.run(client.app(scope, receive, send))
    assert answers[0]["status"] == 413
    assert b"limited to 20,000,000 bytes" in answers[1]["body"]
    assert len(list(pieces)) > 9_790


def test_a_slow_client_does_not_hold_its_place(serve, client, place, monkeypatch):
    """256 clients that send one byte a minute closed the service for everybody."""
    monkeypatch.setattr(serve, "SLOWEST", 0.05)
    answers, parts = [], iter([{"type": "http.request", "body": b"--x", "more_body": True}])

    async def receive():
        if (part := next(parts, None)) is None:
            await asyncio.Event().wait()  # nothing more comes, and the connection stays open
        return part

    async def send(message):
        answers.append(message)

    headers = [(b"content-type", b"multipart/form-data; boundary=x")]
    scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b"", "headers": headers}
    asyncio.run(client.app(scope, receive, send))
    assert answers[0]["status"] == 408
    assert b"did not arrive within" in answers[1]["body"]
    monkeypatch.setattr(serve, "SLOWEST", 60)
    assert sent(client, photos_of(place)[0]).status_code == 200


def test_a_full_service_says_when_to_come_back(serve, client, place, monkeypatch):
    """The worker is held, so that two requests wait; a third is refused, and the two are answered."""
    monkeypatch.setattr(serve, "MOST_WAITING", 2)
    predict, at_work, go_on = dear.Model.predict, threading.Event(), threading.Event()

    def held(model, photos, **options):
        at_work.set()
        assert go_on.wait(60)
        return predict(model, photos, **options)

    monkeypatch.setattr(dear.Model, "predict", held)
    (photo, *_), service = photos_of(place), client.app.state.service
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(sent, client, photo)
        assert at_work.wait(60)
        second = pool.submit(sent, client, photo)
        while not service.waiting.qsize():
            threading.Event().wait(0.01)
        refused = sent(client, photo)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert refused.json() == {"detail": "Too many photos are waiting: try again in a second."}
        assert client.get("/health").json() == {"status": "ok", "waiting": 1}
        go_on.set()
        assert first.result().json() == second.result().json()
    assert sent(client, photo).status_code == 200
    monkeypatch.setattr(serve, "MOST_BYTES", 10)
    assert sent(client, photo).status_code == 503


def test_health_and_version(client, monkeypatch):
    assert client.get("/version").json()["versions"]["dear"] == dear.__version__
    monkeypatch.setattr(client.app.state.service, "worker", threading.Thread())
    assert client.get("/health").status_code == 503


def test_a_damaged_photo_does_not_spoil_its_batch(serve, place):
    service, (photo, *_) = serve.Service(place / "run"), photos_of(place)
    batch = [serve.Request(one, service.own_classes, 3, serve.Future()) for one in (photo, b"nothing", photo)]
    service.classify(batch)
    assert batch[0].answer.result(0).label == batch[2].answer.result(0).label
    with pytest.raises(dear.errors.ImageError):
        batch[1].answer.result(0)


def test_about_says_what_answers_and_names_no_path(serve, place, monkeypatch):
    monkeypatch.setenv("DEAR_THREADS", "1")
    service = serve.Service(place / "run")
    about = service.about()
    assert about["versions"]["dear"] == dear.__version__
    assert about["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert about["backbone"]["weights_sha256"] == service.model.clip.weights_sha256
    assert (about["classes"], about["threads"], about["method"]) == (["ant", "bee", "cow"], 1, "dear")
    assert str(Path.home()) not in str(about)
    assert "/" not in about["backbone"]["name"]


def test_the_example_stays_short_and_needs_a_run(serve, monkeypatch):
    assert len((ROOT / "examples" / "serve.py").read_text().splitlines()) <= 220
    monkeypatch.delenv("DEAR_RUN")
    with pytest.raises(SystemExit, match="Set DEAR_RUN"):
        _ = serve.app
