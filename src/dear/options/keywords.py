"""Keywords of public functions such as `dear.fit` and `dear.predict`, made by `make options`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict


class FitOptions(TypedDict, total=False):
    """Keywords of `dear.fit`."""

    out: str | Path | None
    """Folder of the run."""
    method: str
    """Adaptation method, see 'dear ls methods', or auto, which tries several and takes the best for DATA."""
    set: Mapping[str, Any]
    """Method setting, such as beta=0.8; may be repeated. See 'dear ls settings METHOD'."""
    shots: int
    """Training images per class; fewer in classes that have not enough images."""
    seed: int
    """Random seed."""
    half: Literal["all", "base", "novel"]
    """Half of the classes: all, base or novel."""
    template: str | None
    """Prompt around a class name, such as 'a photo of a {}.'."""
    names: str | Path | Mapping[str, Any] | None
    """Names of classes whose folders are not words: a folder and a name per line."""
    add_class: str | Sequence[str] | None
    """Folders of images to add to DATA as further classes."""
    budget: str | None
    """Time for trying methods and the training, such as 90s, 5m or 1h, with --method auto; by default two minutes and
    two seconds per photo."""
    candidates: str | Sequence[str] | None
    """Methods to try with --method auto, comma-separated; plain CLIP is always tried."""
    keep_novel: float | None
    """Weight of classes that are not taught against those that are, with --method auto; 0 ignores them, 1, the default,
    counts both equally."""
    pretrained: str | None
    """Tag of the backbone's weights, such as openai."""
    data_root: str | Path | None
    """Folder that contains the paper's data sets, in CoOp's layout."""
    descriptions: str | Path | Mapping[str, Any] | None
    """Sentences about each class, for methods that read them: JSON, class name to list."""
    shots_file: str | Path | None
    """Training images instead of a sample: a run's shots.json, or CoOp's shot_16-seed_1.pkl."""
    test_share: float
    """Share of each class to set aside for the test, at least 2 of 4 or more images, if DATA has no test images; 0
    trains on all."""
    roles: Any
    """Role map: a name, a roles.json, the folder of 'dear roles discover', or auto, which finds one from the training
    images if none is shipped for the weights."""
    recipe: Literal["own", "shared", "tuned"]
    """Recipe: own, as the method was published; shared, one for all methods; tuned, the best of a few per method."""
    epochs: int | None
    """Number of epochs; by default the recipe's."""
    batch_size: int | None
    """Batch size; by default the recipe's."""
    lr: float | None
    """Learning rate; by default the recipe's."""
    decay: float | None
    """Weight decay; by default the recipe's."""
    warmup_epochs: int | None
    """Number of warm-up epochs; by default the recipe's."""
    micro_batch: int | None
    """Maximum images per forward pass, to save memory; same result."""
    class_chunk: int | None
    """Maximum classes to encode at once, to save memory; same result. By default all that fit into memory."""
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    """Precision of the activations; auto is bf16 or fp16 on a GPU and fp32 on a CPU."""
    cached_views: int | None
    """Cached views per image to train on (faster); 0, the default except for 'dear paper --mini', samples new views in
    every epoch."""
    threads: int | None
    """Threads to compute with on a CPU; by default all."""
    device: str | None
    """cpu, cuda, cuda:1 …; by default a GPU if there is one."""
    workers: int
    """Number of image-loading threads."""
    cache: str | Path | None
    """Cache folder for the frozen layers' outputs; by default OUT/cache."""
    no_cache: bool
    """Cache nothing: needs no disk space, takes longer."""
    log: Literal["tensorboard", "wandb"] | None
    """Also log every step for TensorBoard, in the folder tensorboard of each run, or with Weights & Biases."""
    on: str | None
    """Compute on a cluster: ray, ray:auto for the Ray of this machine, or ray:HOST:PORT."""
    gpus: float | None
    """GPUs per task on the cluster, such as 0.25 for four tasks on one GPU; by default it computes on CPUs."""
    resume: bool
    """Resume an interrupted run."""
    overwrite: bool
    """Discard the folder's contents and start over."""


class BenchOptions(TypedDict, total=False):
    """Keywords of `dear.bench`."""

    out: str | Path
    """Folder for cells, runs, table.csv and table.md."""
    methods: str | Sequence[str]
    """all, or methods, comma-separated; see 'dear ls methods'."""
    set: Mapping[str, Any]
    """Values of a method setting, each a variant of the method, such as beta=0.5,0.9; may be repeated."""
    seeds: int | Sequence[int]
    """Random seeds, comma-separated."""
    shots: int | Sequence[int]
    """Training images per class, comma-separated."""
    epochs_of: Mapping[str, Any]
    """Other numbers of epochs for some methods; tables mark them."""
    jobs: int
    """Number of cells to run in parallel; on a cluster, as many as it has room for."""
    validate: bool
    """Test on training images that were not sampled; test images are not used."""
    pretrained: str | None
    data_root: str | Path | None
    descriptions: str | Path | Mapping[str, Any] | None
    shots_file: str | Path | None
    test_share: float
    roles: Any
    recipe: Literal["own", "shared", "tuned"]
    epochs: int | None
    batch_size: int | None
    lr: float | None
    decay: float | None
    warmup_epochs: int | None
    micro_batch: int | None
    class_chunk: int | None
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    cached_views: int | None
    threads: int | None
    device: str | None
    workers: int
    cache: str | Path | None
    no_cache: bool
    log: Literal["tensorboard", "wandb"] | None
    on: str | None
    gpus: float | None
    resume: bool
    overwrite: bool
    cells: str | None
    """Run only every 20th cell, beginning with the third, for 3/20; the other shares may run at the same time on other
    machines. Afterwards, --resume without it writes the tables."""


