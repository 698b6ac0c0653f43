"""``roofline measure``: time a PyTorch program of one's own on this machine, and judge the time."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from roofline.cli import options as opt
from roofline.cli.app import JUDGE, command
from roofline.cli.check import verdict_parts
from roofline.cli.output import note
from roofline.cli.progress import progress
from roofline.cli.tables import facts, time_text
from roofline.frontends.script import torch_program
from roofline.ir.units import parse
from roofline.measurement.measuring import measure as run

_Script = Annotated[
    str, opt.argument("SCRIPT.py[:NAME]", "A script with a torch module and its example_inputs; it is run.")
]
_Budget = Annotated[str, opt.option("--budget TIME", "Time for the timed runs.", default="1s")]
_Trace = Annotated[bool, opt.option("--trace", "Record two more runs, so that causes are measured and not guessed.")]
_Backward = Annotated[bool, opt.option("--backward", "Run the backward pass too.")]
_Mode = Annotated[str | None, opt.option(
    "--mode MODE", "eager, graph or compiled.", default="as the program is", complete=opt.MODES
)]  # fmt: skip


@command(JUDGE, "roofline measure net.py my-chip.toml --budget 10s --trace")
def measure(
    script: _Script,
    output: opt.OutputOptions,
    what_if: opt.ChipOptions,
    chip: opt.MaybeChip = None,
    budget: _Budget = "1s",
    mode: _Mode = None,
    trace: _Trace = False,
    backward: _Backward = False,
) -> None:
    """Time a PyTorch program here and judge the time; exit with 1 where it is not as expected."""
    seconds = parse(budget, "s", "--budget")
    how: dict[str, Any] = {
        "chip": what_if.some(chip),
        "mode": mode,
        "budget": seconds,
        "backward": backward,
        "trace": trace,
    }
    with torch_program(script) as (module, args, kwargs), progress("measure", 1.0) as update:
        result = run(module, *args, kwargs=kwargs, progress=update, **how)
    if result.unsteady:
        note("the runs differ by much: is the machine doing other work?")
    middle = f"{time_text(result.low)} to {time_text(result.high)}"
    spread = f"{middle} in the middle half of {result.runs} runs on {result.device}"
    output.write(result, [facts([("runs", spread)]), *verdict_parts(result.verdict)])
    if not result.ok:
        raise typer.Exit(1)
