"""Export an adapter as ONNX files that run without torch, and features of class lists for them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dear.backbone.clip import FrozenClip, short_name
from dear.data.descriptions import read_descriptions
from dear.errors import BackboneError, ConfigError, ExportError, OverwriteError, option
from dear.model.artefact import identity, versions
from dear.model.encoder import ImageEncoder, image_encoder
from dear.model.export import Baked
from dear.model.model import Model
from dear.model.onnx_file import INPUT, OPSET, check_packages, run_onnx, write_fp16, write_int8, write_onnx
from dear.options.commands import Export
from dear.options.reading import check_values
from dear.progress.display import watched
from dear.progress.stages import stage
from dear.storage.documents import Document, Record
from dear.storage.files import as_folder, whole_folder, write_result
from dear.workflows.machine import using_threads
from dear.workflows.opened_run import model_of
from dear.workflows.predict import chosen_classes

CLASSIFIER, ENCODER = "classifier", "image_encoder"
OUTPUTS = {CLASSIFIER: "logits", ENCODER: "embedding"}
MODEL, FEATURES = "model.json", "class_features.json"
CLOSE = 1e-4
"""Largest difference of an fp32 file from torch, relative to the largest logit, if that is more than 1."""
EXPORTING = "exporting"


class Preprocessing(Record):
    """How an image becomes the input: RGB, resized, cropped in the middle, from 0 to 1, minus mean, divided by std."""

    height: int
    width: int
    resize: str
    """shortest: the shorter side, then crop; squash: both sides; longest: the longer side, then pad."""
    interpolation: str
    mean: list[float]
    std: list[float]
    fill: int


class ExportedFile(Record):
    """A file of an export, and how far it is from torch on random images."""

    bytes: int
    sha256: str
    precision: str
    difference: float
    """Largest difference of an output from torch's, divided by torch's largest output if that is more than 1."""

    def summary(self) -> str:
        """The precision and the difference in words."""
        return f"{self.precision}, differs from torch by {self.difference:.1e}"


class ExportedModel(Document):
    """Content of `model.json`: everything besides weights that a program without torch needs."""

    format = "dear-onnx"
    version = 1
    noun = "description of an export"
    error = ExportError

    method: str
    backbone: str
    adapter: str
    """Hash of the adapter; class features belong to an encoder with the same one."""
    classes: list[str]
    preprocessing: Preprocessing
    bias: float
    """For CLIPs with a sigmoid loss: sigmoid(logit + bias) is the probability of a single label; 0 for others."""
    input: str
    outputs: dict[str, str]
    opset: int
    no_image_encoder: str
    """Why there is no image encoder; "" if there is one."""
    versions: dict[str, str]
    files: dict[str, ExportedFile]


class ClassFeatures(Document):
    """Content of `class_features.json`: embedding @ features.T are the logits of these classes."""

    format = "dear-class-features"
    version = 1
    noun = "file of class features"
    error = ExportError

    adapter: str
    classes: list[str]
    features: list[list[float]]


class ExportClasses(NamedTuple):
    """The class list of an export; None for the run's."""

    classes: Sequence[str] | None = None
    template: str | None = None
    descriptions: str | Path | Mapping[str, Sequence[str]] | None = None

    def view(self, model: Model) -> Model:
        """The model for this list."""
        if all(one is None for one in self):
            return model
        names = self.classes if self.classes is not None else model.required_classes().names
        sentences = None if self.descriptions is None else read_descriptions(self.descriptions)
        return model.for_classes(names, self.template, descriptions=sentences)


