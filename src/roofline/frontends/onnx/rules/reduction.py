"""Reductions, running sums and the largest of many."""

from __future__ import annotations

from roofline.frontends.call import with_options
from roofline.frontends.onnx.walk import Call, Result, Rule

#: Reductions of ONNX by the names that all frontends share.
_NAMES = {
    "Sum": "sum", "Mean": "mean", "Prod": "prod", "Max": "max", "Min": "min", "L1": "sum_of_magnitudes", "L2": "norm",
    "LogSum": "sum", "LogSumExp": "logsumexp", "SumSquare": "sum_of_squares",
}  # fmt: skip


@with_options
def _reduce(call: Call, how: str) -> Result:
    axes = call.integers(1, "axes")
    if not axes and call.attr("noop_with_empty_axes", 0):
        return call.value(0)
    return call.reduce(how, call.tensor(), axes or None, bool(call.attr("keepdims", 1)))


def _extreme(call: Call) -> Result:
    axis, keepdims = call.axis(0, len(call.shape())), bool(call.attr("keepdims", 1))
    return call.reduce("argmax", call.tensor(), [axis], keepdims, dtype="int64")


def _top(call: Call) -> Result:
    axis = call.axis(-1, len(call.shape()))
    count = (call.sizes(1) or [1])[0] if "k" not in call.attrs else call.attr("k")
    out = call.along(axis, lambda x: call.op("topk", x, k=count), call.tensor(), back="back")
    places = call.rearrange(call.b.shape(out), out, dtype="int64", part="places") if call.is_read(1) else None
    return [out, places]


def _running(call: Call) -> Result:
    known = call.data(1) is not None
    axis = (call.integers(1) or [-1] if known else [-1])[0] % len(call.shape())
    flops = 0 if call.dtype.startswith("int") else 1
    return call.along(axis, lambda x: call.op("scan", x, flops=flops), call.tensor(), back="back")


RULES: dict[str, Rule] = {
    **{f"Reduce{name}": _reduce(how) for name, how in _NAMES.items()},
    "ArgMax": _extreme, "ArgMin": _extreme, "TopK": _top, "CumSum": _running, "CumProd": _running,
}  # fmt: skip
