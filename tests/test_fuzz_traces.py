"""Damaged files of every reader: refused in one line or read, and then parts add up and the JSON has no NaN.

A reader is fuzzed from the day that it has a row of ``TABLES``, with its own example.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_traces import Made, chain
from mutators import bytes_mutated, dumps, json_mutated, mutants, refused, table_mutated
from profiles import examples

import roofline as rl
from roofline.traces.reading import TABLES

COUNT = examples(240)
SMALL = rl.workload([{"op": "gemm", "m": 64, "n": 64, "k": 64}], dtype="bf16")


def holds(path: Path) -> None:
    """Read a file; where it is one, its report holds, with a chip and without, and so does a check with it."""
    trace = refused(lambda: rl.traces.read_trace(path))
    if trace is None:
        return
    events = trace.events
    assert all(map(math.isfinite, (*events.start.tolist(), *events.duration.tolist())))
    assert all(duration >= 0 for duration in events.duration.tolist())
    for chip in (None, "h100-sxm"):
        report = refused(lambda chip=chip: rl.diagnosis.trace_report(trace, chip))  # type: ignore[misc]
        if report is None:
            continue
        json.dumps(report.record(), allow_nan=False)
        parts = [seconds for _, seconds in report.waterfall]
        assert sum(parts) == pytest.approx(report.seconds, rel=1e-6, abs=1e-12)
        assert all(part >= 0 for part in parts)
    verdict = refused(lambda: rl.check(SMALL, "h100-sxm", "3 s", trace=trace))
    assert verdict is None or sum(seconds for _, seconds in verdict.waterfall) == pytest.approx(3)


@pytest.mark.parametrize("form", TABLES, ids=lambda form: form.name)
@pytest.mark.parametrize("mutate", [table_mutated, bytes_mutated])
def test_damaged_tables(tmp_path: Path, form: Any, mutate: Callable[[Any, random.Random], Any]) -> None:
    whole: Any = form.example if mutate is table_mutated else form.example.encode()
    path = tmp_path / "table.csv"
    path.write_text(form.example, encoding="utf-8")
    assert rl.traces.read_trace(path).format == form.name
    for made in mutants(mutate, whole, COUNT // 4):
        path.write_bytes(made.encode() if isinstance(made, str) else made)
        holds(path)


def recorded() -> dict[str, Any]:
    calls: list[Any] = [
        ("aten::addmm", [[64], [32, 48], [48, 64], [], []], 6.0, {}),
        ("aten::_softmax", [[4, 32, 32], [], []], 3.0, {"concrete": ["", "2", "False"]}),
        ("aten::copy_", [[32, 64]] * 2, 5.0, {"kernel": "Memcpy HtoD (Pinned -> Device)", "category": "gpu_memcpy",
                                              "bytes": 4096}),
        ("nccl:all_reduce", [[2048]], 9.0, {"kernel": "ncclDevKernel_AllReduce", "stream": 9, "Group size": 8,
                                            "Collective name": "allreduce", "In msg nelems": 2048}),
    ]  # fmt: skip
    made = chain(Made(), calls, gap=200.0)
    made.slice("cuda_runtime", "cudaStreamSynchronize", 1500, 30)
    made.events.append({"ph": "M", "name": "process_name", "pid": 100, "args": {"name": "python"}})
    made.document["distributedInfo"] = {"rank": 1, "world_size": 8}
    return made.document


def test_damaged_events(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for made in mutants(json_mutated, recorded(), COUNT):
        path.write_text(dumps(made), encoding="utf-8")
        holds(path)


def test_damaged_text(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for made in mutants(bytes_mutated, json.dumps(recorded()).encode(), COUNT // 2):
        path.write_bytes(made)
        holds(path)
