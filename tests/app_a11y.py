"""axe-core over every tab of the app, light and dark, wide and narrow: `python tests/app_a11y.py AXE_MIN_JS [RUN]`.

Opens what `dear app` opens, prints what breaks a rule of WCAG 2 at level A or AA, and ends with 1 if anything does.
Pages within the page have no scripts, so axe cannot look into them: tests/a11y.py checks these kinds of pages.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import dear
from a11y import SCHEMES, WIDTHS, check
from needs import needs


def walk(page: Page, photo: Path):
    """Use every tab once, and stop at each."""
    yield "start"
    page.set_input_files("#dear-photos input[type=file]", str(photo))
    page.wait_for_selector(".dear-answer")
    page.click("#dear-why")
    page.wait_for_selector("#dear-reasons iframe, #dear-reasons .dear-problem")
    yield "Predict"
    for tab in ("Search", "Heads", "Teach", "Report"):
        button = page.locator("button[role=tab]:visible", has_text=tab)
        if not button.count():
            continue
        button.click()
        if tab == "Search":
            page.fill("#dear-words :is(textarea, input)", "a red star")
            page.click("#dear-search")
            page.wait_for_selector(".dear-found")
        if tab == "Teach":
            page.fill("#dear-label input", "a new class")
            page.press("#dear-label input", "Enter")
            page.click("#dear-add")
            page.wait_for_selector("#dear-lessons img")
            page.click("#dear-learn")
            page.wait_for_selector(".dear-scores")
        yield tab


def main(axe: str, run: str | None) -> int:
    """Check all tabs; the number of rules that are broken."""
    broken, opened = 0, dear.open_app(run, browser=False, wait=False)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        Image.radial_gradient("L").save(photo := Path(folder) / "photo.png")
        browser = play.chromium.launch(
            executable_path=needs("chromium", "chromium-browser", "google-chrome"), args=["--no-sandbox"]
        )
        for width in WIDTHS:
            for scheme in SCHEMES:
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page.set_default_timeout(120_000)
                page.goto(opened.address)
                page.wait_for_selector("#dear-photos input[type=file]", state="attached")
                for name in walk(page, photo):
                    passes, violations, unsure = check(page, axe)
                    told = f"{len(violations)} violations, {passes} rules hold, undecided: {unsure or 'none'}"
                    sys.stdout.write(f"app, {name}, {width} px, {scheme}: {told}\n")
                    for one in violations:
                        sys.stdout.write(f"  {one}\n")
                    broken += len(violations)
                page.close()
        browser.close()
    opened.close()
    return broken


if __name__ == "__main__":
    sys.exit(1 if main(Path(sys.argv[1]).read_text(encoding="utf-8"), *(sys.argv[2:3] or [None])) else 0)
