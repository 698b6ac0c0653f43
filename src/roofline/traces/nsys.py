"""Tables of Nsight Systems: every launch (cuda_gpu_trace) or a row a kernel (cuda_gpu_kern_sum)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from roofline.traces.columns import NAN, Recorder
from roofline.traces.events import Kind
from roofline.traces.quantities import plural, split_header, whole, whole_numbers
from roofline.traces.tables import Table

#: Tables without a kernel: columns, name of the report.
OTHERS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"num calls"}), "cuda_api_sum or osrt_sum"),
    (frozenset({"start", "duration", "result", "corrid"}), "cuda_api_trace"),
    (frozenset({"total time", "count", "operation"}), "cuda_gpu_mem_time_sum"),
    (frozenset({"total time", "operations", "operation"}), "gpumemtimesum"),
    (frozenset({"total", "count", "operation"}), "cuda_gpu_mem_size_sum"),
    (frozenset({"kernel start", "kernel dur"}), "cuda_kern_exec_trace"),
    (frozenset({"total time", "range"}), "nvtx_sum"),
)

_DEVICE = re.compile(r"(.*?)\s*\((\d{1,6})\)\s*")


def labels(columns: Sequence[str]) -> frozenset[str]:
    """Labels of columns without their units, in lower case."""
    return frozenset(split_header(column)[0].casefold() for column in columns)


def claims_trace(columns: Sequence[str]) -> bool:
    """Whether this is the header of cuda_gpu_trace."""
    return {"start", "duration", "corrid", "strm", "name"} <= labels(columns)


def claims_sum(columns: Sequence[str]) -> bool:
    """Whether this is the header of cuda_gpu_kern_sum, or of a sum that has kernels among its rows."""
    found = labels(columns)
    return {"total time", "instances"} <= found and ("name" in found or "operation" in found)


def kind_of(name: str) -> Kind:
    """What a row is, by its name."""
    low = name.casefold()
    return (
        Kind.MEMCPY
        if low.startswith("[cuda memcpy")
        else Kind.MEMSET
        if low.startswith("[cuda memset")
        else Kind.KERNEL
    )


def read_trace(table: Table, rows: Recorder, devices: dict[int, str]) -> list[str]:
    """Read cuda_gpu_trace into rows; what was left out."""
    start, duration, size = table.reader("Start", unit="ns"), table.reader("Duration", unit="ns"), table.reader("Bytes")
    name, where = table.text("Name"), table.text("Device")
    correlation, stream = table.text("CorrId"), table.text("Strm")
    details = _details(table)
    skipped: Counter[str] = Counter()
    for _, cells in table.rows:
        begin, lasted = start(cells), duration(cells)
        if begin is None or lasted is None or lasted < 0:
            skipped["without a start and a duration"] += 1
            continue
        moved, lane = size(cells), whole(stream(cells))
        rows.add(
            kind_of(name(cells)), name(cells), begin, lasted, thread=lane,
            correlation=whole(correlation(cells), limit=2**62), device=_device(where(cells), devices), stream=lane,
            size=NAN if moved is None else moved, detail=rows.detail(details(cells)),
        )  # fmt: skip
    return [f"skipped {plural(number, 'row')} {why}" for why, number in skipped.items()]


def _details(table: Table) -> Callable[[Sequence[str]], dict[str, Any]]:
    """A function from cells to what is known of a launch."""
    grid = [table.text(f"Grd{axis}") for axis in "XYZ"]
    block = [table.text(f"Blk{axis}") for axis in "XYZ"]
    registers, static, dynamic = table.reader("Reg/Trd"), table.reader("StcSMem"), table.reader("DymSMem")

    def read(cells: Sequence[str]) -> dict[str, Any]:
        if not grid[0](cells):
            return {}
        found: dict[str, Any] = {
            "grid": tuple(whole(axis(cells)) for axis in grid),
            "block": tuple(whole(axis(cells)) for axis in block),
        }
        if (used := registers(cells)) is not None:
            found["registers per thread"] = int(used)
        shared = [value for value in (static(cells), dynamic(cells)) if value is not None]
        if shared:
            found["shared memory"] = round(sum(shared))
        return found

    return read


def _device(text: str, devices: dict[int, str]) -> int:
    """Number of a device such as ``NVIDIA H100 80GB HBM3 (0)``, whose name is noted."""
    match = _DEVICE.fullmatch(text)
    if match:
        devices[int(match[2])] = match[1]
        return int(match[2])
    if text and not text.isdigit():
        devices.setdefault(0, text)
    return whole(text, 0)


def read_sum(table: Table, rows: Recorder, devices: dict[int, str]) -> list[str]:
    """Read cuda_gpu_kern_sum into rows, a row a kernel with the time of all its launches; what was left out."""
    total, instances = table.reader("Total Time", unit="ns"), table.text("Instances")
    name, category = table.text("Name", "Operation"), table.text("Category")
    shapes = {"grid": table.text("GridXYZ"), "block": table.text("BlockXYZ")}
    # Old files name the unit at the total alone.
    unit = table.unit(table.index("Total Time")) or "ns"
    statistics = {
        key: table.reader(*spelled, unit=unit)
        for key, spelled in {
            "average": ("Avg", "Average"), "median": ("Med", "Median"), "minimum": ("Min", "Minimum"),
            "maximum": ("Max", "Maximum"), "deviation": ("StdDev",),
        }.items()
    }  # fmt: skip
    skipped = 0
    for _, cells in table.rows:
        spent = total(cells)
        if spent is None or spent < 0:
            skipped += 1
            continue
        known: dict[str, Any] = {key: value for key, read in statistics.items() if (value := read(cells)) is not None}
        known |= {key: whole_numbers(read(cells)) for key, read in shapes.items() if read(cells)}
        kind = kind_of(name(cells)) if "memory" not in category(cells).casefold() else Kind.MEMCPY
        rows.add(
            kind,
            name(cells),
            0.0,
            spent,
            device=0,
            count=max(whole(instances(cells), 1, 2**62), 1),
            detail=rows.detail(known),
        )
    return [f"skipped {plural(skipped, 'row')} without a total time"] if skipped else []
