"""What ran is tied to the operator that asked for it: on events written out by hand."""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from traces_by_hand import chrome, trace

from roofline.traces.events import Kind, Signature
from roofline.traces.linking import MAX_DEPTH, Launch, launches

US = 1e-6
MM = Signature(dims=((8, 4), (4, 2)), types=("float", "float"))


def op(name: str, start: float, duration: float, **more: Any) -> dict[str, Any]:
    return {"kind": Kind.OP, "name": name, "start": start * US, "duration": duration * US, **more}


def call(start: float, correlation: int, **more: Any) -> dict[str, Any]:
    row = {"kind": Kind.RUNTIME, "name": "cudaLaunchKernel", "duration": US, "correlation": correlation}
    return {**row, "start": start * US, **more}


def kernel(start: float, correlation: int, **more: Any) -> dict[str, Any]:
    row = {"kind": Kind.KERNEL, "name": "gemm", "duration": 5 * US, "device": 0, "stream": 7, "thread": 7}
    return {**row, "start": start * US, "correlation": correlation, **more}


def only(rows: list[dict[str, Any]]) -> Launch:
    (found,) = launches(trace(rows))
    return found


NESTED = [
    {"kind": Kind.ANNOTATION, "name": "step", "start": 0.0, "duration": 100 * US, "external": 9},
    op("aten::linear", 10, 50, external=1),
    op("aten::addmm", 15, 40, external=2, signature=MM),
]


def test_a_kernel_is_tied_by_external_id() -> None:
    found = only([*NESTED, call(20, 5), kernel(200, 5, external=2)])
    assert (found.op, found.signature, found.path) == ("aten::addmm", MM, ("step", "aten::linear", "aten::addmm"))
    assert found.issued == pytest.approx(20 * US)
    assert (found.name, found.device, found.stream, found.kind) == ("gemm", 0, 7, Kind.KERNEL)
    assert found.end == pytest.approx(205 * US)
    assert found.call == 2


@pytest.mark.parametrize("external", [-1, 0, 77])
def test_without_a_known_external_id_the_innermost_open_operator_is_taken(external: int) -> None:
    found = only([*NESTED, call(20, 5), kernel(200, 5, external=external)])
    assert found.path == ("step", "aten::linear", "aten::addmm")


def test_the_external_id_of_the_runtime_call_is_as_good() -> None:
    assert only([*NESTED, call(300, 5, external=1), kernel(400, 5)]).op == "aten::linear"


def test_two_threads_do_not_mix() -> None:
    rows = [op("aten::mm", 0, 100), op("MulBackward0", 0, 100, thread=2), op("aten::mul", 10, 50, thread=2)]
    found = launches(trace([*rows, call(20, 1), call(20, 2, thread=2), kernel(200, 1), kernel(210, 2)]))
    assert [each.path for each in found] == [("aten::mm",), ("MulBackward0", "aten::mul")]


def test_threads_of_two_processes_do_not_mix() -> None:
    rows = [op("aten::mm", 0, 100), op("aten::mul", 10, 50, process=2), call(20, 1), kernel(200, 1)]
    assert only(rows).path == ("aten::mm",)


def test_the_kernels_of_a_replayed_graph_share_a_call_and_have_no_operator() -> None:
    rows = [op("Step", 0, 100, external=1), call(20, 5, name="cudaGraphLaunch", external=1)]
    found = launches(trace([*rows, *(kernel(200 + 10 * at, 5, external=1) for at in range(3))]))
    assert [each.op for each in found] == ["", "", ""]
    assert {each.call for each in found} == {-1}
    assert all(each.issued == pytest.approx(20 * US) for each in found)


def test_without_correlation_there_is_no_operator_and_no_time_of_issue() -> None:
    found = only([*NESTED, call(20, 5), kernel(200, -1)])
    assert (found.op, found.path, found.call, found.signature) == ("", (), -1, None)
    assert math.isnan(found.issued)


def test_rows_of_a_table_have_nothing_around_them() -> None:
    found = launches(trace([kernel(0, -1, count=12), kernel(9, -1, name="softmax")]))
    assert [(each.name, each.count, each.op) for each in found] == [("gemm", 12, ""), ("softmax", 1, "")]


def test_a_range_inside_an_operator_does_not_hide_it() -> None:
    rows = [op("custom::op", 0, 100), {"kind": Kind.ANNOTATION, "name": "inner", "start": 5 * US, "duration": 50 * US}]
    found = only([*rows, call(20, 1), kernel(200, 1)])
    assert (found.op, found.path) == ("custom::op", ("custom::op",))


