"""The report as a browser draws it, at desktop and phone width, beside coarse pictures of how it should look.

After a change on purpose: look at the page, then `pytest tests/e2e/test_report_in_browser.py --snapshot-update`.
"""

import re
import subprocess
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from syrupy.extensions.image import PNGImageSnapshotExtension

import dear
from dear.data.open import open_dataset
from dear.data.splits import few_shot
from dear.engine.job import describe, make_job
from dear.evaluation.test_data import TestData
from dear.reports.run_page import run_html
from dear.workflows.report_data import evaluate_halves, run_page
from needs import needs
from pages import PAGES

WIDTHS = {"desktop": 1280, "phone": 390}
FIRST_SCREENS = 1000  # further down, a line more or less in another font would move everything
COARSE = 16  # pixels across: layout and colours, but not fonts
TOLERANCE = 12  # of 255, on average: fonts differ from machine to machine


class CoarsePicture(PNGImageSnapshotExtension):
    """Pictures are the same if they are nearly the same."""

    def matches(self, *, serialized_data, snapshot_data):
        drawn, kept = (np.asarray(Image.open(BytesIO(one)), dtype=float) for one in (serialized_data, snapshot_data))
        return drawn.shape == kept.shape and np.abs(drawn - kept).mean() < TOLERANCE


pytestmark = pytest.mark.xdist_group("browser")  # one page for all


@pytest.fixture(scope="module")
def page(tiny_clips, tmp_path_factory):
    """A report with every section, of a model that has learned nothing, so that its numbers do not matter."""
    from helpers import varied_roles

    whole = open_dataset("world-textures")
    data = replace(whole, test=tuple(item for item in whole.test if int(item.id.rsplit("/", 1)[1]) < 2))
    clip = tiny_clips["plain"]
    job = make_job(data, shots=1, seed=1, half="base", config={"roles": varied_roles(clip)})
    model = job.build(clip)
    tested = TestData(data, few_shot(data.train, 1, 1), describe(job, model))
    halves = evaluate_halves(model, tested)
    metrics = [
        {"step": i, "total": 2.0 / i, "ce": 1.0 / i, "weight_cls": 0.7, "weight_color": 0.1} for i in range(1, 40)
    ]
    path = tmp_path_factory.mktemp("report") / "report.html"
    html = run_html(run_page(model, tested, describe(job, model), metrics, halves))
    path.write_text(html.replace(clip.name, "a tiny CLIP"))
    return path


FRAME = """<!doctype html><title>-</title><body style="margin:0">
<script>addEventListener("message", said => {{ document.title = said.data }})</script>
<iframe src="probe.html" style="border:0;display:block;width:{width}px;height:{height}px"></iframe>"""
TOLD = 'parent.postMessage(["scrollWidth", "scrollHeight"].map(n => document.documentElement[n]).join("x"), "*")'


def browse(page, width, height, *how):
    """Open a page in a frame of this size: a headless window itself cannot be as narrow as a phone."""
    page.with_name("probe.html").write_text(page.read_text().replace("</body>", f"<script>{TOLD}</script></body>"))
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.format(width=width, height=height))
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1"]
    words += [f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=5000"]
    words += [f"--window-size={max(width, 500)},{height}", *how, frame.as_uri()]
    browser = needs("chromium", "chromium-browser", "google-chrome")
    return subprocess.run([browser, *words], capture_output=True, text=True, check=True, timeout=120).stdout


def size(page, width):
    found = re.search(r"<title>(\d+)x(\d+)</title>", browse(page, width, 900, "--dump-dom"))
    return int(found[1]), int(found[2])


@pytest.mark.covers("F7", "F23")
@pytest.mark.parametrize("name", PAGES)
def test_every_page_fits_a_phone(name, tmp_path):
    page = PAGES[name](tmp_path)
    unfolded = page.read_text().replace("<details", "<details open")
    page.write_text(unfolded)
    assert size(page, WIDTHS["phone"])[0] <= WIDTHS["phone"]


def test_an_explanation_fits_a_phone(tiny_clips, tmp_path):
    from helpers import varied_roles

    clip, names = tiny_clips["plain"], ["a_long_name_without_a_space_" * 4, "cat", "dog"]
    page = tmp_path / "why.html"
    dear.explain(clip, Image.radial_gradient("L"), names, roles=varied_roles(clip), out=page)
    assert size(page, WIDTHS["phone"])[0] <= WIDTHS["phone"]


@pytest.mark.parametrize("screen", WIDTHS)
def test_the_page_looks_as_it_should(page, snapshot, screen):
    width = WIDTHS[screen]
    across, down = size(page, width)
    assert across <= width, "the page has to be scrolled sideways"
    shot = page.with_name(f"{screen}.png")
    browse(page, width, down, f"--screenshot={shot}")
    picture = Image.open(shot).convert("RGB").crop((0, 0, width, FIRST_SCREENS))
    small = picture.resize((COARSE, COARSE * FIRST_SCREENS // width), Image.Resampling.BOX)
    small.save(page.with_name("small.png"))
    assert page.with_name("small.png").read_bytes() == snapshot(extension_class=CoarsePicture)
