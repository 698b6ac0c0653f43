"""``roofline quantize``: round the weights of a checkpoint, and say what that does to each."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from roofline.cli import options as opt
from roofline.cli.app import COMPILE, command
from roofline.cli.progress import progress
from roofline.cli.tables import table
from roofline.ir.errors import UsageError
from roofline.ir.files import user_path
from roofline.ir.units import format_bytes, share
from roofline.passes.formats.quantize import formats_by_name
from roofline.quant.checkpoints import formats_within
from roofline.quant.files import read_weights, save
from roofline.quant.ranges import PERCENTILE
from roofline.quant.recipes import QuantizedModel
from roofline.quant.weights import quantize_arrays

_File = Annotated[Path, opt.argument("WEIGHTS", "A .safetensors or .npz file, or a folder of .safetensors.")]
_Weights = Annotated[opt.Text, opt.option(
    "--weights FORMAT", "int8, int4-g128, fp8, mxfp4, nvfp4, ...; or FORMAT,PATTERN=FORMAT,... by name.",
    default="int8")]  # fmt: skip
_Method = Annotated[str, opt.option(
    "--method NAME", "nearest, or gptq with --calibration.", complete=("nearest", "gptq"),
    default="nearest")]  # fmt: skip
_Calibration = Annotated[Path | None, opt.option(
    "--calibration FILE", "What matrices are multiplied by: arrays [..., in] by the name of the weight.")]  # fmt: skip
_Ranges = Annotated[str, opt.option(
    "--ranges NAME", "How scales are found.", complete=("minmax", "percentile", "mse"), default="minmax")]  # fmt: skip
_Percentile = Annotated[float, opt.option(
    "--percentile P", "Of the numbers, that --ranges percentile holds.", default="99.9")]  # fmt: skip
_Order = Annotated[str, opt.option(
    "--order NAME", "In which order GPTQ takes columns.", complete=("natural", "activation"),
    default="natural")]  # fmt: skip
_Out = Annotated[Path | None, opt.option("-o FILE", "Write codes and scales here: .safetensors or .npz.")]


@dataclass(frozen=True, kw_only=True)
class MixedOptions(opt.ChipOptions):
    """Formats to choose among for each matrix, and within what."""

    mixed: Annotated[opt.Text, opt.option(
        "--mixed FORMATS", "Choose a format for each matrix out of these, within one of:", "Mixed")] = None  # fmt: skip
    memory_limit: Annotated[opt.Text, opt.option(
        "--memory-limit SIZE", "Of all matrices with their scales, such as 5GB: the least error.", "Mixed")
    ] = None  # fmt: skip
    error_budget: Annotated[opt.Text, opt.option(
        "--error-budget SHARE", "Noise over signal, added up, such as 1%: the least size, with --chip the least time.",
        "Mixed")] = None  # fmt: skip
    latency_limit: Annotated[opt.Text, opt.option(
        "--latency-limit TIME", "Of all matmuls on --chip, such as 2ms: the least error.", "Mixed")] = None  # fmt: skip
    on: Annotated[opt.Text, opt.option(
        "--chip CHIP", "Where they run.", "Mixed", complete=opt.complete_chips)] = None  # fmt: skip
    batch: Annotated[int, opt.option(
        "--batch -B N", "Rows that each matrix is multiplied by there.", "Mixed", default="1", min=1)] = 1  # fmt: skip

    @property
    def keywords(self) -> dict[str, Any]:
        """The limit as keywords of the library; empty without one."""
        opt.with_unit(self.memory_limit, "--memory-limit", "B")
        opt.with_unit(self.latency_limit, "--latency-limit", "s")
        error = None if self.error_budget is None else share(self.error_budget, "--error-budget")
        every = {"memory_limit": self.memory_limit, "error_limit": error, "latency_limit": self.latency_limit}
        limits = {name: limit for name, limit in every.items() if limit is not None}
        if (self.mixed is not None) != (len(limits) == 1) or (self.on and not limits):
            raise UsageError("--mixed FORMATS goes with one of --memory-limit, --error-budget, --latency-limit")
        chip = self.some(self.on)
        return limits and {**limits, "chip": chip, "batch": self.batch}


@command(COMPILE, "roofline quantize examples/digits.safetensors --weights int4-g32")
def quantize(
    file: _File,
    choice: MixedOptions,
    output: opt.OutputOptions,
    weights: _Weights = None,
    method: _Method = "nearest",
    calibration: _Calibration = None,
    ranges: _Ranges = "minmax",
    percentile: _Percentile = PERCENTILE,
    order: _Order = "natural",
    out: _Out = None,
) -> None:
    """Round the weights of a checkpoint to fewer bits, and show the error of each matrix."""
    inputs = None if calibration is None else read_weights(calibration)
    limits = choice.keywords
    how: dict[str, Any] = {"ranges": ranges, "percentile": percentile, "order": order}
    arrays = read_weights(file)
    for read in (file, calibration):
        _check_apart(out, read)
    with progress("quantize", 1.0):
        chosen = formats_by_name(weights or "int8")
        if choice.mixed is not None:
            if weights is not None:
                raise UsageError("--mixed chooses among formats of its own; give it or --weights")
            words = opt.names(choice.mixed)
            picked = formats_within(arrays, words, method=method, inputs=inputs, **{**limits, **how})
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
    if result.unchanged:
        yield f"unchanged: {', '.join(result.unchanged)}"
