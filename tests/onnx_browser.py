"""The page examples/onnx/browser in chromium: `python tests/onnx_browser.py DIST [SHOT]`.

DIST has the files of onnxruntime-web, which `make onnxweb` fetches.
Exports an adapter of the embedded world, serves the page on the loopback interface, classifies test images, and
compares labels with `dear.predict` and the input's numbers with `preprocess_eval`. Ends with 1 if anything differs.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

import dear
from needs import needs

ROOT = Path(__file__).resolve().parents[1]
ORT = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
INPUT = """async ([bytes, how]) => {
  const {preprocess} = await import("./preprocess.mjs");
  const bitmap = await createImageBitmap(new Blob([new Uint8Array(bytes)]), {colorSpaceConversion: "none"});
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height), context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0);
  return Array.from(preprocess(context.getImageData(0, 0, canvas.width, canvas.height), how));
}"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def make_site(site: Path, dist: Path) -> tuple[dear.Model, list[Path]]:
    """The page with its files, the model, and photos: test images of the world, one of them larger and not square."""
    shutil.copytree(ROOT / "examples" / "onnx" / "browser", site)
    (site / "ort").mkdir()
    for name in ORT:
        shutil.copyfile(dist / name, site / "ort" / name)
    model = dear.fit("world-blooms", clip="world", shots=1, epochs=1, out=site.parent / "run", threads=1)
    dear.export_onnx(site.parent / "run", site / "exported")
    data = dear.open_dataset("world-blooms")
    pictures = data.images(data.test).spread(8)
    photos = [site.parent / f"{number}.png" for number in range(8)]
    for number, photo in enumerate(photos):
        picture = pictures.open(number)
        (picture.resize((302, 227), Image.Resampling.BICUBIC) if number % 2 else picture).save(photo)
    return model, photos


def differences(page: Page, model: dear.Model, photos: list[Path]) -> int:
    """The number of photos whose label or input differs."""
    how, wrong = page.evaluate("async () => (await (await fetch('exported/model.json')).json()).preprocessing"), 0
    for photo, expected in zip(photos, model.predict(photos), strict=True):
        page.evaluate("document.getElementById('answer').textContent = ''")
        page.set_input_files("#photo", photo)
        page.wait_for_function("document.getElementById('answer').textContent.includes('%')")
        answer = page.text_content("#answer")
        theirs = np.float32(page.evaluate(INPUT, [list(photo.read_bytes()), how]))
        ours = model.clip.preprocess_eval(Image.open(photo)).numpy().ravel()
        apart, label = float(np.abs(theirs - ours).max()), f"{expected.label} {100 * expected.probability:.1f} %"
        wrong += answer != label or apart > 1e-6
        sys.stdout.write(f"{photo.name}: browser {answer}, torch {label}, inputs differ by {apart:.1e}\n")
    return wrong


def main(dist: Path, shot: Path | None) -> int:
    """Compare page and torch; the number of differences and of requests to other hosts."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        site = Path(folder) / "site"
        model, photos = make_site(site, dist)
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
        Thread(target=server.serve_forever, daemon=True).start()
        browser = play.chromium.launch(
            executable_path=needs("chromium", "chromium-browser", "google-chrome"), args=["--no-sandbox"]
        )
        page, asked, home = browser.new_page(), [], f"http://127.0.0.1:{server.server_port}/"
        page.on("request", lambda request: asked.append(request.url))
        page.goto(home)
        page.wait_for_selector("#photo:enabled", timeout=120_000)
        wrong = differences(page, model, photos)
        elsewhere = [url for url in asked if not url.startswith((home, f"blob:{home}", "data:"))]
        sys.stdout.write(f"{wrong} of {len(photos)} photos differ, {len(elsewhere)} requests to other hosts\n")
        if shot is not None:
            page.screenshot(path=shot)
        browser.close()
        server.shutdown()
    return wrong + len(elsewhere)


if __name__ == "__main__":
    where = Path(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2] else None
    raise SystemExit(1 if main(Path(sys.argv[1]), where) else 0)
