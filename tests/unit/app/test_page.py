"""The page of the app as it is built: what it serves, what it refuses, and what it escapes. No browser is needed."""

import asyncio
import io
import os
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

import dear
from dear.app.dropped import PREFIX, VARIABLE, prepare_folder
from dear.app.finding import can_swap, kinds, search_photos
from dear.app.heads import heads_page
from dear.app.page import HEADERS, OwnPages, WithHeaders, build, gradio, is_loopback
from dear.app.studio import OpenIndex, Studio
from dear.app.tabs import Wiring, _example, framed, problem
from dear.data.images import ImageList
from dear.errors import ConfigError, ImageError, MissingExtraError
from dear.retrieval.encoder import head_encoder
from helpers import make_photos
from needs import needs


@pytest.fixture
def searching(model, roles, tmp_path):
    """A studio with an index of six photos, made by heads."""
    make_photos(tmp_path / "photos", ["ant", "bee"], 3)
    index = dear.index_images(tmp_path / "photos", tmp_path / "index", clip=model.clip, roles=roles)
    return Studio(model=model, roles=roles, search=OpenIndex(index, head_encoder(model.clip, roles)))


def test_search_shows_names_and_small_copies_only(searching, tmp_path):
    query = tmp_path / "photos" / "ant" / "0.png"
    for by in ("cls", "color", "all"):
        html = search_photos(searching, query, None, by)
        assert "0.png" in html
        assert str(tmp_path) not in html
        assert html.count("data:image/jpeg;base64,") >= 6
    assert "1.00 0.png" in search_photos(searching, query, None, "cls")


def test_search_by_words_and_with_another_attribute(searching, tmp_path):
    one, other = tmp_path / "photos" / "ant" / "0.png", tmp_path / "photos" / "bee" / "1.png"
    assert "<b>" not in search_photos(searching, None, "a <b>red</b> star", "cls")
    assert can_swap(searching)
    assert "color of another image" in search_photos(searching, one, None, "cls", "color", other)
    assert next(kind for _, kind in kinds(searching)) == "cls"


@pytest.mark.parametrize("values", [(None, "", "cls"), (None, "x" * 201, "cls"), (None, "cat", "colour")])
def test_a_bad_question_is_one_sentence(searching, values):
    with pytest.raises(ConfigError):
        search_photos(searching, *values)


def test_without_an_index_nothing_is_searched(model):
    assert kinds(Studio(model=model)) == []
    assert not can_swap(Studio(model=model))
    with pytest.raises(ConfigError, match="dear search index"):
        search_photos(Studio(model=model), None, "cat", None)


def test_heads_have_a_page_or_a_sentence(model, roles):
    assert "Layer" in heads_page(Studio(model=model, roles=roles))
    with pytest.raises(ConfigError, match="dear roles discover"):
        heads_page(Studio(model=model))
    with pytest.raises(ConfigError, match="are not here"):
        heads_page(Studio(model=model, roles=roles), with_examples=True)


def test_a_framed_page_is_escaped_and_has_no_scripts():
    html = framed('<p title="x">"&quot;</p><script>alert(1)</script>', '"><script>')
    assert "<script>" not in html
    assert html.count("<") == 2
    assert 'sandbox="allow-same-origin"' in html
    assert "allow-scripts" not in html
    assert "default-src 'none'" in unescape(unescape(html))  # an attribute of a page in an attribute


def test_a_problem_is_escaped():
    assert problem("<b>") == '<p class="dear-problem" role="alert">&lt;b&gt;</p>'


def test_every_answer_has_the_headers():
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body"})

    async def collect(message):
        sent.append(message)

    asyncio.run(WithHeaders(app)({}, None, collect))
    assert dict(sent[0]["headers"])[b"content-security-policy"].startswith(b"default-src 'self'")
    assert "http" not in HEADERS["content-security-policy"]
    assert sent[1] == {"type": "http.response.body"}


