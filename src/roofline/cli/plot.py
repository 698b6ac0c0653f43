"""``roofline plot``: a roofline of one point, or a sweep over several batches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from roofline.analysis.estimates import Estimate
from roofline.cli import options as opt
from roofline.cli.app import PREDICT, command
from roofline.cli.estimate import estimate_of
from roofline.cli.output import note
from roofline.ir.errors import UsageError
from roofline.ir.report import title

_Output = Annotated[Path, opt.option("--output -o FILE", "A .png, .svg, .pdf or .html.", "Output")]


@command(PREDICT, "roofline plot gpt2 h100-sxm --phase decode -B 8 -S 1024 -o roofline.svg")
def plot(
    model: opt.Model,
    chip: opt.OneChip,
    output: _Output,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    run: opt.RunOptions,
    printed: opt.OutputOptions,
    measured: opt.Measured = None,
) -> None:
    """Draw a roofline of one point, or a sweep over several batches; --json and --csv print what is drawn."""
    opt.measured_time(measured)
    _, est = estimate_of(model, chip, program, sizes, opt.CopyOptions(), run)
    picture = _picture(est, measured)
    for text in picture.warnings:
        note(text)
    picture.save(output)
    kind = f"batch sweep ({est.shape[0]} batches)" if est.shape else "roofline"
    printed.write(picture, [f"{output}: {kind} of {title(est.subject())}"])


def _picture(est: Estimate, measured: str | None) -> Any:
    from roofline.view.charts import plot_batch, plot_roofline  # matplotlib is slow to load

    if not est.shape:
        return plot_roofline(est, measured=measured)
    if measured is not None:
        raise UsageError("--measured belongs to one point; give -B one number")
    return plot_batch(est)
