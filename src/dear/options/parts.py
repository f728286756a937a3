"""The options of a training: Source, Training, Compute and Now, and the commands that combine them.

A command's options are one flat class made of parts; each part is a panel of its help page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dear.errors import option
from dear.options.fields import (
    Argument,
    Count,
    Counts,
    DataName,
    Epochs,
    File,
    Folder,
    Folders,
    Former,
    Half,
    IfExists,
    LogName,
    MapName,
    MethodSettings,
    Name,
    Names,
    Number,
    Numbers,
    On,
    Options,
    Precision,
    Rate,
    RecipeName,
    Share,
    ShareOfCells,
    Shown,
    Tag,
    Text,
    Time,
    Variants,
    as_pairs,
    within_reach,
)

AUTO_METHOD = "auto"
"""As a method: the one that fits the photos best, found by trying several."""
_OF_THE_MACHINE = {"micro_batch", "class_chunk", "precision"}
_OF_THE_RECIPE = {"epochs", "batch_size", "lr", "decay", "warmup_epochs"}


def _typed(value: Any) -> Any:
    return ",".join(value) if isinstance(value, tuple) else value


class Backbone(Options, title="Source"):
    """Which CLIP."""

    clip: Name | None = None
    """Backbone: an OpenCLIP name, hf-hub:ORG/REPO, local-dir:FOLDER, or world (the default for its data sets)."""
    pretrained: Tag | None = None
    """Tag of the backbone's weights, such as openai."""


class DataRoot(Options, title="Source"):
    """Where the paper's data sets are."""

    data_root: Annotated[Folder | None, Former("root")] = None
    """Folder that contains the paper's data sets, in CoOp's layout."""


class Descriptions(Options, title="Source"):
    """Where descriptions of classes are."""

    descriptions: File | None = None
    """Sentences about each class, for methods that read them: JSON, class name to list."""


class Source(Descriptions, DataRoot, Backbone, title="Source"):
    """Which CLIP, where data sets and descriptions of their classes are, and what is set aside for the test."""

    shots_file: File | None = None
    """Training images instead of a sample: a run's shots.json, or CoOp's shot_16-seed_1.pkl."""
    test_share: Share = 0.25
    """Share of each class to set aside for the test, at least 2 of 4 or more images, if DATA has no test images; 0
    trains on all."""


class Training(Options, title="Training"):
    """How to train. None means: as the method's recipe says."""

    roles: MapName | None = None
    """Role map: a name, a roles.json, the folder of 'dear roles discover', or auto, which finds one from the training
    images if none is shipped for the weights."""
    recipe: RecipeName = "own"
    """Recipe: own, as the method was published; shared, one for all methods; tuned, the best of a few per method."""
    epochs: Epochs | None = None
    """Number of epochs; by default the recipe's."""
    batch_size: Annotated[Count | None, Former("batch")] = None
    """Batch size; by default the recipe's."""
    lr: Annotated[float, Field(gt=0), AfterValidator(within_reach), Shown("RATE", "a number")] | None = None
    """Learning rate; by default the recipe's."""
    decay: Rate | None = None
    """Weight decay; by default the recipe's."""
    warmup_epochs: Number | None = None
    """Number of warm-up epochs; by default the recipe's."""
    micro_batch: Count | None = None
    """Maximum images per forward pass, to save memory; same result."""
    class_chunk: Count | None = None
    """Maximum classes to encode at once, to save memory; same result. By default all that fit into memory."""
    precision: Precision = "auto"
    """Precision of the activations; auto is bf16 or fp16 on a GPU and fp32 on a CPU."""
    cached_views: Annotated[Number, Field(le=10_000)] | None = None
    """Cached views per image to train on (faster); 0, the default except for 'dear paper --mini', samples new views in
    every epoch."""

    def changes(self) -> dict[str, Any]:
        """What differs from the recipe; an explicit number of epochs replaces `steps_per_shot`."""
        found = {name: getattr(self, name) for name in type(self).model_fields if name in _OF_THE_RECIPE}
        found = {name: value for name, value in found.items() if value is not None}
        return {**found, "steps_per_shot": None} if "epochs" in found else found

    def machine(self) -> dict[str, Any]:
        """What changes how the training is computed, but not what."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in _OF_THE_MACHINE}


class Threads(Options, title="Machine"):
    """How many threads compute."""

    threads: Annotated[Count, Field(le=1024)] | None = None
    """Threads to compute with on a CPU; by default all."""


class Device(Threads, title="Machine"):
    """What computes it."""

    device: Name | None = None
    """cpu, cuda, cuda:1 …; by default a GPU if there is one."""


class Machine(Device, title="Machine"):
    """What computes it, and what reads images."""

    workers: Annotated[Number, Field(le=256)] = 2
    """Number of image-loading threads."""


class Compute(Machine, title="Machine"):
    """What computes it, and what is cached on disk. Never part of a fingerprint."""

    cache: Folder | None = None
    """Cache folder for the frozen layers' outputs; by default OUT/cache."""
    no_cache: bool = False
    """Cache nothing: needs no disk space, takes longer."""
    log: LogName | None = None
    """Also log every step for TensorBoard, in the folder tensorboard of each run, or with Weights & Biases."""

    @model_validator(mode="after")
    def _one_cache(self) -> Self:
        if self.cache is not None and self.no_cache:
            both = f"{option(cache=str(self.cache))} names a folder and {option(no_cache=True)} wants none"
            raise ValueError(f"{both}: choose one of them.")
        return self

    def cache_folder(self, out: Path | None) -> Path | None:
        """The cache folder: the one named, else one in the output folder; None for no cache."""
        if self.no_cache:
            return None
        return self.cache if self.cache is not None or out is None else out / "cache"


