"""``roofline report``: a prediction as one page that a browser opens, with a slider over batches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from roofline.cli import options as opt
from roofline.cli.app import PREDICT, command
from roofline.cli.estimate import estimate_of
from roofline.cli.output import write
from roofline.ir.report import title

_Output = Annotated[Path, opt.option("--output -o FILE.html", "The page, one file that loads nothing.", "Output")]


@command(PREDICT, "roofline report llama-3-8b h100-sxm --phase decode -B 8 -S 2048 --mode graph -o report.html")
def report(
    model: opt.Model,
    chip: opt.OneChip,
    output: _Output,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    run: opt.RunOptions,
) -> None:
    """Write everything about a prediction as one interactive page; several batches with -B are those of its slider."""
    from roofline.view.pages.page import checked
    from roofline.view.pages.report import prediction_page

    checked(output)
    _, est = estimate_of(model, chip, program, sizes, opt.CopyOptions(), run)
    page = prediction_page(est)
    page.save(output)
    batches = f", batches {page.moves.labels[0]} to {page.moves.labels[-1]}" if len(page.moves.labels) > 1 else ""
    write(f"{output}: report of {title(est.subject())}{batches}\n")
