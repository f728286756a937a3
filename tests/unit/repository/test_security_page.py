"""What is promised about files of others is found from everywhere, and says how to report a problem."""

from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_security_page_is_linked():
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(explanation/security.md)" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert "explanation/security.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "`SECURITY.md`" in (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")


def test_it_says_what_is_promised_what_is_not_and_how_to_report():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for heading in ("Reporting a vulnerability", "What is guaranteed", "How this is tested", "What is not guaranteed"):
        assert f"## {heading}" in text
    assert "Report a vulnerability" in text
    assert "@" not in text  # reports go to the security page of the repository, not to an address
