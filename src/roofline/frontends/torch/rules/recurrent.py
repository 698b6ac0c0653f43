"""Recurrent layers: steps one after the other, each a small matmul and the gates."""

from __future__ import annotations

from typing import Any

from roofline.frontends.torch import forms
from roofline.frontends.torch.walk import Call, Result, Row, rows
from roofline.ir.errors import UsageError

#: Operations of one step for each element of the state, gates included: sigmoid 3, tanh 1, every sum and product 1.
#: LSTM: 4 sums of projections, 3 sigmoids, 2 tanh, 3 products, 1 sum. GRU: 3 sums, 2 sigmoids, a tanh, 3 products, 2
#: sums. Plain: a sum and the activation.
CELL_FLOPS = {"lstm": 19, "gru": 15, "rnn_tanh": 2, "rnn_relu": 1}


def _steps(call: Call) -> int:
    steps = call.shape("projected")[0]
    if not isinstance(steps, int):
        raise UsageError(f"a recurrent layer runs {steps} steps; leave their number out of dynamic")
    return steps


def _options(call: Call) -> dict[str, Any]:
    return {"count": _steps(call), "flops": CELL_FLOPS[call.get("kind")]}


def _recurrent(call: Call) -> Result:
    state, bias = call.tensor("h"), call.maybe("bias")
    weights = [call.tensor("weight"), *([bias] if bias else [])]
    hidden = call.b.op("linear", state, *weights, name="hidden", count=_steps(call), recurrent=True)
    out = call.b.op("recurrent_cell", call.tensor("projected"), hidden, state, name="cell", **_options(call))
    last = [call.b.op("slice", out, name=name, shape=call.shape("h")) for name in ("last_h", "last_c")]
    return out, *last


def _recurrent_backward(call: Call) -> Result:
    """Through the gates, back through the matmul at every step, and one matmul for the weight."""
    gradient, projected, weight = (call.tensor(key) for key in ("grad", "projected", "weight"))
    gates = call.b.op("recurrent_cell_grad", gradient, projected, name="grad_gates", **_options(call))
    steps, batch, width = call.b.shape(gates)
    step = call.b.op("slice", gates, name="step", shape=(batch, width))
    call.b.op("matmul", step, weight, name="grad_hidden", count=_steps(call))
    rows = call.b.op("view", gates, name="rows", shape=(width, steps * batch))
    states = call.b.op("view", gradient, name="states", shape=(steps * batch, call.shape("h")[-1]))
    return gates, call.b.op("matmul", rows, states, name="grad_weight")


ROWS: dict[str, Row] = {
    **rows("recurrent", _recurrent, forms.by_rule),
    **rows("recurrent_backward", _recurrent_backward, forms.by_rule),
}