def test_a_missing_package_is_one_sentence(monkeypatch):
    monkeypatch.setattr("dear.app.page.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"dear-vlm\[app\]"):
        gradio()


@pytest.fixture
def page(searching):
    needs("gradio")
    return build(searching)


def test_the_page_is_for_this_computer_only(page):
    assert page.settings["share"] is False
    assert not {"allowed_paths", "auth"} & set(page.settings)
    assert page.settings["max_file_size"] == 20 * 2**20
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert page.blocks.analytics_enabled is False
    assert all(type(font).__name__ == "Font" for font in page.settings["theme"]._font)


def test_tabs_that_have_nothing_to_show_are_left_out(page, model, roles):
    def tabs(page):
        return [one.label for one in page.blocks.blocks.values() if type(one).__name__ == "Tab"]

    assert tabs(page) == ["Predict", "Search", "Heads", "Teach"]
    assert tabs(build(Studio(model=model, roles=roles))) == ["Predict", "Heads", "Teach"]


def test_addresses_are_not_fetched(page, tmp_path):
    """Gradio would download what a request names instead of a file."""
    fields = [one for one in page.blocks.blocks.values() if type(one).__name__ in ("File", "Image")]
    assert sorted(one.elem_id for one in fields) == ["dear-camera", "dear-other", "dear-photos", "dear-query"]
    Image.new("RGB", (4, 4)).save(tmp_path / "one.png")
    for field in fields:
        with pytest.raises(ConfigError, match="uploaded"):
            asyncio.run(field.async_move_resource_to_block_cache("http://127.0.0.1:9/one.png"))
        assert asyncio.run(field.async_move_resource_to_block_cache(str(tmp_path / "one.png"))).endswith("one.png")


def test_the_camera_decodes_nothing_itself(page, tmp_path):
    """Gradio would decode a photo that a request contains as text, in any format that Pillow knows."""
    needs("gradio")
    from gradio.data_classes import ImageData

    camera = next(one for one in page.blocks.blocks.values() if getattr(one, "elem_id", "") == "dear-camera")
    with pytest.raises(ConfigError, match="not sent within a request"):
        camera.preprocess(ImageData(url="data:image/x-tga;base64,AAAA"))
    assert camera.preprocess(ImageData(path=str(tmp_path / "a.png"))) == str(tmp_path / "a.png")
    assert camera.preprocess(None) is None


def test_what_changes_a_session_waits_for_the_change_before(page):
    """Two events of one browser at a time lost photos that were taught, or what was learned from them."""
    lines = {one.api_name: (one.concurrency_id, one.concurrency_limit) for one in page.blocks.fns.values()}
    assert {lines[name] for name in ("add", "learn", "forget")} == {("teaching", 1)}
    assert lines["predict"] == ("model", 2)


@pytest.mark.parametrize(
    ("size", "shown"), [((300, 200), (300, 200)), ((64, 64), (256, 256)), ((3000, 1500), (1024, 512))]
)
def test_an_example_keeps_its_shape(model, size, shown):
    """Photos were squashed to a square, and large ones were refused as larger than 20 MB."""

    def opened(index):
        if index == 0:
            raise ImageError("It is gone.")
        return Image.new("RGB", size)

    files = []
    photos = SimpleNamespace(tested=(1,), examples=lambda: ImageList(("gone", "here"), opened))
    wiring = SimpleNamespace(studio=SimpleNamespace(photos=photos), file=lambda _, content: files.append(content))
    assert _example(wiring, 0)[2] == 2
    assert Image.open(io.BytesIO(files[0])).size == shown


LOCAL = "127.0.0.1:7860"
STRANGE = {
    "another name that points here": ({"host": "evil.example:7860"}, 403),
    "its own name, and no page": ({"host": LOCAL}, 200),
    "localhost": ({"host": "localhost:7860"}, 200),
    "a tunnel": ({"host": "localhost:9000", "origin": "http://localhost:9000"}, 200),
    "version 6": ({"host": "[::1]:7860", "origin": "http://[::1]:7860"}, 200),
    "a page of its own": ({"host": LOCAL, "origin": f"http://{LOCAL}"}, 200),
    "a page of another server": ({"host": LOCAL, "origin": "http://evil.example"}, 403),
    "a page of another port": ({"host": LOCAL, "origin": "http://127.0.0.1:8888"}, 403),
    "a page without an origin": ({"host": LOCAL, "origin": "null"}, 403),
    "both strange": ({"host": "evil.example", "origin": "http://evil.example"}, 403),
    "a name that begins well": ({"host": "127.0.0.1.evil.example"}, 403),
    "no host": ({}, 403),
    "not a host": ({"host": "[::1", "origin": "http://[::1"}, 403),
}


@pytest.mark.parametrize(("headers", "status"), STRANGE.values(), ids=STRANGE)
def test_pages_of_other_servers_are_refused(headers, status):
    """A page anywhere could let its name point to 127.0.0.1, and then read and use the app."""
    needs("gradio")
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})

    async def collect(message):
        sent.append(message)

    scope = {"type": "http", "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
    asyncio.run(OwnPages(app)(scope, None, collect))
    assert sent[0]["status"] == status


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_addresses_of_this_computer(host):
    assert is_loopback(host)
    assert not any(map(is_loopback, ("0.0.0.0", "", "10.0.0.1", "localhost.evil.example", f"{host}.example")))


def test_photos_of_one_name_can_be_chosen_one_by_one(page, tmp_path):
    """Phones call every photo image.jpg, and the first one was explained and taught whichever was chosen."""
    paths = [str(tmp_path / folder / "image.png") for folder in "ab"]
    for folder, color in zip("ab", ("red", "blue"), strict=True):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (40, 40), color).save(tmp_path / folder / "image.png")
    events = list(page.blocks.fns.values())
    predict = next(one.fn for one in events if one.api_name == "predict")
    (teach,) = (one.fn for one in events if [field.elem_id for field in one.outputs] == ["dear-teach-which"])
    names = ["image.png", "image.png (2)"]
    assert [name for _, name in predict(paths, "", False, None)[1].choices] == names
    assert [name for _, name in teach(paths).choices] == ["all photos", *names]