def export_onnx(
    run: str | Path | Model,
    out: str | Path,
    classes: Sequence[str] | None = None,
    *,
    names: str | Path | None = None,
    template: str | None = None,
    descriptions: str | Path | Mapping[str, Sequence[str]] | None = None,
    int8: bool = False,
    fp16: bool = False,
    threads: int | None = None,
    allow_pickled: bool = False,
    overwrite: bool = False,
    progress: bool | Callable[[str, int, int], None] | None = None,
) -> Path:
    """Write an adapter as ONNX files that run without torch; returns their folder.

    The folder then has `classifier.onnx` (images to logits), `image_encoder.onnx` (images to embeddings, for any class
    list) if the method allows it, `class_features.json` and `model.json`. Every file is compared with torch.

    Args:
        run: folder of a run or adapter, or a loaded model on the CPU.
        out: folder to write, which must be new or empty.
        classes: other classes than the run's.
        names: text file with other classes than the run's, one per line.
        template: the prompt around a class name; by default the run's.
        descriptions: sentences about classes, for methods that read them: a mapping, or a JSON file.
        int8: also write files with 8-bit matrices.
        fp16: also write files in fp16.
        threads: threads to compute with; by default all.
        allow_pickled: also read a backbone's weights from a pickled file (tensors only, never code).
        overwrite: replace an earlier export.
        progress: True for a bar on stderr, or a function of the name of a stage, the number done, the number of all.
    """
    with watched(progress):
        write_export(
            run,
            out,
            ExportClasses(chosen_classes(classes, names), template, descriptions),
            int8=int8,
            fp16=fp16,
            threads=threads,
            allow_pickled=allow_pickled,
            overwrite=overwrite,
        )
    return Path(out)


def write_export(
    run: str | Path | Model,
    out: str | Path,
    listed: ExportClasses,
    *,
    int8: bool = False,
    fp16: bool = False,
    threads: int | None = None,
    allow_pickled: bool = False,
    overwrite: bool = False,
) -> ExportedModel:
    """What `dear.export_onnx` and `dear export --onnx` do; the folder is written whole or not at all."""
    check_values(Export, int8=int8, fp16=fp16, overwrite=overwrite, threads=threads)
    folder = as_folder(out)
    check_packages()
    _check_folder(folder, overwrite)
    with using_threads(threads):
        model = listed.view(_on_cpu(model_of(run, "cpu", allow_pickled=allow_pickled))).eval()
        try:
            with whole_folder(folder) as draft:
                found = _write(model, draft, [*(["int8"] if int8 else []), *(["fp16"] if fp16 else [])])
                _check_folder(folder, overwrite)
        except (OSError, shutil.Error) as error:
            if isinstance(error, OverwriteError):
                raise
            raise OverwriteError(f"{folder} cannot be written ({getattr(error, 'strerror', None) or error}).") from None
    return found


