"""Search in a million images: one text query in a fresh process, and exact search beside faiss, on clustered vectors.

Clustered vectors of unit length × 6 kinds are appended as segments in parts, each timed. Then
1. a fresh process loads a CLIP with random weights from a file and answers one text query, before and after
   `dear search build`;
2. queries near the vectors ("photos") and far from all of them ("texts") are answered by the exact store, by faiss with
   one list (exact) and with many lists: CPU milliseconds per query by one thread, and recall@10;
3. a process that appends is ended with SIGKILL at random moments, and every acknowledged part must be in the index.
With --world N, recall is also measured on features of the world's CLIP, which are less clustered, with its texts.

    python benchmarks/search_lists.py --rows 1000000 --world 16000 --out results/search-lists.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import torch.nn.functional as F
from search_index import resident
from torch import Tensor

from dear.backbone.load import load_clip
from dear.retrieval.build_lists import build_lists, default_lists
from dear.retrieval.encoder import _from_groups
from dear.retrieval.index import Index, Manifest, Writer, read_index
from dear.retrieval.lists import Lists, open_lists
from dear.retrieval.search import row_cosines, top
from dear.retrieval.segments import Stamp

NAMES = ["color", "shape", "texture", "object", "location"]
KINDS = ["cls", *NAMES]
SEGMENT, NEAREST, SPREAD, FRESH = 20_000, 10, 0.9, 3


def centres(count: int, embed: int) -> Tensor:
    return F.normalize(torch.randn(count, embed, generator=torch.Generator().manual_seed(0)), dim=1)


def vectors(number: int, rows: int, around: Tensor, share: float = 1.0) -> Tensor:
    """(rows, E) around centres; with a smaller share they are far from all of them, as texts are from photos."""
    chance = torch.Generator().manual_seed(1000 + number)
    chosen = around[torch.randint(len(around), (rows,), generator=chance)]
    noise = torch.randn(rows, around.shape[1], generator=chance) / around.shape[1] ** 0.5
    return F.normalize(share * chosen + SPREAD * noise, dim=1)


def part(number: int, rows: int, around: Tensor) -> tuple[Tensor, list[Stamp]]:
    """Features and files of one part; kinds that no query compares are copies of the first."""
    features = vectors(number, rows, around)[:, None].expand(-1, len(KINDS), -1)
    return features, [Stamp(f"album-{number:04d}/photo-{row:06d}.jpg", 1000 + row, row) for row in range(rows)]


def grow(folder: Path, form: Manifest, rows: int, around: Tensor) -> dict[str, Any]:
    """Append parts as later processes do; CPU seconds of each."""
    seconds = []
    for number in range(-(-rows // SEGMENT)):
        features, stamps = part(number, min(SEGMENT, rows - number * SEGMENT), around)
        start = time.process_time()
        writer = Writer.continued(read_index(folder)) if number else Writer(folder, form)
        writer.append(features, stamps)
        seconds.append(time.process_time() - start)
    few = max(1, len(seconds) // 10)
    ratio = median(seconds[-few:]) / median(seconds[:few])
    return {"parts": len(seconds), "CPU s of a part": median(seconds), "last to first tenth": ratio}


def text_query(folder: Path, clip: str) -> dict[str, float]:
    """In a fresh process: load the CLIP, open the index, answer one text."""
    from dear import search

    torch.set_num_threads(1)
    torch.mv(torch.randn(256, 256), torch.randn(256))
    start, memory = time.process_time(), resident()
    loaded = load_clip(clip)
    middle = time.process_time()
    assert len(search(loaded, "a striped cushion", index=folder)) == 12
    end = time.process_time()
    return {"CLIP CPU s": middle - start, "query CPU s": end - middle, "CPU s": end - start} | {
        "peak resident MB": resident("VmHWM"),
        "resident MB after imports": memory,
    }


def text_queries(folder: Path, clip: str) -> dict[str, float]:
    """The medians of fresh processes, the longest CPU time and the largest memory."""
    command = [sys.executable, __file__, "--text-query", str(folder), "--clip", clip]
    found = [json.loads(subprocess.check_output(command)) for _ in range(FRESH)]
    result = {name: median(one[name] for one in found) for name in found[0]}
    result["most CPU s"] = max(one["CPU s"] for one in found)
    result["peak resident MB"] = max(one["peak resident MB"] for one in found)
    return result


def timed(search: Any, queries: Tensor) -> tuple[float, list[list[int]]]:
    """CPU milliseconds per query, and what was found; the first query, which checks files, is left out."""
    search(queries[0])
    start = time.process_time()
    found = [search(query) for query in queries]
    return 1000 * (time.process_time() - start) / len(queries), found


def recall(found: list[list[int]], truth: list[list[int]]) -> float:
    return sum(len(set(one) & set(other)) for one, other in zip(found, truth, strict=True)) / sum(map(len, truth))


def compared(index: Index, kind: str, photos: Tensor, texts: Tensor) -> dict[str, Any]:
    """The exact store, faiss with one list, and faiss with many, by one thread."""
    torch.set_num_threads(1)

    def exact(query: Tensor) -> list[int]:
        return [row for row, _ in top(row_cosines(index, kind, query).masked_fill(~index.alive, -2), NEAREST)]

    photo_ms, photo_truth = timed(exact, photos)
    text_ms, text_truth = timed(exact, texts)
    result: dict[str, Any] = {"exact store": {"photo ms": photo_ms, "text ms": text_ms}}
    for name, count in (("faiss one list", 1), ("faiss lists", max(64, default_lists(index.rows)))):
        torch.set_num_threads(2)
        start = time.process_time()
        about, _ = build_lists(index, kind, lists=count)
        build = time.process_time() - start
        torch.set_num_threads(1)
        opened = open_lists(index, kind)
        assert opened is not None

        def by_lists(query: Tensor, is_text: bool = False, opened: Lists = opened) -> list[int]:
            return [row for row, _ in opened.search(index, query, NEAREST, is_text=is_text).best]

        def with_probes(probes: int, by_lists: Any = by_lists, opened: Lists = opened) -> dict[str, float]:
            limited = replace(opened, about=opened.about.model_copy(update={"probes": probes}))
            found: dict[str, float] = {"searched": probes}
            for kind, queries, truth in (("photo", photos, photo_truth), ("text", texts, text_truth)):
                ms, rows = timed(lambda query: by_lists(query, opened=limited), queries)
                found |= {f"{kind} ms": ms, f"{kind} recall": recall(rows, truth)}
            return found

        photo_ms, photo_found = timed(by_lists, photos)
        text_ms, text_found = timed(lambda query, by_lists=by_lists: by_lists(query, True), texts)
        result[name] = {
            "lists": about.lists,
            "searched": about.probes,
            "photo ms": photo_ms,
            "text ms": text_ms,
            "photo recall": recall(photo_found, photo_truth),
            "text recall": recall(text_found, text_truth),
            "build CPU s": build,
            "MB": about.bytes / 1e6,
            "curve": [with_probes(about.lists // part) for part in (64, 16, 4) if about.lists >= part],
        }
    return result


def append_for_ever(folder: Path, embed: int) -> None:
    around = centres(50, embed)
    for number in range(10**6):
        features, stamps = part(number, 500, around)
        Writer.continued(read_index(folder)).append(features, stamps)
        print(read_index(folder).rows, flush=True)


def kills(form: Manifest, count: int, embed: int) -> dict[str, int]:
    """End an appending process at random moments: what it acknowledged must be there, and every column intact."""
    folder, chance, acknowledged, lost = Path(tempfile.mkdtemp()), random.Random(0), 0, 0
    Writer(folder, form).append(*part(0, 500, centres(50, embed)))
    for _ in range(count):
        command = [sys.executable, __file__, "--append", str(folder), "--embed", str(embed)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        last = int(process.stdout.readline())
        time.sleep(chance.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        for line in process.communicate()[0].splitlines():
            last = int(line)
        index = read_index(folder)
        lost += index.rows < last
        acknowledged += last
        assert all(bool(index.features(kind).isfinite().all()) for kind in KINDS)
        assert len(index.stamps()) == index.rows
        shutil.rmtree(folder / "search", ignore_errors=True)
    shutil.rmtree(folder)
    return {"kills": count, "lost": lost, "rows at the end": index.rows}


def on_world(rows: int) -> dict[str, Any]:
    """Recall on features of the world's CLIP: renderings as photos, names of attributes as texts."""
    from dear.world.clip import to_input
    from dear.world.grammar import PROMPTS, prompt
    from dear.world.samples import held_out_image
    from dear.world.vocabulary import ATTRIBUTES, NAMES

    clip = load_clip("world")
    with torch.inference_mode():
        starts = range(0, rows, 250)
        found = [clip.encode_image(to_input([held_out_image(i + j)[0] for j in range(250)])) for i in starts]
        texts = clip.encode_text([prompt(one, name, PROMPTS[one][0]) for one in ATTRIBUTES for name in NAMES[one]])
    features = torch.cat(found)
    folder = Path(tempfile.mkdtemp())
    form = manifest("0", {}, features.shape[1], ["cls"])
    stamps = [Stamp(f"{row}.png", row, row) for row in range(rows)]
    Writer(folder, form).append(features[:, None], stamps)
    photos = F.normalize(features[:: max(1, rows // 100)], dim=1)
    result = compared(read_index(folder), "cls", photos, F.normalize(texts.float(), dim=1))
    shutil.rmtree(folder)
    return {"rows": rows, **result}


def manifest(mark: str, made_by: dict[str, Any], embed: int, kinds: list[str]) -> Manifest:
    fixed: dict[str, Any] = {"folder": "/photos", "parts": True, "lacking": [], "segments": [], "next_number": 1}
    return Manifest(**fixed, kinds=kinds, embed=embed, model_sha256=mark, made_by=made_by)


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value


def measure(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    folder, weights = place / "index", place / "clip"
    folder.mkdir()
    import open_clip
    from safetensors.torch import save_file

    model = open_clip.create_model("ViT-B-16")
    weights.mkdir()
    save_file(
        {name: one.contiguous() for name, one in model.state_dict().items()}, weights / "open_clip_model.safetensors"
    )
    shape = {"model_cfg": open_clip.get_model_config("ViT-B-16"), "preprocess_cfg": {}}
    (weights / "open_clip_config.json").write_text(json.dumps(shape))
    clip = f"local-dir:{weights}"
    encoder = _from_groups(load_clip(clip), {name: [(9, number)] for number, name in enumerate(NAMES)}, ())
    form = manifest(encoder.mark, dict(encoder.made_by), options.embed, KINDS)
    around = centres(max(50, options.rows // 100), options.embed)
    result: dict[str, Any] = {"rows": options.rows, "embed": options.embed, "kinds": len(KINDS)}
    result["append"] = grow(folder, form, options.rows, around)
    print(json.dumps(rounded(result)), flush=True)
    result["text query exact"] = text_queries(folder, clip)
    print(json.dumps(rounded(result["text query exact"])), flush=True)
    photos, texts = vectors(10**6, options.queries, around), vectors(10**6 + 1, options.queries, around, share=0.3)
    result["clustered"] = compared(read_index(folder), "cls", photos, texts)
    print(json.dumps(rounded(result["clustered"])), flush=True)
    result["text query lists"] = text_queries(folder, clip)
    print(json.dumps(rounded(result["text query lists"])), flush=True)
    result["kills"] = kills(form, options.kills, options.embed)
    if options.world:
        result["world"] = on_world(options.world)
    return result


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--embed", type=int, default=512)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--world", type=int, default=0, help="Renderings of the world, a multiple of 250.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--text-query", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--clip", help=argparse.SUPPRESS)
    parser.add_argument("--append", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.text_query:
        print(json.dumps(text_query(options.text_query, options.clip)))
        return
    if options.append:
        append_for_ever(options.append, options.embed)
        return
    place = Path(tempfile.mkdtemp())
    os.environ["DEAR_CACHE"] = str(place / "cache")
    try:
        result = rounded(measure(options, place))
    finally:
        shutil.rmtree(place)
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
