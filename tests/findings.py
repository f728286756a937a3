"""Findings that must stay fixed, by the ids of the lists they come from; each is named by a test, `covers("W4")`.

`tests/unit/test_covers.py` checks that none is left without a test.
"""

FINDINGS: tuple[str, ...] = ()
