"""Findings that must stay fixed, by the ids of the lists they come from; each is named by a test, `covers("W4")`.

`tests/unit/test_covers.py` checks that none is left without a test. U1 to U6 are the ugly ones: terminal escapes in
file names, markup in the card, formulas in CSV cells, a run inside the data folder, a novel class that is no prompt,
Ctrl-C while the command is being loaded.
"""

FINDINGS: tuple[str, ...] = (
    *("S1", "S2", "S3"),
    *("D1", "D2", "D3", "D4", "D5", "D6"),
    *("W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8", "W9", "W10", "W11"),
    *("H1", "H2", "H3", "L1", "L2"),
    *("C1", "C2", "C3", "C4", "C5", "C6", "C7"),
    *("F1", "F8", "F10", "F17", "F18", "F19", "F24"),
    *("U1", "U2", "U3", "U4", "U5", "U6"),
    *("F2", "F3", "F4", "F5", "F6", "F7", "F9", "F11", "F12", "F13", "F14", "F15", "F16"),
    *("F20", "F21", "F22", "F23", "F25"),
)
