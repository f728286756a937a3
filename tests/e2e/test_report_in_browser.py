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

from dear.data.splits import few_shot
from dear.datasets import open_dataset
from dear.engine.job import describe, make_job
from dear.evaluation.tested import TestData
from dear.paper.page import write_paper
from dear.reports.role_page import role_page
from dear.reports.run_data import evaluate_halves, run_page
from dear.reports.run_page import run_html
from dear.reports.sheet import write_sheet
from dear.retrieval.search import Hit
from dear.roles.rolemap import RoleMap
from needs import needs
from papers import findings

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


def paper(folder):
    write_paper(folder, findings())
    return folder / "report.html"


def roles(folder):
    (folder / "roles.html").write_text(role_page(RoleMap.load("vit-b-16"), title="Roles"))
    return folder / "roles.html"


def sheet(folder):
    photo = folder / f"{'a-long-name-without-a-space' * 4}.png"
    Image.new("RGB", (40, 20)).save(photo)
    write_sheet(folder / "sheet.html", "Nearest", photo, [Hit(photo, 0.5)] * 7)
    return folder / "sheet.html"


@pytest.mark.parametrize("make", [paper, roles, sheet])
def test_other_pages_fit_a_phone(make, tmp_path):
    assert size(make(tmp_path), WIDTHS["phone"])[0] <= WIDTHS["phone"]


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
