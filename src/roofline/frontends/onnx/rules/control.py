"""Branches and loops: the larger branch, and the body as often as it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.counting.counts import count
from roofline.frontends.onnx.call import Call, Result, Rule
from roofline.frontends.onnx.known import UNKNOWN, Value, array, constant
from roofline.ir.sizes import Dim, Size

#: What symbolic sizes are taken for when two branches are compared.
_TYPICAL = 128


def _if(call: Call) -> Result:
    branches = [call.attr("then_branch"), call.attr("else_branch")]
    data = call.data(0)
    known = data.reshape(-1)[0] if data is not None and data.size == 1 else UNKNOWN
    if isinstance(known, bool | int):
        return call.program.graph(branches[0 if known else 1], [])
    costs = [_cost(call, branch) for branch in branches]
    larger = 0 if costs[0] >= costs[1] else 1
    call.note(f"{call.name}: counts the {'else' if larger else 'then'} branch, the larger of the two")
    return call.program.graph(branches[larger], [])


def _cost(call: Call, branch: Any) -> tuple[float, float]:
    """FLOPs and bytes of a branch at typical sizes."""
    with call.program.scratch() as b:
        outputs = [call.program.tensor(value) for value in call.program.graph(branch, [])]
        graph = b.graph(list(dict.fromkeys(outputs)))
    totals = count(graph, **dict.fromkeys(graph.symbols, _TYPICAL))
    return float(totals.flops), float(totals.bytes)


def _changing(call: Call, value: Value) -> Value:
    """A tensor that a loop hands on: of the same shape each time, with elements that nobody knows before."""
    if value.data is not None:
        return Value(
            value.name, value.shape, value.dtype, array([UNKNOWN] * value.data.size, value.data.shape), kind="buffer"
        )
    return call.program.computed(value.name, call.program.tensor(value), value.dtype)


def _trips(call: Call) -> int:
    told = call.program.trip(call.name)
    if told is not None:
        return told
    data = call.data(0) if call.has(0) else None
    most = data.reshape(-1)[0] if data is not None and data.size == 1 else UNKNOWN
    if isinstance(most, int) and 0 < most < 2**31:
        going = call.data(1) if call.has(1) else None
        if call.has(1) and (going is None or going.reshape(-1)[0] is not True):
            call.note(f"{call.name}: runs at most {most} times and may stop earlier; counted {most} times")
        return most
    raise call.program.missing(
        call, f"how often it runs depends on values; give sizes={{'trip.{call.name}': 10}} or sizes={{'trip': 10}}"
    )


def _loop(call: Call) -> Result:
    times, body = _trips(call), call.attr("body")
    first = constant("iteration", array(UNKNOWN), "int64"), constant("going", array(UNKNOWN), "bool")
    carried = [_changing(call, call.value(at)) for at in range(2, len(call.inputs))]
    with call.b.repeat(times):
        found = call.program.graph(body, [*first, *carried])[1:]
    return _results(call, found, len(carried), times)


def _results(call: Call, found: Sequence[Value], states: int, times: int) -> list[str | Value | None]:
    """States after the last turn, and what all turns wrote; each needs all that a turn hands to the next."""
    handed = [call.program.tensor(value) for value in found[:states] if value.data is None]
    written = _stacked(call, found[states:], times)
    call.program.together.update(dict.fromkeys([*handed, *written], handed))
    return [*(_changing(call, value) for value in found[:states]), *written]


def _stacked(call: Call, parts: Sequence[Value], times: Size) -> list[str]:
    """What each turn adds to a result."""
    return [call.write((times, *part.shape), call.program.tensor(part), dtype=part.dtype, part=f"turns_{at}")
            for at, part in enumerate(parts)]  # fmt: skip


def _scan(call: Call) -> Result:
    scanned = call.number("num_scan_inputs")
    states = len(call.inputs) - scanned
    axes = call.attr("scan_input_axes") or [0] * scanned
    times = _scan_length(call, call.shape(states)[axes[0]])
    carried = [_changing(call, call.value(at)) for at in range(states)]
    rows = []
    for at, axis in zip(range(states, len(call.inputs)), axes, strict=True):
        shape = [size for place, size in enumerate(call.shape(at)) if place != axis % len(call.shape(at))]
        part = call.cut(call.x(at), (*shape[:0], 1, *shape), "turn")
        rows.append(call.program.computed("turn", call.see(part, shape), call.value(at).dtype))
    with call.b.repeat(times):
        found = call.program.graph(call.attr("body"), [*carried, *rows])
    return _results(call, found, states, times)


def _scan_length(call: Call, size: Size) -> int:
    told = call.program.trip(call.name)
    if told is not None:
        return told
    if isinstance(size, Dim) or not isinstance(size, int):
        raise call.program.missing(call, f"it runs {size} times; give that size, or sizes={{'trip.{call.name}': 10}}")
    return size


RULES: dict[str, Rule] = {"If": _if, "Loop": _loop, "Scan": _scan}
