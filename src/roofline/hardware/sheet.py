"""Every figure of a chip with its unit, its source and what is said about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from roofline.hardware.chip import Chip
from roofline.hardware.grid import CoreGrid
from roofline.ir.units import format_si


class ChipFigure(NamedTuple):
    """A figure of a chip: its name, value (``None`` where nobody published it), unit, source and note."""

    name: str
    value: Any
    unit: str
    source: str
    note: str

    @property
    def text(self) -> str:
        """The value as a person writes it."""
        if isinstance(self.value, str):
            return f"{self.value} {self.unit}" if self.unit else f"runs as {self.value}"
        if self.value is None:
            return "-"
        return f"{100 * self.value:.3g}%" if self.unit == "share" else format_si(self.value, self.unit)


def figures_of(chip: Chip) -> Iterator[ChipFigure]:
    """Yield every figure of a chip."""
    for unit in ("matrix", "vector"):
        for name, peak in getattr(chip, unit).items():
            details = [
                f"sums in {peak.accumulate}" * bool(peak.accumulate),
                f"at {format_si(peak.clock, 'Hz')}" if peak.clock else "",
                f"2:4-sparse {format_si(peak.sparse, 'FLOP/s')}, for 2:4 weights alone" if peak.sparse else "",
                peak.note,
            ]
            yield ChipFigure(f"{name} {unit}", peak.flops, "FLOP/s", peak.source, "; ".join(filter(None, details)))
    for level in chip.memory:
        each = "" if level.shared_by == "chip" else "sum over the cores"
        details = [part for part in (level.vendor, each, level.note) if part]
        yield ChipFigure(f"{level.name} capacity", level.capacity, "B", level.source, "; ".join(details))
        yield ChipFigure(f"{level.name} bandwidth", level.bandwidth, "B/s", level.source, "")
    for link in chip.links:
        details = [part for part in ("one direction", link.note) if part]
        yield ChipFigure(f"{link.name} ({link.kind})", link.bandwidth, "B/s", link.source, "; ".join(details))
    if chip.grid is not None:
        yield from _of_grid(chip.grid)
    for name, fallback in chip.fallback.items():
        yield ChipFigure(name, fallback.runs_as, "", fallback.source, chip.matmul_runs_as(name))
    share = chip.efficiency
    span = f"{share.calibrated}; range {share.low:g} to {share.high:g}"
    yield ChipFigure("share of compute", share.compute, "share", share.source, span)
    yield ChipFigure("share of bandwidth", share.memory, "share", share.source, "")
    yield ChipFigure("least kernel time", share.launch, "s", share.source, "")
    yield ChipFigure("host time per op", share.host, "s", share.source, "")


def _of_grid(grid: CoreGrid) -> Iterator[ChipFigure]:
    """Yield the figures of a grid of cores."""
    engine = grid.engine
    kind = "systolic" if engine.dataflow == "systolic" else "tiles"
    shape = " x ".join(map(str, engine.shape))
    yield ChipFigure("grid of cores", f"{grid.rows} x {grid.columns}", "cores", grid.source, grid.note)
    yield ChipFigure("SRAM of a core", grid.sram, "B", grid.source, "")
    yield ChipFigure("its bandwidth", grid.sram_bandwidth, "B/s", grid.source, "")
    yield ChipFigure("NoC into a core", grid.noc_bandwidth, "B/s", grid.source, "")
    if grid.channels:
        serves = f"each serves {'all cores' if grid.channel_serves == 'all' else f'its {grid.channel_serves}'}"
        yield ChipFigure("memory channels", str(grid.channels), "channels", grid.source, serves)
    if grid.channel_bandwidth:
        yield ChipFigure("of a channel", grid.channel_bandwidth, "B/s", grid.source, "")
    if grid.lanes:
        yield ChipFigure("vector engine", str(grid.lanes), "lanes", grid.source, "of a core")
    yield ChipFigure(
        "matrix engine",
        shape,
        "multiply-adds",
        engine.source,
        f"{engine.count} a core, {kind}; {engine.note}".rstrip("; "),
    )
