"""``roofline lower``: a program in a compiler's language."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from roofline.cli import options as opt
from roofline.cli.app import COMPILE, command, completion
from roofline.cli.output import write
from roofline.codegen.lower import TARGETS
from roofline.codegen.lower import lower as lowered
from roofline.ir.errors import UsageError

_To = Annotated[str, opt.option(
    "--to LANGUAGE", f"{', '.join(TARGETS)}.", "Output", default="stablehlo",
    complete=completion(lambda: TARGETS))]  # fmt: skip
_Fuse = Annotated[bool, opt.option("--fuse-loops", "Of loops: make neighbours over the same range one.", "Loops")]
_Tile = Annotated[str | None, opt.option(
    "--tile M,N,K", "Of loops: tiles along rows, columns and sum of contractions.", "Loops")]  # fmt: skip
_Vectorise = Annotated[int, opt.option("--vectorise LANES", "Of loops: innermost ones as vectors.", "Loops")]
_Unroll = Annotated[int, opt.option("--unroll TIMES", "Of loops: copies of innermost bodies.", "Loops")]
_Parallel = Annotated[bool, opt.option("--parallel", "Of loops: mark outermost ones that may be.", "Loops")]
_Output = Annotated[Path | None, opt.option(
    "--output -o FILE", "Write here instead, the whole file or nothing.", "Output")]  # fmt: skip


@command(COMPILE, "roofline lower gpt2 --to stablehlo -o gpt2.mlir -S 128")
def lower(
    model: opt.Model,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    to: _To = "stablehlo",
    fuse_loops: _Fuse = False,
    tile: _Tile = None,
    vectorise: _Vectorise = 0,
    unroll: _Unroll = 0,
    parallel: _Parallel = False,
    file: _Output = None,
    quiet: opt.Quiet = False,
) -> None:
    """Write a program as StableHLO, as loops in MLIR or as linalg."""
    opt.OutputOptions(quiet=quiet)
    graph = program.graph(model)
    result = lowered(
        graph, to, fuse_loops=fuse_loops, tile=_tiles(tile), vectorise=vectorise, unroll=unroll, parallel=parallel,
        **sizes.point(graph, "a lowered program"),
    )  # fmt: skip
    if file is None or os.fspath(file) == "-":
        return write(result.text)
    result.save(file)
    return write(f"{file}: {to} of {graph.title}\n")


def _tiles(text: str | None) -> tuple[int, ...]:
    """Return the sizes of ``--tile 32,32,8``."""
    try:
        return tuple(int(each) for each in text.split(",")) if text is not None else ()
    except ValueError:
        raise UsageError(f"--tile {str(text)[:60]!r}: expected up to three whole numbers, such as 32,32,8") from None
