"""A small synthetic world with ground truth: scenes, captions, data sets and a CLIP. See `dear world --help`."""

from dear.world.datasets import World, WorldItem, dataset_names, load_world_dataset
from dear.world.grammar import caption, phrase_pool
from dear.world.render import Look, Scene, render
from dear.world.vocabulary import ATTRIBUTES, NAMES

__all__ = [
    "ATTRIBUTES",
    "NAMES",
    "Look",
    "Scene",
    "World",
    "WorldItem",
    "caption",
    "dataset_names",
    "load_world_dataset",
    "phrase_pool",
    "render",
]
