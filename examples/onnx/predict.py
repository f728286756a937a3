"""Classify photos with an export of `dear export RUN --onnx OUT`; needs only onnxruntime, numpy and Pillow.

python predict.py OUT PHOTO...                             the classes of the export
python predict.py OUT PHOTO... --classes FILE.json         others, from `dear export RUN --class-features FILE.json`
"""

import argparse
import json
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def preprocess(photo: Image.Image, how: dict) -> np.ndarray:
    """One photo as (3, height, width)."""
    photo, (height, width) = ImageOps.exif_transpose(photo).convert("RGB"), (how["height"], how["width"])
    size = (width, height)
    if how["resize"] == "shortest" and height == width:
        short, long = min(photo.size), max(photo.size)
        size = tuple(height if side == short else int(height * long / short) for side in photo.size)
    elif how["resize"] != "squash":
        raise SystemExit(f"This example does not resize by {how['resize']!r} to {width} × {height}.")
    photo = photo.resize(size, Image.Resampling[how["interpolation"].upper()])
    left, top = round((size[0] - width) / 2), round((size[1] - height) / 2)
    pixels = np.asarray(photo.crop((left, top, left + width, top + height)), np.float32) / 255
    return ((pixels - np.float32(how["mean"])) / np.float32(how["std"])).transpose(2, 0, 1)


def main(out: Path, photos: list[Path], features: Path | None) -> None:
    """Print the likeliest class of each photo."""
    model = json.loads((out / "model.json").read_text(encoding="utf-8"))
    lists = json.loads(features.read_text(encoding="utf-8")) if features else model
    if lists["adapter"] != model["adapter"]:
        raise SystemExit(f"{features} belongs to another adapter than {out}.")
    session = onnxruntime.InferenceSession(out / ("image_encoder.onnx" if features else "classifier.onnx"))
    for photo in photos:
        (logits,) = session.run(None, {"images": preprocess(Image.open(photo), model["preprocessing"])[None]})
        logits = logits[0] @ np.float32(lists["features"]).T if features else logits[0]
        chances = np.exp(logits - logits.max())
        print(f"{photo}: {lists['classes'][logits.argmax()]} {100 * chances.max() / chances.sum():.1f} %")


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("out", type=Path)
    words.add_argument("photos", type=Path, nargs="+")
    words.add_argument("--classes", type=Path)
    given = words.parse_args()
    main(given.out, given.photos, given.classes)
