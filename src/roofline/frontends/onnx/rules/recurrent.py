"""LSTM, GRU and RNN: the product with the inputs of all steps at once, that with the state step by step."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.frontends.onnx.call import Call, Result, Rule
from roofline.ir.errors import ShapeError
from roofline.ir.sizes import Size


@dataclass(frozen=True)
class Cell:
    """A kind of recurrent cell.

    Attributes:
        gates: Products of a hidden size that a step sums.
        flops: Operations on an element of the state once those are there: sigmoids at 3, tanh at 1, products, sums.
        cell: Whether it keeps a cell state beside the hidden one.
    """

    gates: int
    flops: int
    cell: bool = False


#: LSTM: three sigmoids, two tanh, ``c = f c + i g`` (3), ``h = o c`` (1). GRU: two sigmoids, a tanh, the reset product
#: and ``(1 - z) n + z h`` (4). RNN: a tanh.
CELLS = {"LSTM": Cell(4, 15, True), "GRU": Cell(3, 12), "RNN": Cell(1, 1)}


def _recurrent(call: Call) -> Result:
    kind = CELLS[call.what]
    x = call.x(0)
    steps, batch, _ = call.shape(0)
    if call.attr("layout", 0):
        x = call.turn(x, [1, 0, 2])
        steps, batch = batch, steps
    directions, hidden = call.shape(1)[0], call.number("hidden_size")
    if directions not in (1, 2):
        raise ShapeError(f"{call.name}: {directions} directions; there are 1 or 2")
    states = [_direction(call, kind, x, (steps, batch, hidden), at) for at in range(int(directions))]
    out = call.write((steps, directions, batch, hidden), *states, part="states")
    if call.attr("layout", 0):
        out = call.turn(out, [2, 0, 1, 3], "layout")
    last: tuple[Size, ...] = (batch, directions, hidden) if call.attr("layout", 0) else (directions, batch, hidden)
    finals = [call.write(last, *states, part=f"final_{at}") if call.wants(at) else None for at in (1, 2)]
    return [out, *finals]


def _direction(call: Call, kind: Cell, x: str, sizes: tuple[Size, Size, int], at: int) -> str:
    """All steps of one direction; returns the last state."""
    steps, batch, hidden = sizes
    rows, name = kind.gates * hidden, f"{call.name}.{'forward' if at == 0 else 'backward'}"
    into = call.see(call.cut(call.x(1), (1, *call.shape(1)[1:]), "w"), call.shape(1)[1:])
    again = call.see(call.cut(call.x(2), (1, *call.shape(2)[1:]), "r"), call.shape(2)[1:])
    bias = [call.see(call.cut(call.x(3), (1, rows), "b"), (rows,))] if call.has(3) else []
    fed = call.op("linear", x, into, *bias, name=f"{name}.inputs")
    # Steps wait for each other. Where their number is symbolic they stand in one node, which moves fewer bytes.
    times = steps if isinstance(steps, int) else 1
    shape = (batch, hidden) if isinstance(steps, int) else (steps * batch, hidden)
    if not isinstance(steps, int):
        call.note(f"{call.name}: its {steps} steps are counted as one kernel; give the size to count them one by one")
    state = call.write(shape, part="start")
    with call.b.repeat(times):
        gates = call.op("linear", state, again, *bias, name=f"{name}.state")
        part = call.cut(fed, (1, *call.b.shape(fed)[1:]), "step") if times != 1 else fed
        total = call.op("add", gates, call.see(part, call.b.shape(gates)), name=f"{name}.gates")
        each = [call.cut(total, shape, f"gate_{gate}") for gate in range(kind.gates)]
        extra = [state] if kind.cell else []
        return call.op("elementwise", *each, *extra, flops=kind.flops, name=f"{name}.cell")


RULES: dict[str, Rule] = dict.fromkeys(CELLS, _recurrent)
