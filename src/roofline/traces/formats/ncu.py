"""Counters of Nsight Compute: a row per metric (details page) or a column per metric (raw page)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roofline.ir.errors import TraceError
from roofline.traces.events import NAN, Kind, Recorder
from roofline.traces.formats.quantities import decimal_mark, number, plural, scale, split_header, whole_numbers
from roofline.traces.formats.tables import Row, Table

#: Metrics that give the time and the bytes from memory, the best first; those of one tuple are added.
TIME = (("gpu__time_duration.sum",), ("gpu__time_duration.avg",), ("gpu__time_duration",), ("Duration",))
BYTES = (("dram__bytes.sum",), ("dram__bytes_read.sum", "dram__bytes_write.sum"))

EXAMPLE = """\
"ID","Process ID","Kernel Name","Stream","Grid Size","Device","CC","Metric Name","Metric Unit","Metric Value"
"0","42","gemm","7","(64, 1, 1)","0","9.0","gpu__time_duration.sum","usecond","1,003.20"
"0","42","gemm","7","(64, 1, 1)","0","9.0","dram__bytes.sum","Mbyte","250"
"0","42","gemm","7","(64, 1, 1)","0","9.0","sm__ops_path_tensor_src_bf16_dst_fp32.sum","","137438953472"
"1","42","add","7","(64, 1, 1)","0","9.0","gpu__time_duration.sum","nsecond","980"
"""

#: Columns that are no metric.
_GIVEN = frozenset({
    "id", "process id", "process name", "host name", "kernel name", "kernel time", "context", "stream", "block size",
    "grid size", "device", "cc", "section name", "metric name", "metric unit", "metric value", "rule name", "rule type",
    "rule description", "estimated speedup type", "estimated speedup",
})  # fmt: skip

#: Most cells that are kept until the decimal mark is known.
_MOST = 2_000_000


@dataclass
class _Launch:
    """A profiled launch: its name, where it ran, and text and unit of each metric."""

    name: str
    stream: int
    device: int
    facts: dict[str, Any]
    metrics: dict[str, tuple[str, str]] = field(default_factory=dict)


def claims(columns: Sequence[str]) -> bool:
    """Tell whether this is the header of either page."""
    labels = {column.casefold() for column in columns}
    metrics = "metric name" in labels or any("__" in column for column in labels)
    return columns[0].casefold() == "id" and "kernel name" in labels and metrics


def read(table: Table, rows: Recorder, devices: dict[int, str]) -> list[str]:
    """Read the launches into rows; return notes on what was left out."""
    long = table.index("Metric Name") >= 0
    launches = list((_long if long else _wide)(table).values())
    decimal = decimal_mark(value for launch in launches for value, _ in launch.metrics.values())
    skipped = missing = 0
    for launch in launches:
        metrics = {}
        for metric, (value, unit) in launch.metrics.items():
            if (known := number(value, decimal)) is not None:
                metrics[metric] = known * scale(unit)
            else:
                missing += 1
        time = _sum(metrics, TIME)
        if time is None or time < 0:
            skipped += 1
            continue
        size = _sum(metrics, BYTES)
        rows.add(
            Kind.KERNEL, launch.name, 0.0, time, device=launch.device, stream=launch.stream,
            size=NAN if size is None else size, detail=rows.detail(launch.facts | metrics),
        )  # fmt: skip
    notes = [f"skipped {plural(skipped, 'row')} without gpu__time_duration.sum"] if skipped else []
    if decimal == ",":
        notes.append("numbers are written with a decimal comma")
    return notes + ([f"{plural(missing, 'value')} missing (n/a)"] if missing else [])


def _sum(metrics: Mapping[str, float], choices: Iterable[tuple[str, ...]]) -> float | None:
    for names in choices:
        if all(name in metrics for name in names):
            return sum(metrics[name] for name in names)
    return None


def _launch(row: Row) -> _Launch:
    """Make a launch without metrics."""
    grid, block = (whole_numbers(row.text(label)) for label in ("Grid Size", "Block Size"))
    known = {key: value for key, value in (("grid", grid), ("block", block), ("CC", row.text("CC"))) if value}
    return _Launch(row.text("Kernel Name"), row.whole("Stream"), row.whole("Device", default=0), known)


def _long(table: Table) -> dict[Any, _Launch]:
    """Return the launches of a table that has a row per metric."""
    launches: dict[Any, _Launch] = {}
    for count, row in enumerate(table):
        _bound(row, count)
        key, metric = (row.text("Process ID"), row.text("ID")), row.text("Metric Name")
        if not any(key) or not metric:
            continue  # a rule's advice
        launch = launches.get(key) or launches.setdefault(key, _launch(row))
        unit = row.text("Metric Unit")
        # Sections may spell two metrics alike ("Memory Throughput" in % and in byte/second).
        if metric in launch.metrics and launch.metrics[metric][1] != unit:
            metric = f"{metric} [{unit}]"
        launch.metrics.setdefault(metric, (row.text("Metric Value"), unit))
    return launches


def _wide(table: Table) -> dict[Any, _Launch]:
    """Return the launches of a table that has a column per metric; a row without an ID gives the units."""
    columns = [
        (i, split_header(name)[0]) for i, name in enumerate(table.columns) if name and name.casefold() not in _GIVEN
    ]
    units = [table.unit(i) for i in range(len(table.columns))]
    launches: dict[Any, _Launch] = {}
    for count, row in enumerate(table):
        _bound(row, count * len(columns))
        if not row.text("Process ID") and not row.text("ID"):
            units = [cell.strip() for cell in row.cells]
            continue
        launch = launches[row.line] = _launch(row)
        launch.metrics.update({name: (row.cells[i], units[i]) for i, name in columns})
    return launches


def _bound(row: Row, values: int) -> None:
    if values > _MOST:
        raise TraceError(
            f"{row.table.name}, line {row.line:,}: more than {_MOST:,} values; export fewer metrics or launches"
        )
