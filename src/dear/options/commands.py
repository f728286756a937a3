"""The options of commands that use what was trained: test, predict, explain, report, search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dear.options.fields import (
    Argument,
    Count,
    DataName,
    File,
    Folder,
    Former,
    Half,
    MapName,
    Name,
    Names,
    Options,
    Repeated,
    RunFolder,
    Short,
    Shown,
    Tag,
    Text,
    as_items,
    as_texts,
    within_reach,
)
from dear.options.parts import DataRoot, Descriptions, Device, Machine, OnCluster, Threads

Images = Annotated[tuple[File, ...], BeforeValidator(as_items), Field(min_length=1)]
BatchSize = Annotated[Count, Former("batch")]


class Pickled(Options, title="Source"):
    """Which formats of weights are read."""

    allow_pickled: bool = False
    """Also read a backbone's weights from a pickled file: tensors only, never code."""


class OneRun(Pickled, title="Options"):
    """A run or a saved adapter."""

    run: Annotated[RunFolder, Argument]
    """Folder of a run or saved adapter, or hf-hub:ORG/REPO[@REVISION] for one on the hub."""


class Evaluate(Machine, Descriptions, DataRoot, OneRun, title="Options"):
    """Options of `dear eval` and `dear.evaluate`."""

    data: Annotated[DataName | None, Argument] = None
    """Data set to test on; by default the one that the run was made from."""
    half: Half = "all"
    """Half of the classes: all, base or novel."""
    template: Text | None = None
    """Prompt around a class name; by default the run's or the data set's."""
    batch_size: BatchSize = 64
    """Number of images per forward pass."""
    cache: Folder | None = None
    """Cache folder for the frozen layers' outputs."""
    everything: bool = Field(default=False, alias="all")
    """Show the method's other readouts, too."""
    as_json: bool = Field(default=False, alias="json")
    """Print JSON with the scores of each class."""


class Calibrate(Machine, OneRun, title="Options"):
    """Options of `dear calibrate` and `dear.calibrate`."""

    as_json: bool = Field(default=False, alias="json")
    """Print JSON."""


class Predict(Machine, Descriptions, OneRun, title="Options"):
    """Options of `dear predict` and `dear.predict`."""

    images: Annotated[Images, Argument, Shown("IMAGE...", "images, or folders of images")]
    """Images, or folders, tar or Parquet files of images."""
    classes: Names | None = None
    """Other classes than the run's, comma-separated, such as 'cat,dog'."""
    names: File | None = None
    """Other classes than the run's, from a text file with one name per line."""
    template: Text | None = None
    """Prompt around a class name; by default the run's."""
    readout: Annotated[Name | None, Former("strategy")] = None
    """Readout of the method; by default its first one."""
    top_k: Annotated[Count, Short("-k"), Former("top")] = 3
    """Classes to list per image."""
    out: File | None = None
    """CSV file to write, one row per image; nothing is overwritten."""
    sort_into: Folder | None = None
    """Put a copy of each image into FOLDER/CLASS; images stay where they are."""
    link: bool = False
    """With --sort-into: links instead of copies."""
    multi_label: bool = False
    """Any number of labels per image, each with its own probability; for CLIPs with a sigmoid loss, such as SigLIP, and
    calibrated runs."""
    reject: bool = False
    """Answer "none of these" if the likeliest class is not likely enough; see 'dear calibrate'."""
    threshold: Annotated[float, Field(ge=0, lt=1), Shown("P", "a number")] | None = None
    """Least probability of a label; by default 0.5 with --multi-label, and the fitted one with --reject."""
    batch_size: BatchSize = 32
    """Number of images per forward pass."""
    as_json: bool = Field(default=False, alias="json")
    """Print one JSON object per image."""


