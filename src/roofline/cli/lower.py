"""``roofline lower``: a program in a compiler's language."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from roofline.cli import options as opt
from roofline.cli.app import LOOK_UP, command, completion
from roofline.cli.output import write
from roofline.codegen.lower import TARGETS
from roofline.codegen.lower import lower as lowered

_To = Annotated[str, opt.option(
    "--to LANGUAGE", f"{', '.join(TARGETS)}.", "Output", default="stablehlo",
    complete=completion(lambda: TARGETS))]  # fmt: skip
_Output = Annotated[Path | None, opt.option(
    "--output -o FILE", "Write here instead, the whole file or nothing.", "Output")]  # fmt: skip


@command(LOOK_UP, "roofline lower gpt2 --to stablehlo -o gpt2.mlir -S 128")
def lower(
    model: opt.Model,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    to: _To = "stablehlo",
    file: _Output = None,
    quiet: opt.Quiet = False,
) -> None:
    """Write a program in a compiler's language."""
    opt.OutputOptions(quiet=quiet)
    graph = program.graph(model)
    result = lowered(graph, to, **sizes.point(graph, "a lowered program"))
    if file is None or os.fspath(file) == "-":
        return write(result.text)
    result.save(file)
    return write(f"{file}: {to} of {graph.title}\n")
