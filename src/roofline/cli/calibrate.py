"""``roofline calibrate``: the machine at hand as a chip file."""

from __future__ import annotations

from typing import Annotated, Any

from roofline.cli import options as opt
from roofline.cli.app import ACCURACY, command
from roofline.cli.output import note, write
from roofline.cli.progress import progress
from roofline.cli.tables import table
from roofline.ir.errors import UsageError
from roofline.ir.units import format_bytes, format_si
from roofline.measurement.calibration import Calibration, calibrate_host, error_figures, host_file
from roofline.measurement.calibration import calibrate as measure

_Device = Annotated[str, opt.option(
    "--device DEVICE", "auto, cpu or cuda; or host: only how fast eager PyTorch calls and launches here, for --host.",
    default="auto", complete=("auto", "cpu", "cuda", "host"))]  # fmt: skip
_Quick = Annotated[bool, opt.option("--quick", "Measure less: 20 seconds rather than two minutes.")]
_Output = Annotated[str | None, opt.option("--output -o CHIP.toml", "The chip file to write.", default="print it")]


@command(ACCURACY, "roofline calibrate --quick -o my-chip.toml")
def calibrate(
    output: opt.OutputOptions,
    device: _Device = "auto",
    quick: _Quick = False,
    file: _Output = None,
) -> None:
    """Measure this machine, fit the time model to it and write it as a chip."""
    if file is not None and not file.endswith(".toml"):
        raise UsageError(f"--output {file[:100]!r}: a chip file ends in .toml")
    if device == "host":
        return _host(file, output)
    with progress("calibrate", 1.0, patience=0) as update:
        result = measure(device, quick, file, lambda share, what: update(share))
    if file is None and not (output.as_json or output.as_csv or output.xlsx):
        write(result.chip.toml(result.remarks))
    else:
        output.write(result, _parts(result, file))
    if result.busy:
        note("other programs kept this machine busy; measure again when it is quiet, or with a smaller OMP_NUM_THREADS")


def _host(file: str | None, output: opt.OutputOptions) -> None:
    """Measure the host alone."""
    if output.as_json or output.as_csv or output.xlsx:
        raise UsageError("--device host gives one figure, as TOML: no --json, no --csv, no --xlsx")
    seconds = calibrate_host(file)
    write(host_file(seconds) if file is None else f"{file}: {format_si(seconds, 's')} for a call, for --host {file}")


def _parts(result: Calibration, file: str | None) -> list[Any]:
    chip = result.chip
    peaks = ", ".join(
        f"{name} {format_si(peak.flops, 'FLOP/s')}" for name, peak in {**chip.vector, **chip.matrix}.items()
    )
    levels = ", ".join(
        f"{level.name} {format_si(level.bandwidth, 'B/s')}"
        + (f" ({format_bytes(level.capacity)})" if level.capacity else "")
        for level in chip.memory
        if level.bandwidth
    )
    classes = [(name, *_cells(errors)) for name, errors in result.by_class().items() if errors]
    return [
        f"{file}: {chip.name}, {len(result.samples)} operators in {result.seconds:.0f} s",
        *result.remarks[:-1],
        f"best matmuls  {peaks}",
        f"best streams  {levels}",
        f"range         {chip.efficiency.low:g} to {chip.efficiency.high:g} times the expected",
        "",
        table("<held-out error in %|rows|mean|median|p90", classes),
    ]


def _cells(errors: list[float]) -> tuple[str, ...]:
    figures = error_figures(errors)
    return (f"{figures['rows']:.0f}", *(f"{figures[key]:.1f}" for key in ("mean", "median", "p90")))
