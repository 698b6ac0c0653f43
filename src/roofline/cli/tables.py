"""Results as rich tables for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from roofline.ir.units import format_bytes, format_si, parse

if TYPE_CHECKING:
    from roofline.analysis.batches import BatchChoice
    from roofline.analysis.estimates import Estimate
    from roofline.analysis.provenance import Trail
    from roofline.hardware.chip import Chip

#: Colour of each verdict.
COLOURS = {"as_expected": "green", "slow": "yellow", "very_slow": "red", "impossible": "red"}

#: Why a batch is the best, in words.
_LIMITS = {
    "memory": "memory: a batch of {next} no longer fits in {room}",
    "latency": "latency: a batch of {next} takes longer than {patience}",
    "saturated": "saturation: a bigger batch gains next to no throughput",
    "size": "size: no larger batch is looked at",
    "ridge": "ridge: a bigger batch takes longer and gains next to no throughput",
}


def table(columns: str, rows: Iterable[Sequence[Any]], title: str = "") -> Table:
    """A table; a column whose name begins with ``<`` is text, all others are numbers to the right."""
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0),
        title=title or None, title_justify="left", title_style="bold",
    )  # fmt: skip
    for name in columns.split("|"):
        is_text = name.startswith("<")
        table.add_column(name.lstrip("<"), justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else str(cell) for cell in row))
    return table


def facts(pairs: Iterable[tuple[str, Any]]) -> Table:
    """Names and values without lines, the empty ones left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan")
    table.add_column(overflow="fold")
    for name, value in pairs:
        if value not in ("", None):
            table.add_row(name, value if isinstance(value, Text) else str(value))
    return table


def time_text(seconds: float) -> str:
    """A time with its unit."""
    return format_si(float(seconds), "s")


def _span(low: float, high: float) -> str:
    """Two times in the unit of the larger: ``6.04-11.4 ms``."""
    number, unit = time_text(high).split(" ")
    scaled = float(f"{float(low) / parse('1 ' + unit, 's'):.3g}")
    return f"{scaled:g}-{number} {unit}"


def _size(value: Any) -> str:
    return format_bytes(float(value))


def percent(share: float) -> str:
    return f"{100 * float(share):.3g}%" if share >= 0.0005 or share == 0 else "<0.1%"


def _rate(value: float, item: str) -> str:
    return format_si(float(value), f"{item}/s")


def heading(text: str) -> Text:
    return Text(text, style="bold")


# --- estimate ---------------------------------------------------------------------------------------------------------


def point(est: Estimate) -> list[Any]:
    """One point: time, memory, the largest kernels."""
    sizes = "".join(f", {name}={value:,}" for name, value in est.grid.values.items())
    return [
        heading(f"{est.graph.name} on {est.chip.name}, {est.mode} mode{sizes}"),
        facts(_summary(est)),
        "",
        _memory(est),
        "",
        _kernels(est),
        "",
        *provenance(est),
    ]


def _summary(est: Estimate) -> list[tuple[str, Any]]:
    host = f", host {time_text(est.host_time)}" if est.mode == "eager" else ""
    return [
        ("time", Text(f"{time_text(est.time)}  ({time_text(est.low)} to {time_text(est.high)})", style="bold")),
        ("floor", f"{time_text(est.floor)} at the datasheet's rates"),
        ("bound", est.bound),
        ("made of", f"{est.launches:,} kernels: device {time_text(est.device_time)}{host}"),
        ("throughput", _rate(est.throughput, est.graph.item)),
        ("MFU, MBU", f"{percent(est.mfu)}, {percent(est.mbu)}"),
        ("work", f"{format_si(est.flops, 'FLOP')}, {format_si(est.bytes, 'B')}, {est.intensity:.3g} FLOP/B"),
    ]


