"""The options of commands around training: role maps, data sets, listings, caches and the embedded world."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from dear.options.fields import (
    Argument,
    Count,
    File,
    Folder,
    Former,
    MapName,
    Name,
    Names,
    Number,
    Options,
    Shown,
    Text,
    as_items,
)
from dear.options.parts import Backbone, DataRoot, Device, Now, OnCluster, Threads

DATA = Path("data")
Rule = Literal["dominance", "quantile"]
Centroids = Literal["prototypes", "clusters"]
Source = Annotated[str, Field(min_length=1), Shown("FOLDER", "a folder of images, or world")]
MaxImages = Annotated[Count, Former("most_images")]


class OneBackbone(Backbone, title="Source"):
    """A backbone that has to be named."""

    clip: Name
    """Backbone: world, an OpenCLIP name, hf-hub:ORG/REPO or local-dir:FOLDER."""


class DiscoverRoles(Now, OnCluster, Device, DataRoot, OneBackbone, title="Options"):
    """Options of `dear roles discover` and `dear.discover_roles`."""

    images: Source
    """Folder of images, tar or Parquet files, world, or a data set for its training images."""
    out: Folder
    """Folder for roles.json, discovery.json, index.html and the figures roles.svg and roles.pdf."""
    pool: Name = "photographs"
    """Phrases: photographs, world, or a text file with one phrase per line."""
    rule: Rule = "dominance"
    """Rule that decides a head's role."""
    phrases: Count = 20
    """Number of phrases per head."""
    first_layer: Count | None = None
    """First layer to examine; by default the last four layers."""
    max_images: Annotated[MaxImages, Field(ge=2)] | None = None
    """Maximum number of images to read, evenly spread."""
    examples: Number = 256
    """Number of images to search for each head's examples; 0 for none."""
    sentence_model: Name = "all-MiniLM-L6-v2"
    """Sentence model, by name or folder."""
    centroids: Centroids = "prototypes"
    """What represents a concept."""


class OneMap(Options, title="Options"):
    """A role map."""

    roles: Annotated[MapName, Argument]
    """A roles.json, discover's folder, or the name of a shipped map: vit-b-16."""


class ShowRoles(OneMap):
    """Options of `dear roles show` and `dear.show_roles`."""

    html: File | None = None
    """Also write the map as a page."""
    figure: File | None = None
    """Also write the grid as a figure for a paper: a name in .svg or .pdf."""


class CompareRoles(OneMap):
    """Options of `dear roles compare` and `dear.compare_roles`."""

    other: Annotated[MapName, Argument, Shown("OTHER", "a role map")]
    """The map to compare it with."""


class AblateRoles(Device, OneBackbone, title="Options"):
    """Options of `dear roles ablate` and `dear.ablate_roles`."""

    roles: MapName
    """A roles.json, discover's folder, or the name of a shipped map."""
    images: Source
    """Folder of class folders, or world."""
    template: Text = "a photo of a {}."
    """Prompt around a folder's class names."""
    max_images: Annotated[MaxImages, Field(ge=10)] = 2000
    """Maximum number of images to read."""
    draws: Count = 20
    """Number of random groups of heads to compare with."""
    out: File | None = None
    """Also write the tables as Markdown."""


class DataFolder(Options, title="Options"):
    """Where the paper's data sets are, for commands that look there by default."""

    data_root: Annotated[Folder, Former("root")] = DATA
    """Folder that contains the paper's data sets, in CoOp's layout."""


class ListData(DataFolder):
    """Options of `dear data list` and `dear.list_datasets`."""

    name: Annotated[Name | None, Argument] = None
    """Name of a data set, for its page, license and layout."""


class CheckData(DataFolder):
    """Options of `dear data check` and `dear.check_data`."""

    name: Annotated[Name, Argument]
    """A data set's name, a folder of class folders, a .csv or .json list, or tar or Parquet files."""
    quick: bool = False
    """Only read the lists; do not open the images."""


class ListMethods(Options, title="Options"):
    """Options of `dear ls methods`."""

    method: Annotated[Name | None, Argument, Shown("METHOD", "a method's name")] = None
    """Name of a method, for everything about it."""


