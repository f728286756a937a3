"""Files of every kind that turns up in folders of photographs, made with Pillow."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (24, 16)


def gradient() -> np.ndarray:
    """Gray that rises from black on the left to white on the right."""
    return np.tile(np.linspace(0, 255, SIZE[0]).round().astype(np.uint8), (SIZE[1], 1))


def photo(color=(200, 60, 20)) -> Image.Image:
    """One colour over a gradient, so that it is not flat."""
    return Image.fromarray((gradient()[..., None] / 255 * np.array(color)).astype(np.uint8))


def jpeg(image: Image.Image, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=95, **options)
    return out.getvalue()


def _png(mode_bits: tuple[int, int], rows: bytes, size: tuple[int, int]) -> bytes:
    """A PNG by hand, for what Pillow does not write: (colour type, bits) and raw rows with their filter bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data).to_bytes(4, "big")
        return len(data).to_bytes(4, "big") + kind + data + check

    kind, bits = mode_bits
    head = size[0].to_bytes(4, "big") + size[1].to_bytes(4, "big") + bytes([bits, kind, 0, 0, 0])
    chunks = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def gray16() -> bytes:
    rows = (gradient().astype(">u2") * 257).tobytes()
    width = 2 * SIZE[0]
    return _png((0, 16), b"".join(b"\0" + rows[i : i + width] for i in range(0, len(rows), width)), SIZE)


def rgb16() -> bytes:
    rows = (np.stack([gradient(), gradient() // 2, gradient() * 0], -1).astype(">u2") * 257).tobytes()
    width = 6 * SIZE[0]
    return _png((2, 16), b"".join(b"\0" + rows[i : i + width] for i in range(0, len(rows), width)), SIZE)


def saved(image: Image.Image, kind: str, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def turned() -> bytes:
    """Stored lying on its side, with the note to turn it upright."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return jpeg(photo(), exif=exif)


def broken_exif() -> bytes:
    return jpeg(photo(), exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff")


def see_through(mode: str) -> Image.Image:
    """Black throughout, and transparent in its left half."""
    alpha = np.where(np.arange(SIZE[0]) < SIZE[0] // 2, 0, 255).astype(np.uint8)
    image = Image.new(mode, SIZE)
    image.putalpha(Image.fromarray(np.tile(alpha, (SIZE[1], 1))))
    return image


def palette() -> bytes:
    image = Image.new("P", SIZE, 0)
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.paste(1, (SIZE[0] // 2, 0, *SIZE))
    return saved(image, "PNG", transparency=0)


def animated() -> bytes:
    frames = [Image.new("RGB", SIZE, color) for color in ("red", "lime", "blue")]
    return saved(frames[0], "GIF", save_all=True, append_images=frames[1:])


def bomb() -> bytes:
    """A PNG of 20,000 by 20,000 pixels in a few hundred bytes."""
    return _png((0, 1), b"", (20_000, 20_000))


def large_bomb() -> bytes:
    """Between Pillow's warning and its refusal."""
    return _png((0, 1), b"", (10_000, 10_000))


GOOD = {
    "cmyk.jpg": lambda: jpeg(photo().convert("CMYK")),
    "gray.jpg": lambda: jpeg(photo().convert("L")),
    "palette.png": palette,
    "gray16.png": gray16,
    "rgb16.png": rgb16,
    "gray32.tif": lambda: saved(Image.fromarray(gradient().astype(np.int32) * 257), "TIFF"),
    "float.tif": lambda: saved(Image.fromarray(gradient().astype(np.float32) / 255), "TIFF"),
    "bilevel.png": lambda: saved(photo().convert("1"), "PNG"),
    "turned.jpg": turned,
    "broken_exif.jpg": broken_exif,
    "animated.gif": animated,
    "gray_alpha.png": lambda: saved(see_through("L"), "PNG"),
    "alpha.png": lambda: saved(see_through("RGB"), "PNG"),
    "alpha.webp": lambda: saved(see_through("RGB"), "WEBP", lossless=True),
    "upper.JPEG": lambda: jpeg(photo()),
}

BAD = {
    "truncated.jpg": lambda: jpeg(photo().resize((400, 300)))[:2000],
    "truncated.png": lambda: saved(photo(), "PNG")[:-60],
    "empty.jpg": lambda: b"",
    "text.jpg": lambda: b"this is not a photograph\n" * 40,
    "bomb.png": bomb,
    "large_bomb.png": large_bomb,
}


def write_all(folder: Path, kinds) -> list[Path]:
    """Write files of some kinds into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in kinds]
    for path in paths:
        path.write_bytes(kinds[path.name]())
    return paths
