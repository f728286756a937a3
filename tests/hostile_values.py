"""Values that a stranger types, puts into a file, or passes in Python; and what may become of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dear.config import LARGEST_FLOAT, MOST_BITS
from dear.errors import LONGEST

NUMBERS = (
    "nan",
    "NaN",
    "inf",
    "-inf",
    "Infinity",
    "-1",
    "-0",
    "-0.5",
    "0",
    "0.0",
    "1e308",
    "1e400",
    "-1e308",
    "1e-400",
)
NUMBERS += ("9" * 19, "9" * 30, "9" * 5000, "1" + "0" * 400, "0x10", "1_000", "1e", "\uff11\uff12", "\u00b2", "1,nan")
NUMBERS += ("0/0", "9/1", "1/99999999999999999999", "nans", "infh", "-1h", "1e999h", "0s", "1d", "1e-320s")
TEXTS = (" ", "\t", "a" * 100_000, "ä" * 5000, "\x1b[31mred", "a\nb", "a\r\nb", "\u202eabc", "\u0085", "\udcff")
TEXTS += (
    "\U0001f600" * 300,
    "-",
    "--",
    "---",
    "-x",
    "--resume",
    "-5",
    "--=",
    "{}",
    "{0}{x!r:{y}}",
    "%s%n",
    "[red]x[/]",
)
TEXTS += ("<b>", "'", '"', "`", "$(x)", "a,b", ",", ",,", ", ,", "=", "x=", "=x", "x=nan", "x=1,nan", "a=b=c", "[")
TEXTS += ("[" * 5000, "null", "true", "None", "..", "../..", "/", "//", "/dev/null", "/dev/zero", "~", "file:///etc")
TEXTS += ("s3://x/y", "ray:", "ray://x", "ray:x:99999", "ray:[", "hf-hub:", "local-dir:", "hf-hub:../..")
TEXTS += ("local-dir:/dev", "a/" * 3000)
TYPED = (*NUMBERS, *TEXTS, "")
"""What can be typed; no word of a command line contains a null character."""
OBJECTS: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 10**18, 10**19, -(10**19), 10**400, 10**5000, 1.5, -0.5, -0.0, 1e308, 1e-320, math.nan),
    *(math.inf, -math.inf, 1j, b"", b"x", (), [], {}, set(), [[]], [None], [math.nan], [10**30], [True], ["", " "]),
    *(["a\0b"], "a\0b", Path("a\0b"), Path(), {"x": math.nan}, {"x": [math.nan]}, {1: 2}, {"": 1}, {"x": {"y": {}}}),
    *({"x": 10**30}, list(range(20_000)), range(3), iter([1]), object(), object, len, np.float64("nan"), np.int64(3)),
    *(torch.ones(2), torch.tensor(math.nan), np.array([1, math.nan])),
)


def problem_of(said: str) -> str:
    """Why a refusal is not what is promised: one line of bounded length that ends as a sentence does."""
    if "\n" in said:
        return "more than a line"
    if len(said) > LONGEST:
        return f"{len(said)} letters"
    if not said.endswith((".", "?", "!")):
        return "not a sentence"
    return ""


def unusable(value: object, where: str = "") -> str:
    """The first part of an accepted value that nothing can compute with: NaN, infinity, what no tensor can hold."""
    if isinstance(value, Mapping):
        return next((bad for name, one in value.items() if (bad := unusable(one, f"{where}.{name}"))), "")
    if isinstance(value, list | tuple):
        return next((bad for place, one in enumerate(value) if (bad := unusable(one, f"{where}[{place}]"))), "")
    if isinstance(value, float) and not abs(value) <= LARGEST_FLOAT:
        return f"{where} is {value}"
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return f"{where} has {value.bit_length()} bits"
    if isinstance(value, Path) and (not str(value).strip() or "\0" in str(value)):
        return f"{where} is {value!r}"
    return ""