class Export(Threads, Descriptions, OneRun, title="Options"):
    """Options of `dear export`, `dear.export_onnx` and `dear.export_class_features`."""

    onnx: Annotated[Folder | None, Shown("OUT", "a folder")] = None
    """Folder to write: classifier.onnx, image_encoder.onnx, class_features.json and model.json."""
    class_features: Annotated[File | None, Shown("FILE.json", "a .json file")] = None
    """Write only the features of a class list, for an image_encoder.onnx of the same run."""
    classes: Names | None = None
    """Other classes than the run's, comma-separated, such as 'cat,dog'."""
    names: File | None = None
    """Other classes than the run's, from a text file with one name per line."""
    template: Text | None = None
    """Prompt around a class name; by default the run's."""
    int8: bool = False
    """With --onnx: also write files with 8-bit matrices, which are smaller and faster on a CPU."""
    fp16: bool = False
    """With --onnx: also write files in fp16, for GPUs and browsers with WebGPU."""
    overwrite: bool = Field(default=False, exclude=True)
    """Replace an earlier export."""

    @model_validator(mode="after")
    def _something_to_write(self) -> Self:
        if self.onnx is None and self.class_features is None:
            raise ValueError("Nothing is named to write: give --onnx OUT, or --class-features FILE.json.")
        if self.onnx is None and (self.int8 or self.fp16):
            raise ValueError("--int8 and --fp16 are forms of ONNX files: add --onnx OUT.")
        return self


class Push(Options, title="Options"):
    """Options of `dear push` and `dear.push`."""

    run: Annotated[RunFolder, Argument]
    """Folder of a run, or of a saved adapter."""
    repository: Annotated[Name, Argument, Shown("ORG/REPO", "a repository of the hub")]
    """Repository on the hub; it is created if it does not exist."""
    private: bool = False
    """Create the repository as private."""
    scores: File | None = None
    """Scores for the card: what 'dear eval RUN --json' printed; by default RUN/eval.json if it exists."""
    overwrite: bool = Field(default=False, exclude=True)
    """Replace an adapter that is there already; it stays in the repository's history."""


class Explain(Device, Pickled, title="Options"):
    """Options of `dear explain` and `dear.explain`."""

    paths: Annotated[Images, Argument, Shown("[RUN] IMAGE", "a run and an image")]
    """Folder of a run or adapter, and an image; with --clip, only an image."""
    out: Annotated[File | None, Shown("PAGE.html", "a .html file")] = None
    """Page to write, with heat maps."""
    classes: Names | None = None
    """Classes, comma-separated; by default the run's."""
    template: Text | None = None
    """Prompt around a class name, such as 'a photo of a {}.'."""
    clip: Name | None = None
    """Explain a backbone as it is, not a run; names as for 'dear train'."""
    pretrained: Tag | None = None
    """Tag of the backbone's weights, such as openai."""
    roles: MapName | None = None
    """Role map: a name, a roles.json, or the folder of 'dear roles discover'; by default the run's, or the one shipped
    for the backbone."""
    readout: Annotated[Name | None, Former("strategy")] = None
    """Readout of the method; by default its first one."""
    top_k: Annotated[Count, Short("-k"), Former("top")] = 3
    """Likeliest classes to explain."""
    as_json: bool = Field(default=False, alias="json")
    """Print JSON with every part and the heat maps."""

    @model_validator(mode="after")
    def _run_or_backbone(self) -> Self:
        wanted = 1 if self.clip is not None else 2
        if len(self.paths) != wanted:
            raise ValueError(
                f"{len(self.paths)} path(s) instead of {wanted}: give 'dear explain RUN IMAGE', or 'dear explain IMAGE "
                f"--clip NAME --classes NAME,NAME'."
            )
        return self

    @property
    def run(self) -> Path | None:
        """The folder of the run; None for a plain backbone."""
        return None if self.clip is not None else self.paths[0]


class App(Device, Pickled, title="Options"):
    """Options of `dear app` and `dear.open_app`."""

    run: Annotated[RunFolder | None, Argument] = None
    """Folder of a run, or of a saved adapter; by default the quickstart's, which is trained at the first time."""
    index: Annotated[Folder | None, Shown("INDEX", "the folder of an index")] = None
    """Search index to open with it; by default RUN/index if it exists."""
    clip: Name | None = None
    """Open a backbone as it is, not a run; names as for 'dear train'."""
    pretrained: Tag | None = None
    """Tag of the backbone's weights, such as openai."""
    classes: Names | None = None
    """Other classes than the run's, comma-separated, such as 'cat,dog'."""
    port: Annotated[int, Field(ge=1, le=65535), Shown("N", "a whole number")] | None = None
    """Port on this computer; by default the first free one from 7860 on."""
    no_browser: bool = False
    """Print the address, and do not open a browser."""

    @model_validator(mode="after")
    def _run_or_backbone(self) -> Self:
        if self.run is not None and self.clip is not None:
            raise ValueError("A run or a backbone is opened, not both: leave out RUN or --clip.")
        if self.pretrained is not None and self.clip is None:
            raise ValueError("--pretrained names weights of a backbone: give the backbone too, with --clip.")
        return self


