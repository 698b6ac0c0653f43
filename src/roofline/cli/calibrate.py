"""``roofline calibrate``: the machine at hand as a chip file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from roofline.cli import options as opt
from roofline.cli.output import note, show, write, write_json
from roofline.cli.progress import progress
from roofline.cli.validate import table
from roofline.ir.errors import UsageError
from roofline.ir.units import format_bytes, format_si
from roofline.measurement.calibration import Calibration, chip_toml, error_figures
from roofline.measurement.calibration import calibrate as measure

_Device = Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, cpu or cuda.")]
_Quick = Annotated[bool, typer.Option("--quick", help="Measure less: 20 seconds rather than two minutes.")]
_Output = Annotated[str | None, typer.Option(
    "--output", "-o", metavar="CHIP.toml", help="The chip file to write. [default: print it]",
    show_default=False)]  # fmt: skip


def calibrate(
    device: _Device = "auto",
    quick: _Quick = False,
    output: _Output = None,
    as_json: opt.AsJson = False,
) -> None:
    """Measure this machine, fit the time model to it and write it as a chip."""
    if output is not None and not output.endswith(".toml"):
        raise UsageError(f"--output {output[:100]!r}: a chip file ends in .toml")
    with progress("calibrate", 1.0) as update:
        found = measure(device, quick, output, lambda share, what: update(share))
    if as_json:
        write_json(found.record())
    elif output is None:
        write(chip_toml(found.chip, found.remarks))
    else:
        show(*_parts(found, output))
    if found.busy:
        note("other programs kept this machine busy; measure again when it is quiet, or with a smaller OMP_NUM_THREADS")


def _parts(found: Calibration, output: str) -> list[Any]:
    chip = found.chip
    peaks = ", ".join(
        f"{name} {format_si(peak.flops, 'FLOP/s')}" for name, peak in {**chip.vector, **chip.matrix}.items()
    )
    levels = ", ".join(
        f"{level.name} {format_si(level.bandwidth, 'B/s')}"
        + (f" ({format_bytes(level.capacity)})" if level.capacity else "")
        for level in chip.memory
        if level.bandwidth
    )
    classes = [(name, *_cells(errors)) for name, errors in found.by_class().items() if errors]
    return [
        f"{output}: {chip.name}, {len(found.samples)} operators in {found.seconds:.0f} s",
        *found.remarks[:-1],
        f"best matmuls  {peaks}",
        f"best streams  {levels}",
        f"range         {chip.efficiency.low:g} to {chip.efficiency.high:g} times the expected",
        "",
        table("<held-out error in %|rows|mean|median|p90", classes),
    ]


def _cells(errors: list[float]) -> tuple[str, ...]:
    figures = error_figures(errors)
    return (f"{figures['rows']:.0f}", *(f"{figures[key]:.1f}" for key in ("mean", "median", "p90")))
