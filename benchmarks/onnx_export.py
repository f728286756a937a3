"""Exported adapters against torch: agreement, seconds per image and sizes of files, on the world and on photographs.

python benchmarks/onnx_export.py [--photographs FOLDER] [--images 1000] [--out results/onnx.json]

FOLDER has `clip-s14` and `caltech-101`, as described in CONTRIBUTING. Adapters are trained for one epoch: what is
compared is the same adapter in torch and in onnxruntime. Times are medians of alternating passes with one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import onnxruntime
import torch

import dear
from dear.data.images import image_batches
from dear.model.onnx_file import session_options

FORMS = {"fp32": "classifier.onnx", "int8": "classifier.int8.onnx", "fp16": "classifier.fp16.onnx"}
BATCH, PASSES = 8, 7
MARGIN = 1.0
"""Logits between the two likeliest classes, above which an answer is clear: e times as likely."""


def measure(name: str, data: str, images: int, folder: Path, **options: Any) -> dict[str, Any]:
    """Train, export and compare one adapter."""
    model = dear.fit(data, out=folder / "run", epochs=1, seed=1, threads=1, **options).eval()
    dear.export_onnx(folder / "run", folder / "onnx", int8=True, fp16=True)
    about = json.loads((folder / "onnx" / "model.json").read_text())
    sessions = {
        form: onnxruntime.InferenceSession(str(folder / "onnx" / file), session_options())
        for form, file in FORMS.items()
    }
    dataset = dear.open_dataset(data, options.get("data_root"))
    listed = dataset.images(dataset.test).spread(images)
    labels = {item.id: item.label for item in dataset.test}
    right = dict.fromkeys(("torch", *FORMS), 0)
    worst, same, count = dict.fromkeys(FORMS, 0.0), dict.fromkeys(FORMS, 0), 0
    clear, same_clear = 0, dict.fromkeys(FORMS, 0)
    batch = None
    for part in image_batches(listed, model.clip.preprocess_eval, size=BATCH, workers=1):
        assert part.images is not None
        batch = part.images if part.images.shape[0] == BATCH else batch
        with torch.inference_mode():
            expected = model(part.images).logits
        count += expected.shape[0]
        true = torch.tensor([labels[listed.names[index]] for index in part.indices])
        right["torch"] += int((expected.argmax(1) == true).sum())
        best, second = expected.topk(2).values.T
        is_clear = best - second > MARGIN
        clear += int(is_clear.sum())
        for form, session in sessions.items():
            found = torch.from_numpy(session.run(None, {"images": part.images.numpy()})[0])
            worst[form] = max(worst[form], float((found - expected).abs().max()))
            agrees = found.argmax(1) == expected.argmax(1)
            same[form] += int(agrees.sum())
            same_clear[form] += int((agrees & is_clear).sum())
            right[form] += int((found.argmax(1) == true).sum())
    return {
        "adapter": name,
        "images": count,
        "classes": len(about["classes"]),
        "largest_difference_of_a_logit": worst,
        "top_1_agreement": {form: one / count for form, one in same.items()},
        "margin": MARGIN,
        "share_above_margin": clear / count,
        "top_1_agreement_above_margin": {form: one / max(1, clear) for form, one in same_clear.items()},
        "accuracy": {form: one / count for form, one in right.items()},
        "seconds_per_image": seconds(model, sessions, batch),
        "bytes": {form: about["files"][file]["bytes"] for form, file in FORMS.items()},
    }


@torch.inference_mode()
def seconds(model: dear.Model, sessions: dict[str, Any], images: Any) -> dict[str, float]:
    """Median seconds per image of torch and of each file, measured alternately."""
    calls = {"torch": lambda: model(images)}
    for form, session in sessions.items():
        calls[form] = lambda session=session: session.run(None, {"images": images.numpy()})
    times: dict[str, list[float]] = {form: [] for form in calls}
    for _ in range(PASSES):
        for form, call in calls.items():
            began = time.perf_counter()
            call()
            times[form].append((time.perf_counter() - began) / BATCH)
    return {form: statistics.median(one) for form, one in times.items()}


def main() -> None:
    """Measure, print a table and write JSON."""
    words = argparse.ArgumentParser()
    words.add_argument("--photographs", type=Path)
    words.add_argument("--images", type=int, default=1000)
    words.add_argument("--out", type=Path, default=Path("results/onnx.json"))
    given = words.parse_args()
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        found.append(measure("dear on the world", "world-broad", given.images, Path(folder) / "world", clip="world"))
        if given.photographs:
            photos = {"clip": f"local-dir:{given.photographs / 'clip-s14'}", "data_root": given.photographs}
            few: dict[str, Any] = {"shots": 1, "mask": "all_mixed"}
            found.append(
                measure(
                    "dear on photographs", "caltech101", given.images, Path(folder) / "photographs", **photos, **few
                )
            )
    for one in found:
        torch_seconds = one["seconds_per_image"]["torch"]
        print(f"{one['adapter']}: {one['images']} images, {one['classes']} classes, torch {1e3 * torch_seconds:.1f} ms")
        print(f"torch is right for {100 * one['accuracy']['torch']:.1f} %")
        print("form  largest difference  same top-1    right  torch ÷ form      MB")
        for form in FORMS:
            ratio = torch_seconds / one["seconds_per_image"][form]
            apart, same = one["largest_difference_of_a_logit"][form], 100 * one["top_1_agreement"][form]
            right = 100 * one["accuracy"][form]
            print(
                f"{form}  {apart:18.1e}  {same:8.1f} %  {right:5.1f} %  {ratio:12.2f}  {one['bytes'][form] / 1e6:6.1f}"
            )
    given.out.write_text(json.dumps({"threads": 1, "batch": BATCH, "adapters": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
