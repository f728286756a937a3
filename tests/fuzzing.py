"""Mutations of valid files, chosen by hypothesis, and limits of time and memory for whoever reads them.

A reader may take a mutant or refuse it with a `DearError` (or the disk's `OSError`) of one sentence. Anything else is a
failure: another exception, a hang, gigabytes.
"""

from __future__ import annotations

import copy
import faulthandler
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dear.errors import DearError
from dear.evaluation.choice import Choice
from dear.storage import documents

SECONDS, MEGABYTES = 20, 700
"""Limits of one input: time, and memory beyond what the process had before."""
LONGEST = 2500
"""Letters of a sentence."""
NASTY = (
    None, True, False, [], {}, "", "x", -1, 0, 3, 1.5, -0.0, 1e308, 5e-324, 10**18, 2**63, -(2**63), 10**30, 10**400,
    [[]], {"a": None}, "\x1b[31m", "../../etc/passwd", "/etc/passwd", "a\0b", "\ud800", "x" * 20_000, "{}", "%s", "<b>",
    "[red]", "=1+1", "\u202e", [None] * 50, list(range(300)), {str(n): n for n in range(50)}, ["a", "a"], "NaN", ".",
    "1e999", "..", "hf-hub:a/b", "local-dir:/etc", "nan", "line\nbreak",
)  # fmt: skip
"""What is put in the place of an entry of a document."""
TEXTS = (
    b"", b"\xff\xfe", b"\xef\xbb\xbf", b"null", b"[]", b"3", b'"x"', b"{", b"[" * 50_000, b"[" * 900 + b"]" * 900,
    b'{"a": 1, "a": 2}', b"\0" * 64, b"1e999", b"NaN", b"-" * 1000, b'{"a":' * 500 + b"1" + b"}" * 500, b"9" * 5000,
)  # fmt: skip
"""What is put in the place of a whole file, or added to it."""

place = st.integers(0, 2**20)
edit = st.tuples(place, st.sampled_from(["replace", "remove", "double", "rename", "move", "deepen", "widen"]), place)
tree_edits = st.lists(edit, min_size=1, max_size=3)
byte_edit = st.tuples(
    place, st.sampled_from(["flip", "set", "insert", "delete", "cut", "copy", "number", "text"]), place
)
byte_edits = st.lists(byte_edit, min_size=1, max_size=5)


class HangError(BaseException):
    """An input took too long."""


def mutated(content: Any, edits: list[tuple[int, str, int]]) -> Any:
    """A JSON tree with some entries replaced, removed, doubled, renamed, exchanged or nested."""
    found = [copy.deepcopy(content)]  # so that the root can be replaced as well
    for at, kind, value in edits:
        places = list(_places(found))
        parent, key = places[at % len(places)]
        other_parent, other = places[value % len(places)]
        nasty = copy.deepcopy(NASTY[value % len(NASTY)])
        if kind == "replace":
            parent[key] = nasty
        elif kind == "remove" and parent is not found:
            del parent[key]
        elif kind == "double" and isinstance(parent, list) and parent is not found:
            parent.append(copy.deepcopy(parent[key]))
        elif kind == "rename" and isinstance(parent, dict):
            parent[str(nasty)[:50]] = parent.pop(key)
        elif kind == "move":
            parent[key] = copy.deepcopy(other_parent[other])
        elif kind == "deepen":
            for _ in range(1 + value % 400):
                parent[key] = [parent[key]]
        elif kind == "widen":
            parent[key] = [parent[key]] * (value % 200)
    return found[0]


