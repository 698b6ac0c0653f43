"""``roofline quantize``: round the weights of a checkpoint, and say what that does to each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from roofline.cli import options as opt
from roofline.cli.app import COMPILE, command
from roofline.cli.progress import progress
from roofline.cli.tables import table
from roofline.ir.units import format_bytes
from roofline.passes.formats.quantize import formats_by_name
from roofline.quant.files import read_weights, save
from roofline.quant.recipes import QuantizedModel
from roofline.quant.weights import quantize_arrays

_File = Annotated[Path, opt.argument("WEIGHTS", "A .safetensors or .npz file, or a folder of .safetensors.")]
_Weights = Annotated[str, opt.option(
    "--weights FORMAT", "int8, int4-g128, fp8, mxfp4, nvfp4, ...; or FORMAT,PATTERN=FORMAT,... by name.",
    default="int8")]  # fmt: skip
_Method = Annotated[str, opt.option(
    "--method NAME", "nearest, or gptq with --calibration.", complete=("nearest", "gptq"),
    default="nearest")]  # fmt: skip
_Calibration = Annotated[Path | None, opt.option(
    "--calibration FILE", "What matrices are multiplied by: arrays [..., in] by the name of the weight.")]  # fmt: skip
_Ranges = Annotated[str, opt.option(
    "--ranges NAME", "How scales are found.", complete=("minmax", "percentile", "mse"), default="minmax")]  # fmt: skip
_Order = Annotated[str, opt.option(
    "--order NAME", "In which order GPTQ takes columns.", complete=("natural", "activation"),
    default="natural")]  # fmt: skip
_Out = Annotated[Path | None, opt.option("-o FILE", "Write codes and scales here: .safetensors or .npz.")]


@command(COMPILE, "roofline quantize examples/digits.safetensors --weights int4-g32")
def quantize(
    file: _File,
    output: opt.OutputOptions,
    weights: _Weights = "int8",
    method: _Method = "nearest",
    calibration: _Calibration = None,
    ranges: _Ranges = "minmax",
    order: _Order = "natural",
    out: _Out = None,
) -> None:
    """Round the weights of a checkpoint to fewer bits, and show the error of each matrix."""
    inputs = None if calibration is None else read_weights(calibration)
    with progress("quantize", 1.0):
        result = quantize_arrays(
            read_weights(file), formats_by_name(weights), method, inputs, name=file.name, ranges=ranges, order=order
        )
    if out is not None:
        save(result, out)
    output.write(result, _parts(result))


def _parts(result: QuantizedModel) -> Iterator[Any]:
    whole, measured = result.summary(), any(layer.output_sqnr_db is not None for layer in result.layers)
    size = f"{format_bytes(whole['weights_bytes'])}, {whole['bits_per_weight']:.3f} bits per weight"
    yield f"{result.name}: {len(result.layers)} matrices, {size}, scales by {result.recipe.ranges}"
    yield ""
    rows = []
    for layer in result.layers:
        error, wide = layer.error, layer.output_sqnr_db
        cells = [layer.name, str(layer.rounded.format), layer.method, f"{error.sqnr_db:.1f} dB", f"{error.cosine:.6f}",
                 f"{error.largest:.2%}"]  # fmt: skip
        rows.append([*cells, "" if wide is None else f"{wide:.1f} dB"] if measured else cells)
    heads = "<weight|<format|?<rounding|SQNR|?cosine|?largest error"
    yield table(f"{heads}|SQNR of outputs" if measured else heads, rows)
