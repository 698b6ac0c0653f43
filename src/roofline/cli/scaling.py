"""``roofline scaling``: a program on one, two, four or more devices, and where more of them stop paying."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from roofline.analysis.scale_out import LEAST_GAIN, Scaling
from roofline.analysis.scale_out import scaling as scaled
from roofline.cli import options as opt
from roofline.cli.app import PREDICT, command
from roofline.cli.tables import facts, heading, percent, size_text, span, table, time_text, would_fit_facts, yes_or_no
from roofline.ir.errors import UsageError
from roofline.ir.units import format_si, share

_Devices = Annotated[str, opt.option("--devices LIST", "How many: 1,2,4,8.", "Parallelism", default="1,2,4,8")]
_Positions = Annotated[bool, opt.option(
    "--sp", "Share the positions of norms and residuals too.", "Parallelism")]  # fmt: skip
_Experts = Annotated[bool, opt.option(
    "--experts", "Share the experts alone; every device has a batch of its own.", "Parallelism")]  # fmt: skip
_Gain = Annotated[
    str | None,
    opt.limit(
        "--least-gain SHARE", "More devices pay where they save this share of the time.", default=f"{LEAST_GAIN:.0%}"
    ),
]


@command(PREDICT, "roofline scaling llama-3-70b h100-sxm --phase decode -B 16 -S 2048 --mode graph")
def scaling(
    model: opt.Model,
    chip: opt.OneChip,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    run: opt.RunOptions,
    output: opt.ChartOptions,
    devices: _Devices = "1,2,4,8",
    sp: _Positions = False,
    experts: _Experts = False,
    least_gain: _Gain = None,
) -> None:
    """Put several numbers of devices that share a program side by side."""
    for name in ("tp", "pp", "ep"):
        if getattr(program, name) != 1:
            raise UsageError(f"--{name} does not apply to scaling; give --devices, such as --devices 1,2,4")
    cluster = run.cluster(chip)
    graph = program.graph(model, cluster)
    result = scaled(
        graph, cluster, opt.several(devices, "--devices"), sp=sp, experts=experts,
        least_gain=LEAST_GAIN if least_gain is None else share(least_gain, "--least-gain"), **run.keywords,
        **sizes.point(graph, "scaling"),
    )  # fmt: skip
    output.write(result, _parts(result))


def _parts(result: Scaling) -> Iterator[Any]:
    rows = [
        (f"{point.devices:,}", time_text(point.time), span(point.estimate.low, point.estimate.high),
         f"{point.speed_up:.3g}x", percent(point.efficiency), percent(point.share), size_text(point.memory.total),
         yes_or_no(point.estimate.fits), str(point.estimate.bound), format_si(point.throughput, ""))
        for point in result.points
    ]  # fmt: skip
    heads = f"devices|time|?range|speed-up|?efficiency|communication|?memory each|<fits|?<bound|?{result.graph.item}/s"
    yield heading(result)
    yield from ("", table(heads, rows))
    stop, gain = result.stops_paying, percent(result.least_gain)
    last = "every step pays" if stop is None else f"beyond {stop} devices the next step saves less than {gain}"
    yield from ("", last) if len(rows) > 1 else ()
    if not any(point.fits for point in result.points):
        yield from would_fit_facts(result.points[-1].estimate, f" on {result.points[-1].devices}")
    if result.skipped:
        yield facts((f"{number} devices", why) for number, why in result.skipped.items())
