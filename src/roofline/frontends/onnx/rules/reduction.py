"""Reductions, running sums and the largest of many."""

from __future__ import annotations

from roofline.frontends import emit
from roofline.frontends.onnx.call import Call, Result, Rule
from roofline.frontends.onnx.rules.norms import along

#: Reductions of ONNX by what the importers call them.
_NAMES = {
    "Sum": "sum", "Mean": "mean", "Prod": "prod", "Max": "max", "Min": "min", "L1": "sum_of_magnitudes", "L2": "norm",
    "LogSum": "sum", "LogSumExp": "logsumexp", "SumSquare": "sum_of_squares",
}  # fmt: skip


def _reduce(how: str) -> Rule:
    def run(call: Call) -> Result:
        axes = call.integers(1, "axes")
        if not axes and call.attr("noop_with_empty_axes", 0):
            return call.value(0)
        keep = bool(call.attr("keepdims", 1))
        out = emit.reduce(call.b, how, call.x(0), axes or None, keep, name=call.name, dtype=call.dtype)
        return out

    return run


def _extreme(call: Call) -> Result:
    axis, keep = call.axis(0, len(call.shape(0))), bool(call.attr("keepdims", 1))
    return emit.reduce(call.b, "argmax", call.x(0), [axis], keep, name=call.name, dtype="int64")


def _top(call: Call) -> Result:
    axis = call.axis(-1, len(call.shape(0)))
    count = (call.sizes(1) or [1])[0] if "k" not in call.attrs else call.attr("k")
    out = along(call, call.x(0), axis, lambda x: call.op("topk", x, k=count))
    return [out, call.write(call.b.shape(out), out, dtype="int64", part="places") if call.wants(1) else None]


def _running(call: Call) -> Result:
    known = call.data(1) is not None
    axis = (call.integers(1) or [-1] if known else [-1])[0] % len(call.shape(0))
    flops = 0 if call.dtype.startswith("int") else 1
    return along(call, call.x(0), axis, lambda x: call.op("scan", x, flops=flops))


RULES: dict[str, Rule] = {
    **{f"Reduce{name}": _reduce(how) for name, how in _NAMES.items()},
    "ArgMax": _extreme, "ArgMin": _extreme, "TopK": _top, "CumSum": _running, "CumProd": _running,
}  # fmt: skip
