"""The app in a browser: a photo is dropped, classes are typed, and nothing but this computer is asked.

The short test has a tiny CLIP. The slow ones open what `dear app` alone opens.
"""

import json
import re
import threading
import zipfile
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from PIL import Image

import dear
from dear.app.page import build
from dear.app.studio import Studio
from dear.storage.user_cache import cache_home
from needs import needs

pytestmark = pytest.mark.xdist_group("app")
WIDTHS = (1280, 390)
QUIET = ("--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync")
CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
EVIL = "<img src=x onerror=alert(1)>"


@contextmanager
def served(studio):
    page = build(studio)
    address = page.open(host="127.0.0.1", port=None, browser=False)
    try:
        yield address
    finally:
        page.close()


@pytest.fixture(scope="module")
def browser():
    needs("gradio"), needs("playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        found = play.chromium.launch(
            executable_path=needs("chromium", "chromium-browser", "google-chrome"), args=[*QUIET, *CAMERA]
        )
        yield found
        found.close()


@contextmanager
def visited(browser, address, width=1280):
    """A page in a browser of its own, and everything that it asks for; it may ask for nothing but the app."""
    context = browser.new_context(viewport={"width": width, "height": 900})
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    page.set_default_timeout(120_000)
    page.goto(address)
    page.wait_for_selector("#dear-photos input[type=file]", state="attached")
    yield page
    assert {urlsplit(one).netloc for one in asked if not one.startswith(("data:", "blob:", "about:"))} == {
        urlsplit(address).netloc
    }
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def drop(page, *paths):
    page.set_input_files("#dear-photos input[type=file]", [str(path) for path in paths])


def answers(page, count=1):
    page.wait_for_function(f"document.querySelectorAll('.dear-answer h3').length == {count}")
    return page.locator(".dear-answer h3").all_inner_texts()


def names_in(text):
    return {one.strip() for one in text.split(",")}


def classify(page, classes):
    """Type classes, and wait until the answer is about exactly these: at most five, as more are not shown."""
    page.fill("#dear-classes :is(textarea, input)", classes)
    page.press("#dear-classes :is(textarea, input)", "Enter")
    page.wait_for_function(
        """wanted => {
            const shown = [...document.querySelectorAll('.dear-bars th')].map(one => one.innerText);
            return shown.length == wanted.length && wanted.every(one => shown.includes(one));
        }""",
        arg=sorted(names_in(classes)),
    )


def choose(page, tab):
    page.locator("button[role=tab]:visible", has_text=tab).click()


def test_a_photo_gets_its_answer(browser, model, roles, tmp_path):
    Image.new("RGB", (48, 48), "red").save(photo := tmp_path / "photo.png")
    (bad := tmp_path / "bad.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0")
    expected = model.predict([photo])[0].label
    with served(Studio(model=model, roles=roles)) as address, visited(browser, address, 390) as page:
        drop(page, photo, bad)
        assert answers(page) == [expected]
        assert page.inner_text(".dear-problem").startswith("bad.png cannot be read")
        classify(page, f"zebra, {EVIL}")
        page.click("#dear-why")
        frame = page.wait_for_selector("#dear-reasons iframe").content_frame()
        assert "Why" in frame.inner_text("h1")


@pytest.mark.slow
def test_a_camera_shot_gets_an_answer(browser, model, roles):
    with served(Studio(model=model, roles=roles)) as address, visited(browser, address) as page:
        page.get_by_text("Use the camera").click()
        page.get_by_text("Click to Access Webcam").click()
        page.wait_for_function("() => document.querySelector('#dear-camera video')?.videoWidth > 0")  # it has a picture
        page.click("#dear-camera button[aria-label='capture photo']")
        assert answers(page)[0] in model.required_classes().names


# What follows trains the quickstart's adapter first.


