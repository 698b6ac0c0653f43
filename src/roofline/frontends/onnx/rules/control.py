"""Branches and loops: the larger branch, and the body as often as it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.counting.counts import count_graph
from roofline.frontends.call import TYPICAL_SIZE
from roofline.frontends.onnx.known import UNKNOWN, Value, array, constant
from roofline.frontends.onnx.walk import Call, Result, Rule


def _element(call: Call, at: int) -> Any:
    """Return an operand of one element where it is known."""
    data = call.data(at)
    return data.reshape(-1)[0] if data is not None and data.size == 1 else UNKNOWN


def _if(call: Call) -> Result:
    branches = [call.attr("then_branch"), call.attr("else_branch")]
    condition = _element(call, 0)
    if isinstance(condition, bool | int):
        return call.walk.graph(branches[0 if condition else 1], [])
    costs = [_cost(call, branch) for branch in branches]
    larger = 0 if costs[0] >= costs[1] else 1
    call.note(f"{call.name}: counts the {'else' if larger else 'then'} branch, the larger of the two")
    return call.walk.graph(branches[larger], [])


def _cost(call: Call, branch: Any) -> tuple[float, float]:
    """Return FLOPs and bytes of a branch at typical sizes."""
    trial = call.walk.trial()
    outputs = [trial.tensor(value) for value in trial.graph(branch, [])]
    graph = trial.b.graph(list(dict.fromkeys(outputs)))
    totals = count_graph(graph, **dict.fromkeys(graph.symbols, TYPICAL_SIZE))
    return float(totals.flops), float(totals.bytes)


def _changing(call: Call, value: Value) -> Value:
    """Return what a loop hands on: of the same shape each time, with elements that nobody knows before."""
    if value.data is None:
        return call.walk.computed(value.name, call.walk.tensor(value), value.dtype)
    unknown = array([UNKNOWN] * value.data.size, value.data.shape)
    return Value(value.name, value.shape, value.dtype, unknown, kind="buffer")


def _trips(call: Call, most: Any, why: str) -> int:
    """Return how often a loop runs: as the caller says, else as often as it says itself."""
    trips = call.walk.file.names.trip(f"trip.{call.name}", "trip")
    if trips is None and not (isinstance(most, int) and 0 < most < 2**31):
        raise call.missing(f"{why}sizes={{'trip.{call.name}': 10}} or sizes={{'trip': 10}}")
    if trips is None and call.what == "Loop" and call.has(1) and _element(call, 1) is not True:
        call.note(f"{call.name}: runs at most {most} times and may stop earlier; counted {most} times")
    return int(most if trips is None else trips)


def _loop(call: Call) -> Result:
    times = _trips(call, _element(call, 0), "how often it runs depends on values; give ")
    first = constant("iteration", array(UNKNOWN), "int64"), constant("going", array(UNKNOWN), "bool")
    carried = [_changing(call, call.value(at)) for at in range(2, len(call.inputs))]
    with call.b.repeat(times):
        outputs = call.walk.graph(call.attr("body"), [*first, *carried])[1:]
    return _results(call, outputs, len(carried), times)


def _results(call: Call, outputs: Sequence[Value], states: int, times: int) -> list[str | Value | None]:
    """Return states after the last turn, and what all turns wrote; each needs all that a turn hands to the next."""
    handed = [call.walk.tensor(value) for value in outputs[:states] if value.data is None]
    written = [
        call.rearrange((times, *part.shape), call.walk.tensor(part), dtype=part.dtype, part=f"turns_{at}")
        for at, part in enumerate(outputs[states:])
    ]
    call.walk.together.update(dict.fromkeys([*handed, *written], handed))
    return [*(_changing(call, value) for value in outputs[:states]), *written]


def _scan(call: Call) -> Result:
    scanned = call.number("num_scan_inputs")
    states = len(call.inputs) - scanned
    axes = call.attr("scan_input_axes") or [0] * scanned
    size = call.shape(states)[axes[0]]
    times = _trips(call, size, f"it runs {size} times; give that size, or ")
    carried = [_changing(call, call.value(at)) for at in range(states)]
    rows = []
    for at, axis in zip(range(states, len(call.inputs)), axes, strict=True):
        shape = [size for place, size in enumerate(call.shape(at)) if place != axis % len(call.shape(at))]
        part = call.view(call.part(call.tensor(at), (1, *shape), "turn"), shape)
        rows.append(call.walk.computed("turn", part, call.value(at).dtype))
    with call.b.repeat(times):
        outputs = call.walk.graph(call.attr("body"), [*carried, *rows])
    return _results(call, outputs, states, times)


RULES: dict[str, Rule] = {"If": _if, "Loop": _loop, "Scan": _scan}
