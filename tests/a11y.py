"""axe-core over every kind of page, light and dark, wide and narrow: `python tests/a11y.py AXE_MIN_JS [SHOTS] [PAGE…]`.

Prints what breaks a rule of WCAG 2 at level A or AA, and ends with 1 if anything does. `make a11y` fetches axe-core.
It cannot tell what the words of a chart stand on; tests/unit/reports/test_accessible_pages.py computes their contrast.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from needs import needs
from pages import PAGES

WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
ASK = """rules => axe.run(document, {runOnly: {type: "tag", values: rules}}).then(found => ({
  passes: found.passes.length,
  violations: found.violations.map(one => [one.id, one.help, one.nodes.length, one.nodes[0].html.slice(0, 200)]),
  unsure: found.incomplete.map(one => [one.id, one.nodes.filter(node => !node.html.startsWith("<text")).length])
    .filter(one => one[1]),
}))"""


def check(page: Page, axe: str) -> tuple[int, list[list[object]], list[list[object]]]:
    """The number of rules that hold, what breaks one, and what axe cannot decide; everything folded is opened."""
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    page.evaluate(axe)
    found = page.evaluate(ASK, RULES)
    return found["passes"], found["violations"], found["unsure"]


def main(axe: Path, shots: Path | None, given: list[Path]) -> int:
    """Check all pages, or those given; the number of rules that are broken."""
    broken = 0
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        found = {path.stem: path for path in given} or {name: make(Path(folder)) for name, make in PAGES.items()}
        browser = play.chromium.launch(
            executable_path=needs("chromium", "chromium-browser", "google-chrome"), args=["--no-sandbox"]
        )
        for name, path in found.items():
            for width in WIDTHS:
                for scheme in SCHEMES:
                    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                    page.goto(path.as_uri())
                    if shots is not None:
                        shots.mkdir(parents=True, exist_ok=True)
                        page.screenshot(path=shots / f"{name}-{width}-{scheme}.png", full_page=True)
                    passes, violations, unsure = check(page, axe.read_text(encoding="utf-8"))
                    told = f"{len(violations)} violations, {passes} rules hold, undecided: {unsure or 'none'}"
                    sys.stdout.write(f"{name}, {width} px, {scheme}: {told}\n")
                    for one in violations:
                        sys.stdout.write(f"  {one}\n")
                    broken += len(violations)
                    page.close()
        browser.close()
    return broken


if __name__ == "__main__":
    where = Path(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2] else None
    raise SystemExit(1 if main(Path(sys.argv[1]), where, [Path(one).resolve() for one in sys.argv[3:]]) else 0)
