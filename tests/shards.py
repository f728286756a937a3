"""Folders of photos as tar and Parquet files, as others write them."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def class_folders(folder: Path, classes=("ant", "bee", "cat"), per_class: int = 6, size: int = 24) -> Path:
    """Class folders of small pictures, all different."""
    numbers = np.random.default_rng(5)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            pixels = numbers.integers(0, 256, (size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:03d}.png")
    return folder


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def tar_of(folder: Path, path: Path) -> Path:
    """A tar of class folders, as `tar cf` writes it."""
    with tarfile.open(path, "w") as tar:
        tar.add(folder, arcname=".")
    return path


def webdataset(folder: Path, pattern: str, shards: int) -> list[Path]:
    """Tars of samples with a .cls file each, in turn."""
    classes = sorted(one.name for one in folder.iterdir())
    found = []
    for shard in range(shards):
        members = {}
        for file in files_of(folder)[shard::shards]:
            key = f"{file.parent.name}/{file.stem}"
            members |= {f"{key}.png": file.read_bytes(), f"{key}.cls": str(classes.index(file.parent.name)).encode()}
        found.append(write_tar(Path(pattern.format(shard)), members))
    return found


def parquet_of(folder: Path, path: Path, *, rows_per_group: int = 4, files: list[Path] | None = None) -> Path:
    """A Parquet file in the layout of the hub: image bytes and path, class names in the schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    classes, chosen = sorted(one.name for one in folder.iterdir()), files or files_of(folder)
    images = [{"bytes": file.read_bytes(), "path": file.name} for file in chosen]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    features = {"image": {"_type": "Image"}, "label": {"names": classes, "_type": "ClassLabel"}}
    table = pa.table(
        {
            "image": pa.array(images, kind),
            "label": pa.array([classes.index(file.parent.name) for file in chosen], pa.int64()),
        }
    ).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=rows_per_group)
    return path