class OnCluster(Options, title="Machine"):
    """Where it is computed. Never part of a fingerprint."""

    on: On | None = None
    """Compute on a cluster: ray, ray:auto for the Ray of this machine, or ray:HOST:PORT."""
    gpus: Annotated[float, Field(gt=0, le=64), Shown("N", "a number")] | None = None
    """GPUs per task on the cluster, such as 0.25 for four tasks on one GPU; by default it computes on CPUs."""

    @model_validator(mode="after")
    def _on_what(self) -> Self:
        if self.gpus is not None and self.on is None:
            raise ValueError(f"{option(gpus=self.gpus)} is for a cluster: add {option(on='ray')}, or leave it out.")
        return self


class Now(Options, title="This time"):
    """What to do with a folder that has content. Config files cannot contain it."""

    resume: bool = Field(default=False, exclude=True)
    """Resume an interrupted run."""
    overwrite: bool = Field(default=False, exclude=True)
    """Discard the folder's contents and start over."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.resume and self.overwrite:
            both = f"{option(resume=True)} continues and {option(overwrite=True)} starts over"
            raise ValueError(f"{both}: choose one of them.")
        return self

    @property
    def if_exists(self) -> IfExists:
        """What to do with an output folder that has content."""
        return "resume" if self.resume else "overwrite" if self.overwrite else "refuse"


class OneShare(Now, title="This time"):
    """Which cells of a grid to run. Config files cannot contain it."""

    cells: ShareOfCells | None = Field(default=None, exclude=True)
    """Run only every 20th cell, beginning with the third, for 3/20; the other shares may run at the same time on other
    machines. Afterwards, --resume without it writes the tables."""

    @model_validator(mode="after")
    def _of_one_grid(self) -> Self:
        if self.cells is not None and self.overwrite:
            share, over = option(cells=self.cells), option(overwrite=True)
            raise ValueError(f"{over} would discard what other shares have done: leave it out, or {share}.")
        if self.cells is not None and getattr(self, "on", None) is not None:
            raise ValueError(
                f"{option(cells=self.cells)} is for machines without a cluster: leave it or {option(on='ray')} out."
            )
        return self

    @property
    def continues(self) -> bool:
        """Whether an output folder of the same kind is continued; the first share creates it, the others find it."""
        return self.resume or self.cells is not None


class RunOptions(Options, title="Options"):
    """One training."""

    data: Annotated[DataName, Argument]
    """Folder of class folders, .csv or .json list, tar or Parquet files, as 'shards/{000..099}.tar', or a data set's
    name."""
    out: Folder | None = None
    """Folder of the run."""
    method: Name = "dear"
    """Adaptation method, see 'dear ls methods', or auto, which tries several and takes the best for DATA."""
    set: MethodSettings = Field(default={})
    """Method setting, such as beta=0.8; may be repeated. See 'dear ls settings METHOD'."""
    shots: Count = 16
    """Training images per class; fewer in classes that have not enough images."""
    seed: Number = 1
    """Random seed."""
    half: Half = "all"
    """Half of the classes: all, base or novel."""
    template: Text | None = None
    """Prompt around a class name, such as 'a photo of a {}.'."""
    names: File | None = None
    """Names of classes whose folders are not words: a folder and a name per line."""
    add_class: Folders | None = None
    """Folders of images to add to DATA as further classes."""


class GridOptions(Options, title="Options"):
    """Data sets × methods × settings × shots × seeds."""

    out: Folder
    """Folder for cells, runs, table.csv and table.md."""
    data: Names | None = None
    """Data sets, folders or lists, comma-separated; by default the world's or the paper's."""
    methods: Names = ("zero_shot", "dear")
    """all, or methods, comma-separated; see 'dear ls methods'."""
    set: Variants = Field(default={})
    """Values of a method setting, each a variant of the method, such as beta=0.5,0.9; may be repeated."""
    seeds: Numbers = (1, 2, 3)
    """Random seeds, comma-separated."""
    shots: Counts = (16,)
    """Training images per class, comma-separated."""
    epochs_of: Annotated[
        dict[str, Epochs], BeforeValidator(as_pairs), Shown("NAME=N,NAME=N", "NAME=N, as in maple=5")
    ] = Field(default={})
    """Other numbers of epochs for some methods; tables mark them."""
    jobs: Annotated[Count, Field(le=256)] = 1
    """Number of cells to run in parallel; on a cluster, as many as it has room for."""
    validation: bool = Field(default=False, alias="validate")  # BaseModel has a method `validate`
    """Test on training images that were not sampled; test images are not used."""


class Choosing(Options, title="Choosing a method"):
    """How `--method auto` chooses."""

    budget: Time | None = None
    """Time for trying methods and the training, such as 90s, 5m or 1h, with --method auto; by default two minutes and
    two seconds per photo."""
    candidates: Names | None = None
    """Methods to try with --method auto, comma-separated; plain CLIP is always tried."""
    keep_novel: Annotated[Rate, Field(le=1e6)] | None = None
    """Weight of classes that are not taught against those that are, with --method auto; 0 ignores them, 1, the
    default, counts both equally."""


class Fit(Now, OnCluster, Compute, Training, Source, Choosing, RunOptions):
    """Options of `dear.fit`. Pydantic lists the fields of the last part first, and so does help."""

    @model_validator(mode="after")
    def _only_auto_chooses(self) -> Self:
        only_auto = (*Choosing.model_fields, *OnCluster.model_fields)
        chosen = {name: getattr(self, name) for name in only_auto if getattr(self, name) is not None}
        if chosen and self.method != AUTO_METHOD:
            name = next(iter(chosen))
            only = f"{option(**{name: _typed(chosen[name])})} works with {option(method=AUTO_METHOD)} only"
            raise ValueError(f"{only}: add that, or leave it out.")
        return self


class Train(Fit, title="Options"):
    """Options of `dear train`: those of `dear.fit`, with a required folder."""

    out: Folder
    """Folder of the run."""


class Bench(OneShare, OnCluster, Compute, Training, Source, GridOptions):
    """Options of `dear bench base-to-novel`."""


class FewShot(Bench, title="Options"):
    """Options of `dear bench few-shot`."""

    shots: Counts = (1, 2, 4, 8, 16)
    """Training images per class, comma-separated."""


class Transfer(Bench, title="Options"):
    """Options of `dear bench cross-dataset` and `dear bench domain`."""

    source: Name | None = None
    """Data set to train on; by default imagenet, or world-broad."""


class Compare(Bench, title="Options"):
    """Options of `dear compare`: those of `dear bench`, with other defaults."""

    out: Folder
    """Folder for cells, runs, compare.html, compare.csv; may be one of 'bench'."""
    protocol: Literal["base-to-novel", "few-shot"] = "base-to-novel"
    """Protocol, as in 'dear bench'."""
    methods: Names = ("all",)
    """all, or methods, comma-separated; see 'dear ls methods'."""


class Paper(OneShare, OnCluster, Compute, Training, DataRoot, Backbone, title="Options"):
    """Options of `dear paper`."""

    out: Folder
    """Folder for cells, runs, tables, figures and report.html."""
    mini: bool = False
    """On the embedded world: no download, no GPU."""
    full: bool = False
    """ViT-B/16 on the paper's data sets below --data-root."""
    clip: Name | None = None
    """Backbone; by default world with --mini, ViT-B-16-quickgelu with --full."""
    roles: MapName | None = None
    """Role map: a name, a roles.json, or the folder of 'dear roles discover'; by default the shipped one."""
    methods: Names = ("zero_shot", "dear")
    """Methods of Tables 2 to 4, comma-separated; all: those that the paper's tables name."""
    seeds: Numbers = (1, 2, 3)
    """Random seeds, comma-separated."""
    shots: Counts = (1, 2, 4, 8, 16)
    """Training images per class of the few-shot curves, comma-separated."""
    images: Annotated[int, Field(ge=2), Shown("N", "a whole number")] = 1000
    """Number of images for the searches and the ablations."""
    jobs: Annotated[Count, Field(le=256)] = 2
    """Number of cells to run in parallel; on a cluster, as many as it has room for."""
    only: Annotated[Names | None, Shown("PART,PART", "tables and figures")] = None
    """Tables and figures to make, such as table-2,figure-4; by default all, see --plan."""
    plan: bool = Field(default=False, exclude=True)
    """Show what is available, missing and finished, then exit."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.mini == self.full:
            mini, full = option(mini=True), option(full=True)
            raise ValueError(f"Give either {mini} (the embedded world) or {full} (the paper's own data sets).")
        if self.pretrained is not None and self.clip is None:
            raise ValueError(f"The weights {self.pretrained!r} need a backbone: name it with {option(clip='NAME')}.")
        return self


class Quickstart(Options, title="Options"):
    """Options of `dear quickstart`."""

    out: Folder = Path("runs/quickstart")
    """Folder for the run and its report."""
    data: Name = "world-blooms"
    """A data set of the embedded world."""
    epochs: Epochs = 10
    """Number of epochs."""
    workers: Annotated[Number, Field(le=256)] = 2
    """Number of image-loading threads."""
    threads: Annotated[Count, Field(le=1024)] | None = None
    """Threads to compute with on a CPU; by default all."""