def _memory(est: Estimate) -> Table:
    total = float(est.memory.total)
    rows: list[Sequence[Any]] = [
        (name.replace("_", " "), _size(value), percent(float(value) / total))
        for name, value in est.memory.parts().items()
    ]
    rows.append((heading("total"), heading(_size(total)), ""))
    fit = Text("fits", style="green") if est.fits else Text("does not fit", style="bold red")
    rows.append((f"capacity of {est.chip.name}", _size(est.capacity), fit))
    return table("<memory|size|share", rows)


def _kernels(est: Estimate, most: int = 5) -> Table:
    found = est.kernel_rows()
    rows = [
        (
            row["kernel"],
            f"{row['count']:,}",
            time_text(row["time_s"]),
            percent(row["share"]),
            row["bound"],
            row["dtype"],
        )
        for row in found[:most]
    ]
    title = f"slowest {len(rows)} of {len(found)} kernels" if len(found) > most else "kernels"
    return table(f"<{title}|runs|time|share|<bound|<format", rows)


def provenance(est: Estimate) -> list[Text]:
    """Where the figures come from and what they leave out."""
    where = f"roofline chips {est.chips[0].name}" if len(est.chips) == 1 else "roofline chips"
    return [
        Text(f"efficiencies: {est.calibrated}; every figure and its source: {where}", style="dim"),
        Text(f"not modelled: {'; '.join(est.not_modelled)}", style="dim"),
    ]


def points(est: Estimate) -> list[Any]:
    """Several points, one a row; a table a chip where batches or lengths vary too."""
    head = heading(f"{est.graph.name}, {est.mode} mode{fixed(est)}")
    if not est.grid.shape:
        return [head, "", _rows(est, list(np.ndindex(est.shape)), ("chip",)), "", *provenance(est)]
    starts: list[tuple[int, ...]] = [(n,) for n in range(len(est.chips))] if est.many_chips else [()]
    inner = list(np.ndindex(est.grid.shape))
    made: list[Any] = []
    for start, chip in zip(starts, est.chips, strict=True):
        made += ["", _rows(est, [start + index for index in inner], est.grid.axes, chip.name)]
    return [head, *made, "", *provenance(est)]


def fixed(est: Estimate) -> str:
    """Sizes that have one value."""
    return "".join(f", {name}={value:,}" for name, value in est.grid.values.items() if isinstance(value, int))


def _rows(est: Estimate, indices: list[tuple[int, ...]], axes: tuple[str, ...], title: str = "") -> Table:
    """One row an index; the shares of the peaks only where they leave room for it all in 80 columns."""
    narrow = len(axes) == 1 and axes != ("chip",)
    results = (est.time, est.low, est.high, est.bound, est.mfu, est.mbu, est.throughput, est.memory.total, est.fits)
    rows = []
    for index in indices:
        time, low, high, bound, mfu, mbu, rate, total, fits = (np.asarray(value)[index] for value in results)
        shares = (percent(mfu), percent(mbu)) if narrow else ()
        fit = Text("yes" if fits else "no", style="" if fits else "red")
        cells = (time_text(time), _span(low, high), str(bound), *shares, format_si(float(rate), ""), _size(total), fit)
        rows.append((*_where(est, index, axes), *cells))
    names = [f"<{name}" if name == "chip" else name for name in axes]
    shares_head = "MFU|MBU|" if narrow else ""
    return table("|".join([*names, f"time|range|<bound|{shares_head}{est.graph.item}/s|memory|<fits"]), rows, title)


def _where(est: Estimate, index: tuple[int, ...], axes: tuple[str, ...]) -> list[str]:
    if axes == ("chip",):
        return [est.chips[index[0]].name]
    sizes = est.grid.point(index[1:] if est.many_chips else index)
    return [str(sizes[name]) for name in axes]


# --- trail ---


def steps(found: Trail) -> Table:
    """What each pass did: figures after it, the program as it was first."""
    rows = [("(as given)", *_state(found.states[0]))]
    words = (step.replace("(", " ").removesuffix(")").replace("'", "") for step in found.steps)
    rows += [(step, *_state(state)) for step, state in zip(words, found.states[1:], strict=True)]
    return table("<after|params|kernels|FLOP|moved|memory|time", rows)