def test_a_range_alone_gives_a_path_and_no_operator() -> None:
    found = only([NESTED[0], call(70, 5), kernel(200, 5)])
    assert (found.op, found.path) == ("", ("step",))


def test_neighbours_that_overlap_by_rounding_are_not_nested() -> None:
    rows = [op("aten::mm", 0, 11), op("aten::mul", 10, 20), call(15, 1), kernel(200, 1)]
    assert only(rows).path == ("aten::mul",)


def test_a_child_that_ends_late_by_rounding_is_nested() -> None:
    rows = [op("aten::linear", 0, 20), op("aten::mm", 10, 11), call(15, 1), kernel(200, 1)]
    assert only(rows).path == ("aten::linear", "aten::mm")


def test_of_two_that_start_together_the_longer_is_outside() -> None:
    rows = [op("aten::mm", 0, 10), op("aten::linear", 0, 20), call(5, 1), kernel(200, 1)]
    assert only(rows).path == ("aten::linear", "aten::mm")


def test_a_copy_takes_its_bytes_from_the_runtime_call_where_it_has_none() -> None:
    copy = kernel(200, 5, kind=Kind.MEMCPY, name="Memcpy HtoD")
    assert only([call(20, 5, bytes=4096.0), copy]).bytes == 4096
    assert only([call(20, 5, bytes=4096.0), {**copy, "bytes": 1024.0}]).bytes == 1024


def test_order_is_that_of_the_device() -> None:
    found = launches(trace([call(1, 1), call(2, 2), kernel(50, 2), kernel(40, 1)]))
    assert [each.start for each in found] == sorted(each.start for each in found)


# --- processor --------------------------------------------------------------------------------------------------------


def test_on_a_processor_operators_have_their_own_time() -> None:
    found = launches(trace([*NESTED, op("aten::expand", 16, 4), op("aten::relu", 70, 10)]))
    assert [each.name for each in found] == ["aten::linear", "aten::addmm", "aten::expand", "aten::relu"]
    assert [each.duration for each in found] == pytest.approx([10 * US, 36 * US, 4 * US, 10 * US])
    assert sum(each.duration for each in found) == pytest.approx(60 * US)
    assert [each.inside for each in found] == [-1, found[0].call, found[1].call, -1]
    assert {(each.kind, each.device) for each in found} == {(Kind.OP, -1)}
    assert found[1].signature == MM
    assert found[2].path == ("step", "aten::linear", "aten::addmm", "aten::expand")


def test_a_range_between_two_operators_takes_no_time() -> None:
    inner = {"kind": Kind.ANNOTATION, "name": "inner", "start": 5 * US, "duration": 50 * US}
    found = launches(trace([op("outer", 0, 100), inner, op("aten::mm", 10, 30)]))
    assert [each.duration for each in found] == pytest.approx([70 * US, 30 * US])


def test_own_time_is_never_negative() -> None:
    found = launches(trace([op("outer", 0, 10), op("aten::mm", 0, 10), op("aten::mul", 9, 1.5)]))
    assert all(each.duration >= 0 for each in found)


def test_nothing_recorded() -> None:
    assert launches(trace([])) == ()
    assert launches(trace([call(0, 1)])) == ()


def test_a_hundred_thousand_events_are_quick() -> None:
    rows = [
        row
        for at in range(25_000)
        for row in (
            op("aten::linear", 100 * at, 90),
            op("aten::mm", 100 * at + 1, 80),
            call(100 * at + 5, at + 1),
            kernel(100 * at + 40, at + 1),
        )
    ]
    recorded = trace(rows)
    found = launches(recorded)
    assert {each.path for each in found} == {("aten::linear", "aten::mm")}


# --- real files -------------------------------------------------------------------------------------------------------

#: A folder of traces of torch.profiler with shapes, if there is one.
REAL = sorted(Path(os.environ["ROOFLINE_TRACES"]).glob("*.json.gz")) if "ROOFLINE_TRACES" in os.environ else []


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_every_kernel_of_a_real_trace_has_its_operator(path: Path) -> None:
    with gzip.open(path) as file:
        found = launches(chrome(json.load(file)))
    assert found
    assert all(each.op and each.path[-1] == each.op and each.signature for each in found)


def test_the_room_of_paths_is_bounded_however_deep_operators_nest() -> None:
    linked = launches(trace(op(f"aten::op{at % 7}", 0, 1) for at in range(3000)))
    assert len(linked) == 3000
    assert len({id(one.path) for one in linked}) <= MAX_DEPTH * 7
    assert max(len(one.path) for one in linked) == MAX_DEPTH
    assert linked[5].path == tuple(f"aten::op{at}" for at in range(6))
