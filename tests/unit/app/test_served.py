"""The app as it is served on loopback: guessed paths, strange hosts and origins, and uploads that are too large."""

import http.client
import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dear.app.page import build
from dear.app.studio import LARGEST_PHOTO, Studio
from needs import needs

SECRET = "nobody may read this"


@pytest.fixture(scope="module")
def address(tiny_clips, tmp_path_factory):
    needs("gradio")
    from dear.methods.zero_shot import ZeroShot
    from dear.model.model import Model

    clip = tiny_clips["plain"]
    page = build(Studio(model=Model(clip, ZeroShot(clip, ZeroShot.Config()), None)))
    yield page.open(host="127.0.0.1", port=None, browser=False)
    page.close()


def ask(address, path, *, method="GET", body=None, **headers):
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def upload(address, content, **headers):
    head = b'--B\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    headers = {"Content_Type": "multipart/form-data; boundary=B", **headers}
    return ask(address, "/gradio_api/upload", method="POST", body=head + content + b"\r\n--B--\r\n", **headers)


def test_no_path_that_is_guessed_is_served(address, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    _, said = upload(address, b"not a photo")
    (mine,) = json.loads(said)
    assert ask(address, f"/gradio_api/file={mine}")[1] == b"not a photo"  # only who sent it knows this name
    above = f"{Path(mine).parent}/{'../' * 20}".replace("//", "/")
    guesses = [str(secret), f"{above}{str(secret)[1:]}", "/etc/passwd", "../../../../etc/passwd", "/proc/self/environ"]
    guesses += [f"{Path(mine).parent}/..%2f..%2f..%2f..%2fetc%2fpasswd", "C:/Windows/win.ini", "//127.0.0.1/etc/passwd"]
    for guess in guesses:
        for start in ("/gradio_api/file=", "/file=", "/gradio_api/file/", "/static/", "/assets/"):
            status, answer = ask(address, f"{start}{guess}")
            assert status >= 300, (start, guess, status)
            assert SECRET.encode() not in answer
            assert b"root:" not in answer
    assert ask(address, f"/gradio_api/proxy={address}")[0] >= 400
    assert ask(address, "/gradio_api/file=http://127.0.0.1:9/x")[0] >= 300


def test_other_pages_can_neither_read_nor_send(address):
    assert ask(address, "/")[0] == 200
    assert ask(address, "/", Host="evil.example")[0] == 403
    assert ask(address, "/config", Host="evil.example:7860")[0] == 403
    assert upload(address, b"x", Origin="http://evil.example")[0] == 403
    assert upload(address, b"x", Origin=f"http://{urlsplit(address).netloc}")[0] == 200


def test_a_large_upload_is_refused(address):
    status, _ = upload(address, b"x" * (LARGEST_PHOTO + 1_000_000))
    assert status in (400, 413)
    assert ask(address, "/")[0] == 200