def _state(state: dict[str, Any]) -> tuple[str, ...]:
    time = state["time_s"]
    return (
        format_si(float(state["parameters"]), ""), f"{state['kernels']:,}", format_si(float(state["flops"]), ""),
        _size(state["bytes"]), _size(state["memory_bytes"]), "" if time is None else time_text(time),
    )  # fmt: skip


# --- batch ------------------------------------------------------------------------------------------------------------


def choice(found: BatchChoice) -> list[Any]:
    """The best batch, why, and the curve."""
    est, item = found.estimate, found.curve.graph.item
    why = _LIMITS[found.limit].format(
        next=found.best + 1,
        room=_size(found.memory_limit),
        patience=time_text(found.latency_limit) if found.latency_limit else "",
    )
    pairs = [
        ("best batch", Text(f"{found.best}", style="bold green")),
        ("limit", why),
        ("ridge", _ridge(found)),
        ("there", f"{time_text(est.time)} ({time_text(est.low)} to {time_text(est.high)}), {est.bound}-bound"),
        ("throughput", _rate(est.throughput, item)),
    ]
    title = f"{found.curve.graph.name} on {found.curve.chip.name}, {found.curve.mode} mode{fixed(found.curve)}"
    return [heading(title), facts(pairs), "", _curve(found), "", *provenance(found.curve)]


def _ridge(found: BatchChoice) -> str:
    if found.ridge is None:
        return f"not reached: memory takes longer than arithmetic at every batch up to {found.largest}"
    return f"from batch {found.ridge} arithmetic takes longer than memory"


def _curve(found: BatchChoice) -> Table:
    curve, marks = found.curve, {found.largest: "largest", found.ridge: "ridge", found.best: "best"}
    total = np.broadcast_to(np.asarray(curve.memory.total, dtype=float), curve.shape)
    rows = []
    for batch in found.shown():
        at = batch - 1
        style = "bold" if batch == found.best else ""
        cells = (
            f"{batch:,}", time_text(curve.time[at]), _span(curve.low[at], curve.high[at]),
            format_si(float(curve.throughput[at]), ""), _size(total[at]), curve.bound[at], marks.get(batch, ""),
        )  # fmt: skip
        rows.append([Text(str(cell), style=style) for cell in cells])
    return table(f"batch|time|range|{curve.graph.item}/s|memory|<bound|<", rows)


# --- chips and models -------------------------------------------------------------------------------------------------


def chip_row(chip: Chip) -> dict[str, Any]:
    """The figures of a chip that a list shows."""
    return {
        "name": chip.name,
        "vendor": chip.vendor,
        "year": chip.year,
        "memory_bytes": chip.main.capacity,
        "bandwidth_bytes_per_s": chip.main.bandwidth,
        "matrix_flops": {name: peak.flops for name, peak in chip.matrix.items()},
        "vector_flops": {name: peak.flops for name, peak in chip.vector.items()},
        "aliases": list(chip.aliases),
    }


def chip_list(chips: Sequence[Chip]) -> Table:
    """The chips, one a row."""
    rows = [
        (chip.name, chip.vendor, chip.main.vendor.partition(" (")[0] or _known(chip.main.capacity, "B"),
         _known(chip.main.bandwidth, "B/s"), *_half_peak(chip))
        for chip in chips
    ]  # fmt: skip
    return table("<chip|<vendor|memory|bandwidth|matmul|<in", rows)


def _half_peak(chip: Chip) -> tuple[str, str]:
    """The dense peak of 16-bit matmuls, and which of the two formats it is in."""
    peaks = {**chip.vector, **chip.matrix}
    name = next((name for name in ("bf16", "fp16") if name in peaks), "")
    return (_known(peaks[name].flops, "FLOP/s"), name) if name else ("-", "")


def _known(value: float | None, unit: str) -> str:
    return format_si(value, unit) if value is not None else "-"