def _places(content: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """Every entry of a tree as its parent and its key; of a long list only the first few, and not the deepest."""
    entries = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(entries)[:40] if depth < 12 else ():
        yield content, key
        yield from _places(value, depth + 1)


def changed_bytes(data: bytes, edits: list[tuple[int, str, int]]) -> bytes:
    """Bytes with some flipped, set, inserted, removed, copied, or overwritten by a number."""
    found = bytearray(data)
    for at, kind, value in edits:
        where = at % (len(found) + 1)
        if kind == "flip" and found:
            found[where % len(found)] ^= 1 << value % 8
        elif kind == "set" and found:
            found[where % len(found)] = (0, 255, 127, 128, 10, 34)[value % 6]
        elif kind == "insert":
            found[where:where] = bytes([value % 256]) * (1 + value % 70)
        elif kind == "delete":
            del found[where : where + 1 + value % 300]
        elif kind == "cut":
            del found[where:]
        elif kind == "copy":
            found[where:where] = found[value % (len(found) + 1) :][:500]
        elif kind == "number":
            size = (2, 4, 8)[value % 3]
            number = (0, 2**63 - 1, 2**31, 2**32 - 1, 10**9, 2**16)[value % 6] % 2 ** (8 * size)
            found[where : where + size] = number.to_bytes(size, "little" if value % 2 else "big")
        elif kind == "text":
            found[where:where] = TEXTS[value % len(TEXTS)][:2000]
    return bytes(found)


def as_json(content: Any, seal: Callable[[Any], str] | None) -> bytes:
    """A mutant as text, with a seal that fits if the document has one."""
    try:
        if seal and isinstance(content, dict):
            content = {**content, documents.SEAL: seal(content)}
        return json.dumps(content).encode()
    except (ValueError, RecursionError):  # too deep to be written at all
        return b"[" * 900 + b"]" * 900


def in_header(data: bytes, edits: list[tuple[int, str, int]]) -> bytes:
    """A safetensors file with a mutated header: other shapes, types, offsets, names or metadata."""
    size = int.from_bytes(data[:8], "little")
    header = as_json(mutated(json.loads(data[8 : 8 + size]), edits), None)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


@contextmanager
def limited(base: int) -> Iterator[None]:
    """Time and memory for one input; `base` is the largest memory of the process before."""

    def stop(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    faulthandler.dump_traceback_later(6 * SECONDS, exit=True)  # for what does not return to Python at all
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        faulthandler.cancel_dump_traceback_later()
        more = largest_memory() - base
    assert more < MEGABYTES, f"it took {more} MB"


def largest_memory() -> int:
    """The largest resident memory of this process so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (20 if sys.platform == "darwin" else 10)


def outcome(read: Callable[[], object], base: int) -> str | None:
    """What a reader says against an input; None if it takes it. Everything but a sentence is a failure."""
    refusal = None
    try:
        with limited(base):
            read()
    except (DearError, OSError) as error:
        refusal = error
    if refusal is None:
        return None
    said = str(refusal)
    assert len(said) < LONGEST or not isinstance(refusal, DearError), f"{len(said)} letters: {said[:200]}"
    assert "\n" not in said, said[:500]
    return said


def fuzz(
    path: Path,
    read: Callable[[], object],
    strategy: Any,
    change: Callable[[bytes, Any], bytes],
    *,
    many: bool,
    examples: int,
) -> None:
    """Replace a file by mutants of it and read each; with DEAR_FUZZ_LOG, the numbers are added to that file."""
    whole, count = path.read_bytes(), {"tried": 0, "refused": 0, "taken": 0}
    read()
    base = largest_memory()

    @settings(
        max_examples=examples * (int(os.environ.get("DEAR_FUZZ_TIMES", "20")) if many else 1),
        derandomize=not many,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink] if many else [Phase.generate],
        print_blob=True,
    )
    @given(strategy)
    def run(edits: Any) -> None:
        path.write_bytes(change(whole, edits))
        said = outcome(read, base)
        count["tried"] += 1
        count["taken" if said is None else "refused"] += 1

    try:
        run()
    finally:
        path.write_bytes(whole)
        if log := os.environ.get("DEAR_FUZZ_LOG"):
            with Path(log).open("a") as file:
                file.write(json.dumps({"file": path.name, **count}) + "\n")


def fuzz_json(
    path: Path,
    read: Callable[[], object],
    *,
    many: bool = False,
    examples: int = 60,
    seal: Callable[[Any], str] = documents.seal,
) -> None:
    """Mutate the tree of a JSON document, and now and then its bytes."""
    whole = json.loads(path.read_bytes())
    sealed = seal if isinstance(whole, dict) and documents.SEAL in whole else None

    def change(data: bytes, drawn: tuple[str, Any]) -> bytes:
        kind, edits = drawn
        if kind == "whole":
            return TEXTS[edits % len(TEXTS)]
        return changed_bytes(data, edits) if kind == "bytes" else as_json(mutated(whole, edits), sealed)

    one = st.one_of(
        *[st.tuples(st.just("tree"), tree_edits)] * 6,
        st.tuples(st.just("bytes"), byte_edits),
        st.tuples(st.just("whole"), place),
    )
    fuzz(path, read, one, change, many=many, examples=examples)


def fuzz_bytes(path: Path, read: Callable[[], object], *, many: bool = False, examples: int = 60) -> None:
    """Mutate the bytes of a file."""
    fuzz(path, read, byte_edits, changed_bytes, many=many, examples=examples)


def fuzz_tensors(path: Path, read: Callable[[], object], *, many: bool = False, examples: int = 60) -> None:
    """Mutate the header of a safetensors file, or its bytes."""

    def change(data: bytes, drawn: tuple[str, Any]) -> bytes:
        kind, edits = drawn
        return in_header(data, edits) if kind == "header" else changed_bytes(data, edits)

    one = st.one_of(*[st.tuples(st.just("header"), tree_edits)] * 3, st.tuples(st.just("bytes"), byte_edits))
    fuzz(path, read, one, change, many=many, examples=examples)


def small_choice() -> Choice:
    """A search for the best of two methods, complete."""
    answers = {"fold 1": [0, 1], "fold 2": [0, 0], "new": [1]}
    return Choice(
        data="x", mark="m", seed=1, shots=2, fold_shots=1, keep_novel=1.0, classes=["ant", "bee"],
        images=["a", "b", "c", "d"], labels=[0, 1, 0, 1],
        trials=[
            {"name": "fold 1", "kind": "learned", "images": [0, 1], "classes": [0, 1]},
            {"name": "fold 2", "kind": "learned", "images": [2, 3], "classes": [0, 1]},
            {"name": "new", "kind": "novel", "images": [1], "classes": [1]},
        ],
        candidates=[
            {"method": "zero_shot", "state": "tried", "answers": answers},
            {"method": "coop", "state": "tried", "answers": answers, "bytes": 10},
            {"method": "maple", "state": "not tried", "why": "slow"},
        ],
        curve={"1": {"fold 1": [0, 0], "fold 2": [0, 0]}, "2": {"fold 1": [0, 0], "fold 2": [0, 0]}},
        chosen="zero_shot", seconds={"training": {"coop": 3.0}, "estimated": {"maple": 9.0}, "budget": 60.0},
    )  # fmt: skip