@pytest.fixture(scope="module")
def world_app(tmp_path_factory):
    """`dear app` alone."""
    needs("gradio")
    opened = dear.open_app(browser=False, wait=False)
    yield opened.address
    opened.close()


@pytest.fixture(scope="module")
def drawings(tmp_path_factory):
    """Test images of the adapter's classes: (path, class)."""
    folder, data = tmp_path_factory.mktemp("drawings"), dear.open_dataset("world-blooms")
    found = []
    for item in [item for item in data.test if item.label < 12 and item.id.endswith(("/1", "/2"))]:
        name = data.class_names[item.label]
        data.open(item.id).resize((256, 256), 0).save(path := folder / f"{name}-{len(found)}.png".replace(" ", "-"))
        found.append((path, name))
    return found


def index_folder():
    return cache_home() / "app" / "index"


@pytest.fixture(scope="module")
def run(world_app):
    return dear.load(cache_home() / "app" / "quickstart")


def shot(page, name):
    """Screenshots for people: set APP_SHOTS to a folder."""
    import os

    if folder := os.environ.get("APP_SHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_the_whole_app(browser, world_app, run, drawings, width):
    predicted = run.predict([path for path, _ in drawings])
    good = next(path for (path, name), one in zip(drawings, predicted, strict=True) if one.label == name)
    wrong, name = next((path, name) for (path, name), one in zip(drawings, predicted, strict=True) if one.label != name)
    with visited(browser, world_app, width) as page:
        shot(page, f"start-{width}")
        drop(page, good)
        assert answers(page) == [re.sub(r"-\d+$", "", good.stem).replace("-", " ")]
        shot(page, f"predict-{width}")
        page.click("#dear-why")
        assert "color" in page.wait_for_selector("#dear-reasons iframe").content_frame().inner_text("body")
        shot(page, f"why-{width}")
        classify(page, "a red star, a house")
        assert "not calibrated" in page.inner_text("#dear-answers")

        choose(page, "Search")
        page.set_input_files("#dear-query input[type=file]", str(good))
        page.wait_for_selector(".dear-found img")
        page.click("#dear-by input")
        page.get_by_role("option", name="color").click()
        page.click("#dear-search")
        page.wait_for_function("document.querySelector('.dear-found').innerText.includes('Nearest by color')")
        expected = [f"{hit.score:.2f} {hit.path.name}" for hit in dear.search(index_folder(), good, by="color")]
        assert [
            re.sub(r"[()]", "", one) for one in page.locator(".dear-found figcaption").all_inner_texts()
        ] == expected
        shot(page, f"search-{width}")

        choose(page, "Heads")
        assert "Layer 9, head 0" in page.wait_for_selector("#dear-heads iframe").content_frame().inner_text("body")
        choose(page, "Report")
        assert "named correctly" in page.wait_for_selector("#dear-report iframe").content_frame().inner_text("body")

        choose(page, "Predict")
        page.fill("#dear-classes :is(textarea, input)", "")
        page.click("#dear-photos button[aria-label=Clear]")
        drop(page, wrong)
        page.wait_for_function(f"document.querySelector('.dear-answer img')?.alt == '{wrong.name}'")
        assert answers(page) != [name]
        choose(page, "Teach")
        page.fill("#dear-label input", name)
        page.press("#dear-label input", "Enter")
        page.click("#dear-add")
        page.wait_for_selector("#dear-lessons img")
        page.click("#dear-learn")
        page.wait_for_selector(".dear-scores")
        assert "before" in page.inner_text(".dear-scores")
        shot(page, f"teach-{width}")
        with page.expect_download() as saved:
            page.click("#dear-save")
        assert saved.value.suggested_filename == "taught.zip"
        assert "taught/adapter_config.json" in zipfile.ZipFile(saved.value.path()).namelist()
        choose(page, "Predict")
        page.click("#dear-classify")
        page.wait_for_function("document.querySelector('#dear-answers').innerText.includes('that you taught')")
        assert answers(page) == [name]
    with visited(browser, world_app, width) as page:  # another browser has the adapter as it was
        drop(page, wrong)
        assert answers(page) != [name]


@pytest.mark.slow
def test_search_by_color_finds_colors(world_app, drawings):
    """Over all drawings: the four nearest by color have the color more often than the four nearest as a whole."""

    def share(by):
        found = [(path, dear.search(index_folder(), path, by=by, top_k=4)) for path, _ in drawings]
        same = [hit.path.name.split("-")[0] == path.name.split("-")[0] for path, hits in found for hit in hits]
        return sum(same) / len(same)

    assert share("color") > share("cls") + 0.1


@pytest.mark.slow
def test_two_browsers_never_mix(browser, world_app, run, drawings):
    """Two pages with different classes, and 200 requests of two clients at the same time."""
    from gradio_client import Client, handle_file

    lists = ("red star, green heart, blue bolt", "a house, a tree, a boat, a car")
    paths = [path for path, _ in drawings]

    def labels(text):
        return [one.label for one in run.for_classes([one.strip() for one in text.split(",")]).predict(paths)]

    wanted = {text: labels(text) for text in lists}
    mixed, done = [], []

    def ask(text):
        client = Client(world_app, verbose=False)
        for turn in range(100):
            number = turn % len(paths)
            html, *_ = client.predict([handle_file(str(paths[number]))], text, True, api_name="/predict")
            label, names = re.search(r"<h3>(.*?)</h3>", html)[1], set(re.findall(r'scope="row">(.*?)<', html))
            done.append(text)
            if label != wanted[text][number] or names != names_in(text):
                mixed.append((text, number, label, names))

    threads = [threading.Thread(target=ask, args=(text,)) for text in lists]
    with visited(browser, world_app) as first, visited(browser, world_app, 390) as second:
        for thread in threads:
            thread.start()
        for page in (first, second):
            drop(page, paths[0])
            answers(page)
        for turn in range(5):
            for page, text in zip((first, second), lists, strict=True):
                classify(page, f"{text}, thing {turn}")
                assert answers(page) == labels(f"{text}, thing {turn}")[:1]
        for thread in threads:
            thread.join()
    assert (len(done), mixed) == (200, [])


@pytest.mark.slow
def test_hostile_uploads_are_sentences(world_app, tmp_path):
    """A bomb, 30 MB, EPS, no image, another file of this computer, an address: the app goes on."""
    import httpx
    from gradio_client import Client, handle_file

    client = Client(world_app, verbose=False)

    def ask(path):
        return client.predict([handle_file(str(path))], "", True, api_name="/predict")[0]

    Image.new("1", (20_000, 20_000)).save(bomb := tmp_path / "bomb.png")
    assert "far too many pixels" in ask(bomb)
    for name, content in (("eps.png", b"%!PS-Adobe-3.0 EPSF-3.0\n"), ("empty.jpg", b""), ("html.png", b"<script>")):
        (tmp_path / name).write_bytes(content)
        assert f"{name} cannot be read" in ask(tmp_path / name)
    (large := tmp_path / "large.png").write_bytes(b"\0" * 30_000_000)
    with pytest.raises(Exception, match=r"(?i)size|413"):
        ask(large)
    for place in ("/etc/hostname", "http://127.0.0.1:9/x.png"):
        data = {"data": [[{"path": place, "meta": {"_type": "gradio.FileData"}}], "", True]}
        event = httpx.post(f"{world_app}gradio_api/call/predict", json=data).json()["event_id"]
        told = httpx.get(f"{world_app}gradio_api/call/predict/{event}", timeout=60).text
        assert "event: error" in told
    Image.new("RGB", (64, 64)).save(good := tmp_path / "good.png")
    assert "<h3>" in ask(good)
    assert json.loads(httpx.get(f"{world_app}config").text)["analytics_enabled"] is False