def chip_sheet(chip: Chip) -> list[Any]:
    """One chip with every figure, each with the number of its source below."""
    figures = list(_figures(chip))
    sources = list(dict.fromkeys(source for *_, source, _ in figures))
    rows = [
        (name, value, f"[{sources.index(source) + 1}]" if source else "", note) for name, value, source, note in figures
    ]
    listed = [(f"[{number}]", source) for number, source in enumerate(sources, 1) if source]
    about = [
        ("vendor", chip.vendor), ("year", chip.year), ("form", chip.form), ("aliases", ", ".join(chip.aliases)),
        ("cores", f"{chip.cores} {chip.core_name}" if chip.cores else ""),
        ("clock", _known(chip.clock, "Hz")), ("power", _known(chip.tdp, "W")), ("notes", chip.notes),
    ]  # fmt: skip
    return [heading(chip.name), facts(about), "", table("<figure|value|<source|<note", rows), "", facts(listed)]


def _figures(chip: Chip) -> Iterable[tuple[str, str, str, str]]:
    """Name, value, source and note of every figure."""
    for unit in ("matrix", "vector"):
        for name, peak in getattr(chip, unit).items():
            also = [
                f"sums in {peak.accumulate}" * bool(peak.accumulate),
                f"at {_known(peak.clock, 'Hz')}" * bool(peak.clock),
            ]
            sparse = f"2:4-sparse {_known(peak.sparse, 'FLOP/s')}, for 2:4 weights alone" if peak.sparse else ""
            text = "; ".join(part for part in (*also, sparse, peak.note) if part)
            yield f"{name} {unit}", _known(peak.flops, "FLOP/s"), peak.source, text
    for level in chip.memory:
        each = "" if level.shared_by == "chip" else "sum over the cores"
        text = "; ".join(part for part in (level.vendor, each, level.note) if part)
        yield f"{level.name} capacity", _known(level.capacity, "B"), level.source, text
        yield f"{level.name} bandwidth", _known(level.bandwidth, "B/s"), level.source, ""
    for link in chip.links:
        yield (
            f"{link.name} ({link.kind})",
            _known(link.bandwidth, "B/s"),
            link.source,
            f"one direction; {link.note}".rstrip("; "),
        )
    for name, fallback in chip.fallback.items():
        yield name, f"runs as {fallback.runs_as}", fallback.source, fallback.reason
    share = chip.efficiency
    text = f"{share.calibrated}; range {share.low:g} to {share.high:g}"
    yield "share of compute", percent(share.compute), share.source, text
    yield "share of bandwidth", percent(share.memory), share.source, ""
    yield "least kernel time", time_text(share.launch), share.source, ""
    yield "host time an op", time_text(share.host), share.source, ""


def model_list(rows: Sequence[dict[str, Any]]) -> Table:
    """The models, one a row."""
    cells = [
        (row["name"], row["family"], _known(row["parameters"], "").strip(), row["dtype"],
         ", ".join(row["phases"]))
        for row in rows
    ]  # fmt: skip
    return table("<model|<family|parameters|<format|<phases", cells)


def model_sheet(record: dict[str, Any]) -> list[Any]:
    """One model with every figure and its source."""
    published = record["parameters_published"]
    pairs = [
        ("description", record.get("description", "")), ("family", record["family"]), ("format", record["dtype"]),
        ("phases", ", ".join(record["phases"])), ("needs", ", ".join(record["sizes_needed"])),
        ("aliases", ", ".join(record.get("aliases", ()))),
        ("parameters", f"{record['parameters']:,} counted from the layers, {record['active_parameters']:,} active"),
        ("published", f"{published:,} ({record['parameters_source']})" if published else ""),
        ("operators", f"{record['operators']:,}"), ("source", record["source"]),
    ]  # fmt: skip
    figures = {**record.get("sizes", {}), **record.get("options", {})}
    rows = list(figures.items())
    return [heading(record["name"]), facts(pairs), *(["", table("<size or option|value", rows)] if rows else [])]
