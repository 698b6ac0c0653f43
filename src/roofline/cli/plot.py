"""``roofline plot``: a roofline of one point or several upon each other, or a sweep over several batches."""

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
from roofline.view.charts.chart import checked_suffix

_Outputs = Annotated[list[Path], opt.option(
    "--output -o FILE", "A .png, .svg or .pdf, an interactive .html, or what is drawn as .csv; may be given again.",
    "Output")]  # fmt: skip
_Dark = Annotated[bool, opt.option("--dark", "Draw on a dark ground.", "Output")]
_Also = Annotated[opt.Text, opt.option(
    "--also MODEL", "A second program in the same roofline.", complete=opt.complete_models)]  # fmt: skip
_Chips = Annotated[str, opt.argument(
    "CHIP", "A shipped name, a chip .toml or a cluster; several with commas.", opt.complete_chips)]  # fmt: skip
_ByLevel = Annotated[bool, opt.option(
    "--by-level", "Draw the kernels of a roofline at each memory level, joined.", "Output")]  # fmt: skip
_Measured = Annotated[opt.Text, opt.option(
    "--measured TIME", "The measured time of one run, such as 41ms; over batches 1=12ms,8=15ms.")]  # fmt: skip


@command(PREDICT, "roofline plot gpt2 h100-sxm --phase decode -B 8 -S 1024 -o roofline.svg")
def plot(
    model: opt.Model,
    chip: _Chips,
    output: _Outputs,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    run: opt.RunOptions,
    limits: opt.LimitOptions,
    printed: opt.OutputOptions,
    measured: _Measured = None,
    also: _Also = None,
    by_level: _ByLevel = False,
    dark: _Dark = False,
) -> None:
    """Draw a roofline of one point, of chips or programs upon each other, or a sweep over several batches."""
    for file in output:  # a wrong name of the second file is told before the first is written
        checked_suffix(file)
    names = [model, also] if also is not None else [model]
    estimates = [estimate_of(name, chip, program, sizes, opt.CopyOptions(), run)[1] for name in names]
    picture, kind = _picture(estimates, measured, limits, by_level)
    for text in picture.warnings:
        note(text)
    for file in output:
        picture.save(file, dark=dark)
    printed.write(picture, [f"{file}: {kind} of {title(estimates[0].subject())}" for file in output])


def _picture(
    estimates: list[Estimate], measured: str | None, limits: opt.LimitOptions, by_level: bool
) -> tuple[Any, str]:
    """Return the chart that estimates ask for, and what it is."""
    from roofline.view.charts import plot_batch, plot_roofline  # matplotlib is slow to load

    est, (memory, latency) = estimates[0], limits.limits()
    points: list[Estimate] = []
    for one in estimates:
        points += [one[at] for at in range(len(one.chips))] if one.many_chips and not one.grid.shape else [one]
    if not any(one.shape for one in points):
        if memory or latency:
            raise UsageError("limits belong to a sweep over batches; give -B several numbers, such as 1,8,64")
        opt.measured_time(measured)
        kind = "roofline" if len(points) == 1 else f"{len(points)} rooflines"
        return plot_roofline(*points, measured=measured, traffic=by_level), kind
    if by_level:
        raise UsageError("--by-level draws the kernels of a roofline of one point; give each size one number")
    if len(points) > 1 or est.many_chips:
        raise UsageError("several chips or programs share a roofline of one point; give -B one number")
    pairs = None if measured is None else _pairs(measured)
    return plot_batch(est, memory, latency, pairs), f"batch sweep ({est.shape[0]} batches)"


def _pairs(text: str) -> list[tuple[float, str]]:
    """Read measured times over batches.

    Raises:
        UsageError: A time alone, or anything else.
    """
    pairs = []
    for part in text.split(","):
        batch, equals, time = part.partition("=")
        if not equals or not batch.strip().isdecimal():
            raise UsageError(
                f"--measured {part[:60]!r}: over several batches expected BATCH=TIME, such as 1=12ms,8=15ms; "
                "or give -B one number"
            )
        pairs.append((float(batch), opt.measured_time(time) or ""))
    return pairs
