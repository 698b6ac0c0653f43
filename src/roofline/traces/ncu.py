"""Counters of Nsight Compute: a row a metric (details page) or a column a metric (raw page with a row of units)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roofline.ir.errors import TraceError
from roofline.traces.columns import NAN, Recorder
from roofline.traces.events import Kind
from roofline.traces.quantities import decimal_mark, number, plural, scale, split_header, whole, whole_numbers
from roofline.traces.tables import Table

#: Metrics that give the time and the bytes from memory, the best first; those of one tuple are added.
TIME = (("gpu__time_duration.sum",), ("gpu__time_duration.avg",), ("gpu__time_duration",), ("Duration",))
BYTES = (("dram__bytes.sum",), ("dram__bytes_read.sum", "dram__bytes_write.sum"))

#: Columns that are no metric.
_GIVEN = frozenset({
    "id", "process id", "process name", "host name", "kernel name", "kernel time", "context", "stream", "block size",
    "grid size", "device", "cc", "section name", "metric name", "metric unit", "metric value", "rule name", "rule type",
    "rule description", "estimated speedup type", "estimated speedup",
})  # fmt: skip

#: Most cells that are kept until the decimal mark is known.
_MOST = 20_000_000


@dataclass
class _Launch:
    """A profiled launch: its name, where it ran, and text and unit of each metric."""

    name: str
    stream: int
    device: int
    facts: dict[str, Any]
    metrics: dict[str, tuple[str, str]] = field(default_factory=dict)


def claims(columns: Sequence[str]) -> bool:
    """Whether this is the header of either page."""
    found = {column.casefold() for column in columns}
    metrics = "metric name" in found or any("__" in column for column in found)
    return columns[0].casefold() == "id" and "kernel name" in found and metrics


def read(table: Table, rows: Recorder, devices: dict[int, str]) -> list[str]:
    """Read the launches into rows; what was left out."""
    long = table.index("Metric Name") >= 0
    launches = list((_long if long else _wide)(table).values())
    decimal = decimal_mark(value for launch in launches for value, _ in launch.metrics.values())
    skipped = missing = 0
    for launch in launches:
        found = {}
        for metric, (value, unit) in launch.metrics.items():
            if (known := number(value, decimal)) is not None:
                found[metric] = known * scale(unit)
            else:
                missing += 1
        time = _sum(found, TIME)
        if time is None or time < 0:
            skipped += 1
            continue
        size = _sum(found, BYTES)
        rows.add(
            Kind.KERNEL, launch.name, 0.0, time, device=launch.device, stream=launch.stream,
            size=NAN if size is None else size, detail=rows.detail(launch.facts | found),
        )  # fmt: skip
    notes = [f"skipped {plural(skipped, 'row')} without gpu__time_duration.sum"] if skipped else []
    if decimal == ",":
        notes.append("numbers are written with a decimal comma")
    return notes + ([f"{plural(missing, 'value')} missing (n/a)"] if missing else [])


def _sum(found: Mapping[str, float], choices: Iterable[tuple[str, ...]]) -> float | None:
    for names in choices:
        if all(name in found for name in names):
            return sum(found[name] for name in names)
    return None


def _launch(table: Table) -> Any:
    """A function from cells to a launch without metrics."""
    name, stream, device = table.text("Kernel Name"), table.text("Stream"), table.text("Device")
    grid, block, capability = table.text("Grid Size"), table.text("Block Size"), table.text("CC")

    def read(cells: Sequence[str]) -> _Launch:
        facts: dict[str, Any] = {"grid": whole_numbers(grid(cells)), "block": whole_numbers(block(cells))}
        facts["CC"] = capability(cells)
        known = {key: value for key, value in facts.items() if value}
        return _Launch(name(cells), whole(stream(cells)), whole(device(cells), 0), known)

    return read


def _key(table: Table) -> Any:
    number_, process = table.text("ID"), table.text("Process ID")
    return lambda cells: (process(cells), number_(cells))


def _long(table: Table) -> dict[Any, _Launch]:
    """Launches of a table that has a row a metric."""
    key, make = _key(table), _launch(table)
    metric, unit, value = table.text("Metric Name"), table.text("Metric Unit"), table.text("Metric Value")
    launches: dict[Any, _Launch] = {}
    for kept, (line, cells) in enumerate(table.rows):
        _bound(table, kept, line)
        if not any(key(cells)) or not metric(cells):
            continue  # a rule's advice
        launch = launches.get(key(cells)) or launches.setdefault(key(cells), make(cells))
        name = metric(cells)
        # Sections may spell two metrics alike ("Memory Throughput" in % and in byte/second).
        if name in launch.metrics and launch.metrics[name][1] != unit(cells):
            name = f"{name} [{unit(cells)}]"
        launch.metrics.setdefault(name, (value(cells), unit(cells)))
    return launches


def _wide(table: Table) -> dict[Any, _Launch]:
    """Launches of a table that has a column a metric; a row without an ID gives the units."""
    key, make = _key(table), _launch(table)
    columns = [
        (i, split_header(name)[0]) for i, name in enumerate(table.columns) if name and name.casefold() not in _GIVEN
    ]
    units = [table.unit(i) for i in range(len(table.columns))]
    launches: dict[Any, _Launch] = {}
    for kept, (line, cells) in enumerate(table.rows):
        _bound(table, kept * len(columns), line)
        if not any(key(cells)):
            units = [cell.strip() for cell in cells]
            continue
        launch = make(cells)
        launch.metrics.update({name: (cells[i], units[i]) for i, name in columns})
        launches[(*key(cells), line)] = launch
    return launches


def _bound(table: Table, kept: int, line: int) -> None:
    if kept > _MOST:
        raise TraceError(f"{table.name}, line {line:,}: more than {_MOST:,} values; export fewer metrics or launches")