class CompareOptions(TypedDict, total=False):
    """Keywords of `dear.compare`."""

    out: str | Path
    """Folder for cells, runs, compare.html, compare.csv; may be one of 'bench'."""
    methods: str | Sequence[str]
    set: Mapping[str, Any]
    seeds: int | Sequence[int]
    shots: int | Sequence[int]
    epochs_of: Mapping[str, Any]
    jobs: int
    validate: bool
    pretrained: str | None
    data_root: str | Path | None
    descriptions: str | Path | Mapping[str, Any] | None
    shots_file: str | Path | None
    test_share: float
    roles: Any
    recipe: Literal["own", "shared", "tuned"]
    batch_size: int | None
    lr: float | None
    decay: float | None
    warmup_epochs: int | None
    micro_batch: int | None
    class_chunk: int | None
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    cached_views: int | None
    threads: int | None
    device: str | None
    workers: int
    cache: str | Path | None
    no_cache: bool
    log: Literal["tensorboard", "wandb"] | None
    on: str | None
    gpus: float | None
    resume: bool
    overwrite: bool
    cells: str | None
    protocol: Literal["base-to-novel", "few-shot"]
    """Protocol, as in 'dear bench'."""


class PaperOptions(TypedDict, total=False):
    """Keywords of `dear.run_paper`."""

    clip: str | None
    """Backbone; by default world with --mini, ViT-B-16-quickgelu with --full."""
    pretrained: str | None
    data_root: str | Path | None
    roles: Any
    """Role map: a name, a roles.json, or the folder of 'dear roles discover'; by default the shipped one."""
    recipe: Literal["own", "shared", "tuned"]
    epochs: int | None
    batch_size: int | None
    lr: float | None
    decay: float | None
    warmup_epochs: int | None
    micro_batch: int | None
    class_chunk: int | None
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    cached_views: int | None
    threads: int | None
    device: str | None
    workers: int
    cache: str | Path | None
    no_cache: bool
    log: Literal["tensorboard", "wandb"] | None
    on: str | None
    gpus: float | None
    resume: bool
    overwrite: bool
    cells: str | None
    out: str | Path
    """Folder for cells, runs, tables, figures and report.html."""
    mini: bool
    """On the embedded world: no download, no GPU."""
    full: bool
    """ViT-B/16 on the paper's data sets below --data-root."""
    methods: str | Sequence[str]
    """Methods of Tables 2 to 4, comma-separated; all: those that the paper's tables name."""
    seeds: int | Sequence[int]
    shots: int | Sequence[int]
    """Training images per class of the few-shot curves, comma-separated."""
    images: int
    """Number of images for the searches and the ablations."""
    jobs: int
    only: str | Sequence[str] | None
    """Tables and figures to make, such as table-2,figure-4; by default all, see --plan."""
    plan: bool
    """Show what is available, missing and finished, then exit."""


class PredictOptions(TypedDict, total=False):
    """Keywords of `dear.predict`."""

    allow_pickled: bool
    """Also read a backbone's weights from a pickled file: tensors only, never code."""
    descriptions: str | Path | Mapping[str, Any] | None
    threads: int | None
    device: str | None
    workers: int
    names: str | Path | Mapping[str, Any] | None
    """Other classes than the run's, from a text file with one name per line."""
    template: str | None
    """Prompt around a class name; by default the run's."""
    readout: str | None
    """Readout of the method; by default its first one."""
    top_k: int
    """Classes to list per image."""
    out: str | Path | None
    """CSV file to write, one row per image; nothing is overwritten."""
    sort_into: str | Path | None
    """Put a copy of each image into FOLDER/CLASS; images stay where they are."""
    link: bool
    """With --sort-into: links instead of copies."""
    multi_label: bool
    """Any number of labels per image, each with its own probability; for CLIPs with a sigmoid loss, such as SigLIP, and
    calibrated runs."""
    reject: bool
    """Answer "none of these" if the likeliest class is not likely enough; see 'dear calibrate'."""
    threshold: float | None
    """Least probability of a label; by default 0.5 with --multi-label, and the fitted one with --reject."""
    batch_size: int
    """Number of images per forward pass."""
