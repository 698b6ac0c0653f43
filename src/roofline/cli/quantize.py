"""``roofline quantize``: round the weights of a checkpoint, and say what that does to each."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from roofline.cli import options as opt
from roofline.cli.app import COMPILE, command
from roofline.cli.progress import progress
from roofline.cli.tables import table
from roofline.ir.errors import UsageError
from roofline.ir.files import user_path
from roofline.ir.units import format_bytes
from roofline.passes.formats.quantize import formats_by_name
from roofline.quant.checkpoints import formats_within
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
_Mixed = Annotated[str | None, opt.option(
    "--mixed FORMATS", "Choose a format for each matrix out of these, with --memory-limit.")]  # fmt: skip
_Limit = Annotated[str | None, opt.option("--memory-limit SIZE", "Of all matrices with their scales, such as 5GB.")]
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
    mixed: _Mixed = None,
    memory_limit: _Limit = None,
    out: _Out = None,
) -> None:
    """Round the weights of a checkpoint to fewer bits, and show the error of each matrix."""
    inputs = None if calibration is None else read_weights(calibration)
    if (mixed is None) != (memory_limit is None):
        raise UsageError("--mixed FORMATS and --memory-limit SIZE go together: formats to choose among, and their size")
    arrays, how = read_weights(file), {"ranges": ranges, "order": order}
    for read in (file, calibration):
        _check_apart(out, read)
    with progress("quantize", 1.0):
        chosen = formats_by_name(weights)
        if mixed is not None and memory_limit is not None:
            picked = formats_within(arrays, opt.names(mixed), memory_limit, method, inputs, **how)
            chosen = {glob.escape(each): word for each, word in picked.items()}
        result = quantize_arrays(arrays, chosen, method, inputs, name=file.name, **how)
    if out is not None:
        save(result, out)
    output.write(result, _parts(result))


def _check_apart(out: Path | None, read: Path | None) -> None:
    """Refuse to write over what is read, under whatever name, or among the files of a folder."""
    if out is None or read is None:
        return
    target, source = os.path.realpath(user_path(out)), user_path(read)
    places = [place for place in (target, os.path.dirname(target)) if os.path.exists(place)]
    if any(each.samefile(place) for each in (source, *source.glob("*.safetensors")) for place in places):
        raise UsageError(f"-o {out}: lies in {read}, which is read; give another file")


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