def export_class_features(
    run: str | Path | Model,
    out: str | Path,
    classes: Sequence[str] | None = None,
    *,
    names: str | Path | None = None,
    template: str | None = None,
    descriptions: str | Path | Mapping[str, Sequence[str]] | None = None,
    threads: int | None = None,
    allow_pickled: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write the features of a class list as JSON, for an `image_encoder.onnx` of the same adapter; returns the file.

    Arguments are those of `export_onnx`; `out` is the file to write.
    """
    check_values(Export, overwrite=overwrite, threads=threads)
    path = as_folder(out)
    if path.suffix.lower() != ".json":
        raise ConfigError(f"Class features are written to a .json file, not {path.name!r}.")
    if path.exists() and not (overwrite and path.is_file()):
        raise OverwriteError(f"{path} already exists: choose another file, or add {option(overwrite=True)}.")
    with using_threads(threads):
        model = _on_cpu(model_of(run, "cpu", allow_pickled=allow_pickled)).eval()
        model = ExportClasses(chosen_classes(classes, names), template, descriptions).view(model)
        encoder = image_encoder(model, _sample(model.clip, 4))
        if encoder is None:
            raise ExportError(_no_encoder(model))
        write_result(path, _features(model, encoder).to_json())
    return path


def preprocessing_of(clip: FrozenClip) -> Preprocessing:
    """The preprocessing of a CLIP, as `clip.preprocess_eval` does it."""
    config: Mapping[str, Any] = clip.model.visual.preprocess_cfg
    size = config["size"]
    height, width = (size, size) if isinstance(size, int) else size
    return Preprocessing(
        height=height,
        width=width,
        resize=config["resize_mode"],
        interpolation="bilinear" if config["interpolation"] == "bilinear" else "bicubic",
        mean=[float(one) for one in config["mean"]],
        std=[float(one) for one in config["std"]],
        fill=int(config.get("fill_color", 0)),
    )


def _write(model: Model, draft: Path, forms: Sequence[str]) -> ExportedModel:
    """Write all files of an export to a new folder."""
    model.required_classes()
    encoder = image_encoder(model, _sample(model.clip, 4))
    modules = {CLASSIFIER: model.baked().eval(), **({ENCODER: encoder.module} if encoder else {})}
    files: dict[str, ExportedFile] = {}
    with stage(EXPORTING, len(modules) * (1 + len(forms))) as advance:
        for name, module in modules.items():
            for path, precision in _files(module, draft, name, forms):
                files[path.name] = _checked(module, path, precision)
                advance(len(files))
    if encoder:
        _features(model, encoder).write(draft / FEATURES)
    found = ExportedModel(
        method=model.name,
        backbone=short_name(model.clip.name),
        adapter=identity(model)["state_sha256"],
        classes=list(model.required_classes().names),
        preprocessing=preprocessing_of(model.clip),
        bias=model.clip.bias,
        input=INPUT,
        outputs={f"{name}.onnx": OUTPUTS[name] for name in modules},
        opset=OPSET,
        no_image_encoder="" if encoder else _no_encoder(model),
        versions=versions(),
        files=files,
    )
    found.write(draft / MODEL)
    return found


def _files(module: Baked, draft: Path, name: str, forms: Sequence[str]) -> Any:
    """Write a module in all precisions, one at a time."""
    exact = draft / f"{name}.onnx"
    write_onnx(module, exact, _sample(module.clip, 2), OUTPUTS[name])
    yield exact, "fp32"
    for form in forms:
        path = draft / f"{name}.{form}.onnx"
        (write_int8 if form == "int8" else write_fp16)(exact, path)
        yield path, form


def _checked(module: Baked, path: Path, precision: str) -> ExportedFile:
    """Compare a file with torch for two batch sizes; raise `ExportError` if it computes something else."""
    worst = 0.0
    for count in (1, 3):
        images = _sample(module.clip, count, seed=count)
        with torch.no_grad():
            expected = module(images)
        found = run_onnx(path, images)
        same = found.shape == expected.shape and bool(found.isfinite().all())
        apart = (found - expected).abs().max() / expected.abs().max().clamp_min(1) if same else torch.tensor(torch.inf)
        worst = max(worst, float(apart))
    if worst > (CLOSE if precision == "fp32" else 1.0):
        raise ExportError(
            f"{path.name} was not written: its output differs from torch's by {worst:.1e}, more than {CLOSE:.0e}."
        )
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ExportedFile(bytes=path.stat().st_size, sha256=digest, precision=precision, difference=worst)


def _features(model: Model, encoder: ImageEncoder) -> ClassFeatures:
    return ClassFeatures(
        adapter=identity(model)["state_sha256"],
        classes=list(model.required_classes().names),
        features=encoder.class_features(model).tolist(),
    )


def _no_encoder(model: Model) -> str:
    return (
        f"{model.name} has no image encoder for other class lists: its logits are not products of an image's embedding "
        f"and class features, so only {CLASSIFIER}.onnx with its own classes can be exported."
    )


def _sample(clip: FrozenClip, count: int, seed: int = 0) -> Tensor:
    """Random images of the size that a CLIP reads."""
    sizes = preprocessing_of(clip)
    return torch.randn(count, 3, sizes.height, sizes.width, generator=torch.Generator().manual_seed(seed))


def _on_cpu(model: Model) -> Model:
    """The model, if it is on the CPU in fp32, as files are compared there."""
    if model.clip.device.type != "cpu" or model.clip.precision != "fp32":
        raise BackboneError(
            f"The model is on {model.clip.device} in {model.clip.precision}: load it on the CPU in fp32, as "
            "dear.load(FOLDER) does, and export it from there."
        )
    return model


def _check_folder(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that has content, unless it is an earlier export that may be replaced."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    ours = folder.is_dir() and not folder.is_symlink() and _is_export(folder)
    if not ours:
        raise OverwriteError(f"{folder} already contains other files: choose an empty folder.")
    if not overwrite:
        raise OverwriteError(f"{folder} already contains an export: add {option(overwrite=True)} to replace it.")


def _is_export(folder: Path) -> bool:
    """Whether a folder has an export and nothing else."""
    try:
        listed = ExportedModel.read(folder / MODEL)
    except (OSError, ExportError):
        return False
    known = {MODEL, FEATURES, *listed.files, *(f"{name}.data" for name in listed.files)}
    return {path.name for path in folder.iterdir()} <= known
