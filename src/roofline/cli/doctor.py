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
    found = look(chip)
    advice = [f"{each.name}: {each.advice}" for each in found.findings if each.advice]
    rows = [(each.part, each.name, each.state, each.detail) for each in found.findings]
    output.write(found, [table("<part|<name|<state|<", rows), *(["", *advice] if advice else [])])
    if not found.ok:
        raise typer.Exit(1)
