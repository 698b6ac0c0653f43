"""LSTM, GRU and RNN: the matmul with the inputs of all steps at once, that with the state step by step."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.frontends.onnx.walk import Call, Result, Rule
from roofline.ir.errors import ShapeError
from roofline.ir.sizes import Size


@dataclass(frozen=True)
class Cell:
    """A kind of recurrent cell.

    Attributes:
        gates: Projections of a hidden size that a step sums.
        flops: Operations on an element of the state once those are there: sigmoids at 3, tanh at 1, products, sums.
        cell: Whether it has a cell state as well as the hidden one.
    """

    gates: int
    flops: int
    cell: bool = False


#: LSTM: three sigmoids, two tanh, ``c = f c + i g`` (3), ``h = o c`` (1). GRU: two sigmoids, a tanh, the reset gate
#: and ``(1 - z) n + z h`` (4). RNN: a tanh.
CELLS = {"LSTM": Cell(4, 15, True), "GRU": Cell(3, 12), "RNN": Cell(1, 1)}


def _recurrent(call: Call) -> Result:
    kind = CELLS[call.what]
    x = call.tensor(0)
    steps, batch, _ = call.shape(0)
    if call.attr("layout", 0):
        x = call.permute(x, [1, 0, 2])
        steps, batch = batch, steps
    directions, hidden = call.shape(1)[0], call.number("hidden_size")
    if directions not in (1, 2):
        raise ShapeError(f"{call.name}: {directions} directions; there are 1 or 2")
    states = [_direction(call, kind, x, (steps, batch, hidden), at) for at in range(int(directions))]
    out = call.rearrange((steps, directions, batch, hidden), *states, part="states")
    if call.attr("layout", 0):
        out = call.permute(out, [2, 0, 1, 3], "layout")
    last: tuple[Size, ...] = (batch, directions, hidden) if call.attr("layout", 0) else (directions, batch, hidden)
    finals = [call.rearrange(last, *states, part=f"final_{at}") if call.is_read(at) else None for at in (1, 2)]
    return [out, *finals]


def _direction(call: Call, kind: Cell, x: str, sizes: tuple[Size, Size, int], at: int) -> str:
    """Add all steps of one direction and return the last state."""
    steps, batch, hidden = sizes
    rows, name = kind.gates * hidden, f"{call.name}.{'forward' if at == 0 else 'backward'}"
    w, r = (call.view(call.part(call.tensor(at), (1, *call.shape(at)[1:]), part), call.shape(at)[1:])
            for at, part in ((1, "w"), (2, "r")))  # fmt: skip
    bias = [call.view(call.part(call.tensor(3), (1, rows), "b"), (rows,))] if call.has(3) else []
    fed = call.op("linear", x, w, *bias, name=f"{name}.inputs")
    # Steps wait for each other. Where their number is symbolic they stand in one node, which moves fewer bytes.
    times = steps if isinstance(steps, int) else 1
    shape = (batch, hidden) if isinstance(steps, int) else (steps * batch, hidden)
    if not isinstance(steps, int):
        call.note(f"{call.name}: its {steps} steps are counted as one kernel; give the size to count them one by one")
    state = call.rearrange(shape, part="start")
    with call.b.repeat(times):
        gates = call.op("linear", state, r, *bias, name=f"{name}.state")
        part = call.part(fed, (1, *call.b.shape(fed)[1:]), "step") if times != 1 else fed
        total = call.op("add", gates, call.view(part, call.b.shape(gates)), name=f"{name}.gates")
        each = [call.part(total, shape, f"gate_{gate}") for gate in range(kind.gates)]
        extra = [state] if kind.cell else []
        return call.op("elementwise", *each, *extra, flops=kind.flops, name=f"{name}.cell")


RULES: dict[str, Rule] = dict.fromkeys(CELLS, _recurrent)
