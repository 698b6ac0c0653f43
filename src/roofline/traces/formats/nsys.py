"""Tables of Nsight Systems: every launch (cuda_gpu_trace) or a row per kernel (cuda_gpu_kern_sum)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from roofline.traces.events import NAN, Kind, Recorder
from roofline.traces.formats.quantities import plural, split_header, whole, whole_numbers
from roofline.traces.formats.tables import Row, Table

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

EXAMPLE_TRACE = """\
Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),Bytes (MB),Device,Ctx,Strm,Name
1000,4000,11,64,1,1,128,1,1,32,0.001,,NVIDIA H100 80GB HBM3 (0),1,7,ampere_bf16_gemm
5500,900,12,,,,,,,,,0.5,NVIDIA H100 80GB HBM3 (0),1,7,[CUDA memcpy Host-to-Device]
9000,4000,13,64,1,1,128,1,1,32,0.001,,NVIDIA H100 80GB HBM3 (0),1,13,ampere_bf16_gemm
"""
EXAMPLE_SUM = """\
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
90.0,900000,10,90000,90000,90000,90000,0,ampere_bf16_gemm
10.0,100000,20,5000,5000,5000,5000,0,triton_poi_fused_add_0
"""

_DEVICE = re.compile(r"(.*?)\s*\((\d{1,6})\)\s*")


def labels(columns: Sequence[str]) -> frozenset[str]:
    """Return the labels of columns without their units, in lower case."""
    return frozenset(split_header(column)[0].casefold() for column in columns)


def claims_trace(columns: Sequence[str]) -> bool:
    """Tell whether this is the header of cuda_gpu_trace."""
    return {"start", "duration", "corrid", "strm", "name"} <= labels(columns)


def claims_sum(columns: Sequence[str]) -> bool:
    """Tell whether this is the header of cuda_gpu_kern_sum, or of a sum that has kernels among its rows."""
    names = labels(columns)
    return {"total time", "instances"} <= names and ("name" in names or "operation" in names)


def kind_of(name: str) -> Kind:
    """Return what a row is, by its name."""
    kinds = {"[cuda memcpy": Kind.MEMCPY, "[cuda memset": Kind.MEMSET}
    return next((kind for start, kind in kinds.items() if name.casefold().startswith(start)), Kind.KERNEL)


def read_trace(table: Table, rows: Recorder, devices: dict[int, str]) -> list[str]:
    """Read cuda_gpu_trace into rows; return notes on what was left out."""
    for row in table:
        start, duration = row.start("Start", "ns"), row.number("Duration", unit="ns")
        if start is None or duration is None or duration < 0:
            rows.repairs.add("skipped", "row", "without a start and a duration", duration or 0.0)
            continue
        name, size, stream = row.text("Name"), row.number("Bytes"), row.whole("Strm")
        rows.add(
            kind_of(name), name, start, duration, process=row.whole("Ctx"), thread=stream,
            correlation=row.whole("CorrId", limit=2**62),
            device=_device(row.text("Device"), devices), stream=stream, size=NAN if size is None else size,
            detail=rows.detail(_details(row)),
        )  # fmt: skip
    return []


_SHAPES = {"grid": ("GrdX", "GrdY", "GrdZ"), "block": ("BlkX", "BlkY", "BlkZ")}


def _details(row: Row) -> dict[str, Any]:
    """Return what else is known of a launch."""
    if not row.text("GrdX"):
        return {}
    details: dict[str, Any] = {key: tuple(map(row.whole, labels)) for key, labels in _SHAPES.items()}
    if (registers := row.number("Reg/Trd")) is not None:
        details["registers per thread"] = int(registers)
    shared = [value for value in (row.number("StcSMem"), row.number("DymSMem")) if value is not None]
    return details | ({"shared memory": round(sum(shared))} if shared else {})


def _device(text: str, devices: dict[int, str]) -> int:
    """Return the number of a device such as ``NVIDIA H100 80GB HBM3 (0)``, and note its name."""
    match = _DEVICE.fullmatch(text)
    if match:
        devices[int(match[2])] = match[1]
        return int(match[2])
    if text and not text.isdigit():
        devices.setdefault(0, text)
    return whole(text, 0)


#: Statistics of a kernel's launches, by the spellings of their columns.
_STATISTICS = {
    "average": ("Avg", "Average"), "median": ("Med", "Median"), "minimum": ("Min", "Minimum"),
    "maximum": ("Max", "Maximum"), "deviation": ("StdDev",),
}  # fmt: skip


def read_sum(table: Table, rows: Recorder, devices: dict[int, str]) -> list[str]:
    """Read cuda_gpu_kern_sum, a row per kernel with the time of all its launches; return notes on what was left out."""
    # Old files name the unit at the total alone.
    unit = table.unit(table.index("Total Time")) or "ns"
    skipped = 0
    for row in table:
        total = row.number("Total Time", unit="ns")
        if total is None or total < 0:
            skipped += 1
            continue
        statistics = {key: row.number(*labels, unit=unit) for key, labels in _STATISTICS.items()}
        known: dict[str, Any] = {key: value for key, value in statistics.items() if value is not None}
        shapes = {"grid": row.text("GridXYZ"), "block": row.text("BlockXYZ")}
        known |= {key: whole_numbers(text) for key, text in shapes.items() if text}
        name, memory = row.text("Name", "Operation"), "memory" in row.text("Category").casefold()
        rows.add(
            Kind.MEMCPY if memory else kind_of(name), name, 0.0, total, device=0,
            count=max(row.whole("Instances", default=1, limit=2**62), 1), detail=rows.detail(known),
        )  # fmt: skip
    return [f"skipped {plural(skipped, 'row')} without a total time"] if skipped else []
