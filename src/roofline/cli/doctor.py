"""``roofline doctor``: what is installed, which device there is, and whether its chip is calibrated."""

from __future__ import annotations

import typer

from roofline.cli import options as opt
from roofline.cli.app import ACCURACY, command
from roofline.cli.tables import table
from roofline.measurement.checkup import doctor as look


@command(ACCURACY, "roofline doctor")
def doctor(output: opt.OutputOptions, chip: opt.MaybeChip = None) -> None:
    """Look at this installation: packages, extras, device, calibration; exit with 1 where something is wrong."""
    result = look(chip)
    advice = [f"{each.name}: {each.advice}" for each in result.findings if each.advice]
    rows = [(each.part, each.name, each.state, each.detail) for each in result.findings]
    output.write(result, [table("<part|<name|<state|<", rows), *(["", *advice] if advice else [])])
    if not result.ok:
        raise typer.Exit(1)
