"""Write a module as an ONNX file, run it with onnxruntime, and convert it to int8 or fp16."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dear.backbone.guarded import quiet
from dear.errors import ExportError, MissingExtraError
from dear.storage.files import MEGABYTE

OPSET = 20
LARGEST = 1900 * MEGABYTE
"""Bytes of weights in one ONNX file, whose format ends at 2 GB; more are stored in a file beside it."""
INPUT = "images"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def check_packages() -> None:
    """Raise `MissingExtraError` if the packages of the extra are not installed."""
    if lacking := [name for name in PACKAGES if find_spec(name) is None]:
        raise MissingExtraError(f'ONNX export needs {", ".join(lacking)}: pip install "dear-vlm[onnx]".')


def write_onnx(module: nn.Module, path: Path, images: Tensor, output: str) -> None:
    """Write a module from images to one tensor, with a free batch size."""
    weights = sum(one.numel() * one.element_size() for one in (*module.parameters(), *module.buffers()))
    try:
        with torch.no_grad(), _quiet():
            torch.onnx.export(
                module,
                (images,),
                str(path),
                dynamo=True,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=[output],
                dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
                external_data=weights > LARGEST,
                verbose=False,
            )
    except Exception as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ExportError(f"{module!r} cannot be exported: torch's ONNX exporter says {reason[:200]!r}.") from error


def run_onnx(path: Path, images: Tensor) -> Tensor:
    """The output of an ONNX file for images, computed by onnxruntime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), session_options(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {INPUT: images.numpy()})
    return torch.from_numpy(found)


def session_options() -> Any:
    """Options of onnxruntime: as many threads as torch, errors only."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return options


def write_int8(source: Path, path: Path) -> None:
    """Write a copy of an ONNX file whose matrices have 8 bits; activations are quantized while it runs."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    large = source.stat().st_size > LARGEST or _data_of(source).exists()
    folded = source
    if not large:  # only constant matrices are quantized, and the exporter leaves some of them to be transposed
        folded = path.with_suffix(".folded")
        options = session_options()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(folded)
        onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    with _quiet():
        quantize_dynamic(
            folded,
            path,
            per_channel=True,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul", "Gemm"],
            use_external_data_format=large,
        )
    if folded != source:
        folded.unlink()


def write_fp16(source: Path, path: Path) -> None:
    """Write a copy of an ONNX file that computes in fp16; input and output stay fp32."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _quiet():
        half = convert_float_to_float16(onnx.load(source), keep_io_types=True)
        large = half.ByteSize() > LARGEST
        onnx.save(half, path, save_as_external_data=large, location=_data_of(path).name if large else None)


def _data_of(path: Path) -> Path:
    """The file of weights beside a large ONNX file."""
    return path.with_name(f"{path.name}.data")


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress messages of the exporters, which concern their authors; one thread at a time."""
    with quiet(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
