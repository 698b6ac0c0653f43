"""``roofline layouts``: images channels first or last, kernel by kernel, and the fastest mix of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from roofline.cli import options as opt
from roofline.cli.app import COMPILE, command
from roofline.cli.tables import heading, table, time_text
from roofline.planning.layouts import Layouts
from roofline.planning.layouts import layouts as choose

#: Kernels that are listed, those with the most to gain or lose first.
_MOST = 12
_WORDS = {"given": "as given", "channels_first": "all channels first", "channels_last": "all channels last",
          "best": "best mix"}  # fmt: skip


@command(COMPILE, "roofline layouts resnet50 h100-sxm -B 32 --dtype fp16 --layout channels_first")
def layouts(
    model: opt.Model,
    chip: opt.OneChip,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    output: opt.OutputOptions,
    what_if: opt.ChipOptions,
    mode: opt.Mode = "graph",
    tf32: opt.Tf32 = None,
) -> None:
    """Choose between channels first and last for every image of a program, copies between them included."""
    graph = program.graph(model, what_if.cluster(chip))
    point = sizes.point(graph, "a choice of layouts")
    result = choose(graph, what_if.device(chip), mode=mode, tf32=tf32, **point)  # type: ignore[arg-type]
    output.write(result, _parts(result))


def _parts(result: Layouts) -> Iterator[Any]:
    """Show the time of each way, and the kernels for which the layout matters most."""
    made, before = result.summary()["layout_copies"], result.times["given"]
    ways = [
        [Text(str(cell), style="bold" if name == "best" else "")
         for cell in (_WORDS[name], time_text(seconds), f"{before / seconds:.3g}x", f"{made[name]:,}")]
        for name, seconds in result.times.items()
    ]  # fmt: skip
    yield heading(result)
    yield from ("", table("<images|time|speed-up|copies between layouts", ways))
    best = Counter(row.best.replace("_", " ") for row in result.kernels)
    parts = [f"{number:,} kernel{'s' * (number != 1)} {word}" for word, number in sorted(best.items())]
    yield from ("", f"best: {' and '.join(parts)}")
    apart = sorted(result.kernels, key=lambda row: -abs(row.first_s - row.last_s))[:_MOST]
    rows = [(row.kernel, row.op, time_text(row.first_s), time_text(row.last_s), row.best.replace("_", " "))
            for row in apart]  # fmt: skip
    yield from ("", table("<kernel|?<op|channels first|channels last|<best", rows, "where it matters most"))