def test_photos_of_killed_apps_are_removed_by_the_next_one(tmp_path, monkeypatch):
    """Gradio's folder is shared, and dropped photos stayed there for ever if the app was killed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "named by the user"))
    prepare_folder()
    assert [path.name for path in tmp_path.iterdir()] == ["named by the user"]
    gone, young, living, other = (
        tmp_path / f"{PREFIX}{name}"
        for name in ("999999998-abcdefgh", "999999998-12345678", f"{os.getpid()}-abcdefgh", "x")
    )
    for folder in (gone, young, living, other):
        folder.mkdir()
        (folder / "photo.png").write_text("a photo")
    for folder in (gone, living, other):
        os.utime(folder, (1, 1))
    monkeypatch.delenv(VARIABLE)
    prepare_folder()
    made = os.environ.pop(VARIABLE)
    assert [one.exists() for one in (gone, young, living, other)] == [False, True, True, True]
    assert Path(made).stat().st_mode & 0o077 == 0


def test_the_same_content_is_one_file_however_often_it_is_asked_for(model, tmp_path, monkeypatch):
    """Every click on an example left a file, which a kill left for ever."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    wiring = Wiring(None, Studio(model=model), None, None)
    paths = [wiring.file("example.png", bytes([turn % 2])) for turn in range(5)]
    assert len(set(paths)) == 2
    assert [Path(path).read_bytes() for path in paths[:2]] == [b"\0", b"\1"]
    assert all(Path(path).is_relative_to(tmp_path) for path in paths)
