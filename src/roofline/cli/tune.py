"""``roofline tune``: find a fast way to block a matmul on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

from roofline.cli import options as opt
from roofline.cli.app import COMPILE, command
from roofline.cli.output import interrupted
from roofline.cli.progress import progress
from roofline.cli.tables import facts, table, time_text
from roofline.ir.errors import UsageError
from roofline.ir.units import format_si, share
from roofline.measurement.tuning.search import METHODS
from roofline.measurement.tuning.tune import BUDGET, REPEATS, Tuning
from roofline.measurement.tuning.tune import tune as search
from roofline.measurement.tuning.variants import KERNELS

#: Variants that are shown.
SHOWN = 5

_Shape = Annotated[str, opt.argument("MxNxK", "Rows and columns of the result and what each element adds up.")]
_Dtype = Annotated[str, opt.option("--dtype FORMAT", "fp32 or fp64.", default="fp32", complete=("fp32", "fp64"))]
_Kernel = Annotated[list[str] | None, opt.option(
    "--kernel NAME", "Who multiplies blocks: numba (compiled loops) or numpy (the BLAS); repeatable.",
    complete=tuple(KERNELS), default="numba where it is installed")]  # fmt: skip
_Method = Annotated[str, opt.option(
    "--method NAME", "How variants are chosen.", complete=tuple(METHODS), default="evolution")]  # fmt: skip
_Budget = Annotated[str | None, opt.option(
    "--budget N", "Variants to measure, or a share of them such as 2%.", default=f"{BUDGET:.0%}")]  # fmt: skip
_Repeats = Annotated[int, opt.option("--repeats N", "Runs of each; the median counts.", default=str(REPEATS))]
_Seed = Annotated[int, opt.option("--seed N", "Of what is drawn at random.", default="0")]
_Cache = Annotated[str | None, opt.option("--cache DIR", "Where measurements are kept.", default="your cache folder")]
_Fresh = Annotated[bool, opt.option("--fresh", "Forget what was measured here before.")]


@command(COMPILE, "roofline tune 96x96x96 --budget 2%")
def tune(
    shape: _Shape,
    output: opt.ChartOptions,
    dtype: _Dtype = "fp32",
    kernel: _Kernel = None,
    method: _Method = "evolution",
    budget: _Budget = None,
    repeats: _Repeats = REPEATS,
    seed: _Seed = 0,
    cache: _Cache = None,
    fresh: _Fresh = False,
) -> None:
    """Find a fast way to block a matmul on this machine with few measurements; what Ctrl-C stops can go on."""
    sizes = re.fullmatch(r"(\d{1,9})x(\d{1,9})x(\d{1,9})", shape.strip().lower())
    if sizes is None:
        raise UsageError(f"{shape[:60]!r}: expected a shape such as 512x512x512")
    with progress("tune", 1.0) as update:
        result = search(
            int(sizes[1]), int(sizes[2]), int(sizes[3]), dtype, kernels=kernel or None, method=method,
            budget=_amount(budget), repeats=repeats, seed=seed, cache=cache, fresh=fresh, progress=update,
        )  # fmt: skip
    output.write(result, _parts(result))
    if result.interrupted:
        interrupted(f"after {len(result.measured)} measurements")


def _amount(budget: str | None) -> float:
    if budget is None:
        return BUDGET
    return int(budget) if budget.strip().isdigit() else share(budget, "--budget")


def _parts(result: Tuning) -> Iterator[Any]:
    problem, fastest = result.problem, sorted(result.measured.items(), key=lambda each: each[1])[:SHOWN]
    yield f"{problem} on {result.chip}: {len(result.measured)} of {result.size} variants, by {result.method}"
    yield ""
    yield table(
        "<variant|time|FLOP/s|to the library",
        [(str(variant), time_text(seconds), format_si(problem.flops / seconds, ""), f"{seconds / result.library:.2f}x")
         for variant, seconds in fastest],
    )  # fmt: skip
    yield ""
    yield facts([
        ("library", f"{time_text(result.library)} in one call"),
        *([("remembered", f"{result.remembered} measurements of an earlier search")] if result.remembered else []),
        *((f"best on {chip}", f"{variant}: {time_text(seconds)} there, ranked {rank} of {result.size} here before it "
           "was measured") for chip, variant, seconds, rank in result.seeds[:SHOWN]),
    ])  # fmt: skip