class Report(Machine, DataRoot, Pickled, title="Options"):
    """Options of `dear report` and `dear.report`."""

    run: Annotated[RunFolder, Argument]
    """Folder of a run."""
    data: DataName | None = None
    """Where the run's data set is now, if it was moved."""
    out: File | None = None
    """HTML file to write; by default RUN/report.html."""


class MadeBy(Pickled, title="Options"):
    """What the features of an index are made by: a CLIP, or an adapter."""

    clip: Name | None = None
    """CLIP to search with, without an adapter: an OpenCLIP name, hf-hub:ORG/REPO, local-dir:FOLDER or world."""
    pretrained: Tag | None = None
    """Tag of the CLIP's weights, such as openai."""
    run: RunFolder | None = None
    """Adapter to search with: folder of a run or saved adapter."""


class IndexImages(OnCluster, Machine, MadeBy, title="Options"):
    """Options of `dear search index` and `dear.index_images`."""

    photos: Annotated[Folder, Argument, Shown("PHOTOS", "a folder of images")]
    """Folder of images and of folders of images, or tar or Parquet files, such as 'shards/{000..099}.tar'."""
    roles: MapName | None = None
    """Role map of the CLIP: a name, a roles.json, the folder of 'dear roles discover', or auto, which finds one from
    PHOTOS if none is shipped for the weights."""
    kinds: Names | None = None
    """Features besides the whole image: concepts of the role map, or heads such as head:11.4; by default the map's core
    attributes. cls: only the whole image, which needs no role map."""
    out: Annotated[Folder | None, Shown("INDEX", "a folder")] = None
    """Folder for the index; by default RUN/index."""
    overwrite: bool = Field(default=False, exclude=True)
    """Discard the existing index and start over."""
    batch_size: BatchSize = 64
    """Number of images per forward pass."""


class Search(Device, MadeBy, title="Options"):
    """Options of `dear search find` and `dear.search`."""

    index: Annotated[Folder, Argument, Shown("INDEX", "the folder of an index")]
    """Folder of the index, or of a run that has one."""
    query: Annotated[Text | None, Argument, Shown("QUERY", "an image or a text")] = None
    """An image, or a text such as 'a striped star'."""
    text: Text | None = None
    """Words besides an image; both count the same."""
    by: Annotated[Name, Former("attribute")] = "cls"
    """Kind of feature to compare: cls for the whole image, color, …, head:11.4; all for one row of each."""
    without: Annotated[
        tuple[Name, ...], BeforeValidator(as_items), Repeated, Shown("NAME", "names of kinds of features")
    ] = Field(default=(), alias="not")
    """Attribute to leave out, to compare by everything else; may be repeated."""
    swap: Annotated[
        dict[str, str], BeforeValidator(as_texts), Shown("NAME=IMAGE", "NAME=IMAGE, as in color=other.jpg")
    ] = Field(default={})
    """Take one attribute from another image, as in color=other.jpg; may be repeated."""
    top_k: Annotated[Count, Short("-k"), Former("count")] = 12
    """Number of results."""
    min_score: Annotated[
        float | Literal["auto"] | None,
        AfterValidator(within_reach),
        Shown("SCORE|auto", "a number, or auto for the proposed score"),
    ] = None
    """Leave out results below this score; auto for the one proposed by the spread of scores."""
    sheet: File | None = None
    """Contact sheet to write: a .html or .png file."""
    exact: bool = False
    """Compare every image, even if 'dear search build' was run."""
    as_json: bool = Field(default=False, alias="json")
    """Print one JSON object per image."""


class OneIndex(Options, title="Options"):
    """A search index."""

    index: Annotated[Folder, Argument, Shown("INDEX", "the folder of an index")]
    """Folder of the index, or of a run that has one."""


class BuildSearch(Threads, OneIndex, title="Options"):
    """Options of `dear search build` and `dear.build_search`."""

    kinds: Names | None = None
    """Kinds of features to build for, such as cls,color; by default all of the index."""


class ExportIndex(OneIndex):
    """Options of `dear search export` and `dear.export_index`."""

    out: Annotated[File, Shown("FILE.parquet", "a .parquet file")]
    """File to write, which must not exist."""
    to: Literal["parquet"] = "parquet"
    """Format."""
