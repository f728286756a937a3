"""Images, phrases and tasks for role discovery: from the user's folders and files, or from the synthetic world."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from dear.data.families import WORLD
from dear.data.images import ImageList, folder_images
from dear.data.open import dataset_names, open_dataset
from dear.data.shards import packed_images, shard_files, splits_of
from dear.errors import ImageError
from dear.roles.ablation import Task
from dear.roles.corpus import TextPool, load_pool
from dear.world.grammar import PROMPTS, phrase_pool, prompt
from dear.world.samples import held_out_image, pretraining_pair, truth
from dear.world.vocabulary import ATTRIBUTES, NAMES

DISCOVERY_SEED = 90_001
"""Seed of scenes like those of pre-training, which pre-training never uses."""


def images_from(source: str, count: int | None = None, root: Path | None = None) -> ImageList:
    """Training images of a data set, or all images of a folder without `train` and `test`, or of the world.

    With `count`, at most that number of images, evenly spread.
    """
    if source == WORLD:
        return _world_images(count or 2000)
    if source in dataset_names():
        dataset = open_dataset(source, root)
        if not dataset.train:
            raise ImageError(
                f"{source} has no training images, and roles must not be found from test images: use other images."
            )
        images = dataset.images(dataset.train)
    elif files := shard_files(source):
        training = [file for file, split in zip(files, splits_of(files), strict=True) if split == "train"]
        images = packed_images(training)
    else:
        folder = Path(source)
        is_split = (folder / "train").is_dir() and (folder / "test").is_dir()
        images = folder_images(folder / "train" if is_split else folder)
    return images if count is None else images.spread(count)


def pool_from(source: str) -> TextPool:
    """Read a text pool by name ("photographs", "world") or from a file."""
    if source == WORLD:
        exemplars = {a: tuple(prompt(a, name, t) for name in NAMES[a] for t in PROMPTS[a]) for a in NAMES}
        return TextPool(WORLD, tuple(phrase_pool()), exemplars=exemplars)
    return load_pool(source)


def tasks_from(source: str, template: str, count: int) -> tuple[ImageList, list[Task]]:
    """Images and zero-shot tasks for ablations: five tasks for the world, one for the training images of a data set."""
    if source == WORLD:
        return _world_tasks(count)
    dataset = open_dataset(source)
    if not dataset.train:
        raise ImageError(f"{source} has no training images to remove heads on: use other images.")
    images = dataset.images(dataset.train).spread(count)
    label_of = {item.id: item.label for item in dataset.train}
    labels = torch.tensor([label_of[name] for name in images.names])
    prompts = tuple(template.replace("{}", name) for name in dataset.class_names)
    return images, [Task("classes", labels, prompts)]


def _world_images(count: int) -> ImageList:
    return ImageList(
        tuple(f"world/{index:06d}" for index in range(count)),
        lambda index: Image.fromarray(pretraining_pair(DISCOVERY_SEED, index).image),
    )


def _world_tasks(count: int) -> tuple[ImageList, list[Task]]:
    images = ImageList(
        tuple(f"held-out/{index:06d}" for index in range(count)),
        lambda index: Image.fromarray(held_out_image(index)[0]),
    )
    labels_NA = torch.tensor([truth(held_out_image(index)[1]) for index in range(count)])
    tasks = [
        Task(
            attribute,
            labels_NA[:, column],
            tuple(prompt(attribute, name, PROMPTS[attribute][0]) for name in NAMES[attribute]),
        )
        for column, attribute in enumerate(ATTRIBUTES)
    ]
    return images, tasks
