"""Recurrent layers: steps one after the other, each a small product and the gates."""

from __future__ import annotations

from typing import Any

from roofline.frontends.torch.lower import Result, Rule, Site
from roofline.ir.errors import UsageError

#: Operations of one step for each element of the state, gates included: sigmoid 3, tanh 1, every sum and product 1.
#: LSTM: 4 sums of projections, 3 sigmoids, 2 tanh, 3 products, 1 sum. GRU: 3 sums, 2 sigmoids, a tanh, 3 products, 2
#: sums. Plain: a sum and the activation.
CELL_FLOPS = {"lstm": 19, "gru": 15, "rnn_tanh": 2, "rnn_relu": 1}


def _steps(site: Site) -> int:
    steps = site.shape("projected")[0]
    if not isinstance(steps, int):
        raise UsageError(f"a recurrent layer runs {steps} steps; leave their number out of dynamic")
    return steps


def _options(site: Site) -> dict[str, Any]:
    return {"count": _steps(site), "flops": CELL_FLOPS[site.get("kind")]}


def _recurrent(site: Site) -> Result:
    state, bias = site.tensor("h"), site.maybe("bias")
    weights = [site.tensor("weight"), *([bias] if bias else [])]
    product = site.b.op("linear", state, *weights, name="hidden", count=_steps(site))
    out = site.b.op("recurrent_cell", site.tensor("projected"), product, state, name="cell", **_options(site))
    last = [site.b.op("slice", out, name=name, shape=site.shape("h")) for name in ("last_h", "last_c")]
    return out, *last


def _recurrent_backward(site: Site) -> Result:
    """Through the gates, back through the product at every step, and one product for the weight."""
    gradient, projected, weight = (site.tensor(key) for key in ("grad", "projected", "weight"))
    gates = site.b.op("recurrent_cell_grad", gradient, projected, name="grad_gates", **_options(site))
    steps, batch, width = site.b.shape(gates)
    step = site.b.op("slice", gates, name="step", shape=(batch, width))
    site.b.op("matmul", step, weight, name="grad_hidden", count=_steps(site))
    rows = site.b.op("view", gates, name="rows", shape=(width, steps * batch))
    states = site.b.op("view", gradient, name="states", shape=(steps * batch, site.shape("h")[-1]))
    return gates, site.b.op("matmul", rows, states, name="grad_weight")


RULES: dict[str, Rule] = {"recurrent": _recurrent, "recurrent_backward": _recurrent_backward}