class ListBackbones(Options, title="Options"):
    """Options of `dear ls backbones`."""

    backbone: Annotated[Name | None, Argument, Shown("BACKBONE", "a backbone's name")] = None
    """Name of a backbone, for everything about it."""
    as_json: bool = Field(default=False, alias="json")
    """Print JSON."""


class ListSettings(Options, title="Options"):
    """Options of `dear ls settings`."""

    method: Annotated[Name, Argument, Shown("METHOD", "a method's name")]
    """Name of a method, see 'dear ls methods'."""


class Convert(Options, title="Options"):
    """Options of `dear convert` and `dear.convert`."""

    source: Annotated[str, Field(min_length=1), Argument, Shown("SOURCE", "hf-hub:ORG/REPO, a folder or a file")]
    """hf-hub:ORG/REPO, a folder with open_clip_config.json and weights, or a file of weights."""
    out: Annotated[Folder, Argument, Shown("OUT", "a folder")]
    """Folder to write, which must be new or empty."""
    clip: Name | None = None
    """OpenCLIP name of the architecture, for a file of weights."""


class Sync(Options, title="Options"):
    """Options of `dear sync` and `dear.sync`."""

    folder: Annotated[Folder, Argument, Shown("FOLDER", "the folder of a grid or a run")]
    """Folder of a grid or a run; a new one is filled."""
    url: Annotated[str, Field(min_length=1), Argument, Shown("URL", "an address such as s3://bucket/grid")]
    """Address of the storage, such as s3://bucket/grid or file:///shared/grid."""
    overwrite: bool = Field(default=False, exclude=True)
    """Replace files in the storage that differ from those of FOLDER."""


class Doctor(Options, title="Options"):
    """Options of `dear doctor`."""

    as_json: bool = Field(default=False, alias="json")
    """Print JSON, for a bug report."""


class ListCache(Options, title="Options"):
    """Options of `dear cache list`."""

    folders: Annotated[tuple[Folder, ...], BeforeValidator(as_items), Argument, Shown("FOLDER...", "folders")] = ()
    """Caches, or folders of runs with one; by default the user's cache."""


class ClearCache(ListCache):
    """Options of `dear cache clear`."""

    max_size: Annotated[str, Field(min_length=1), Shown("SIZE", "a size such as 2GB")] = "0"
    """Keep what was used last, up to a size such as 2GB; by default nothing."""


class PretrainWorld(Threads, title="Options"):
    """Options of `dear world pretrain` and `dear.pretrain_world`."""

    out: Folder
    """Folder for log, checkpoint and the finished CLIP."""
    kind: Literal["clip", "plain", "siglip"] = "clip"
    """clip, as shipped; plain, with heads that are not assigned to attributes; siglip, without a [CLS] token."""
    seed: Number = 0
    """Random seed."""
    steps: Count = 2000
    """Number of steps of the whole schedule."""
    stop_after: Count | None = None
    """Stop after this step of the schedule."""
    resume: bool = Field(default=False, exclude=True)
    """Resume an interrupted run."""
    checkpoint_every: Count = 100
    """Number of steps between checkpoints."""


class PreviewWorld(Options, title="Options"):
    """Options of `dear world preview` and `dear.preview_world`."""

    out: File
    """PNG file to write."""
    what: Name = "scenes"
    """What to render: color, shape, texture, object, location, styles, scenes, or a data set."""
    zoom: Annotated[Count, Field(le=8)] = 2
    """Enlargement factor."""


class ScoreWorld(Threads, title="Options"):
    """Options of `dear world score` and `dear.score_world`."""

    clip: Folder | None = None
    """Folder in OpenCLIP's format; by default the shipped weights."""
    images: Count = 4000
    """Number of renderings that pre-training never used."""
    per_class: Count | None = None
    """Test images per class; by default all."""
    data: Names | None = None
    """Data sets, comma-separated; by default all."""
    as_json: bool = Field(default=False, alias="json")
    """Print JSON instead of tables."""
