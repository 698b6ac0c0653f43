"""The operators: every formula, once; one module a class of operator.

Importing the package registers them all.
"""

from __future__ import annotations

from roofline.ops import (
    attention,
    communication,
    contraction,
    convolution,
    pointwise,
    quantized,
    rowwise,
    state,
)
from roofline.ops import (
    moves as move,
)
from roofline.ops import (
    views as view,
)
from roofline.ops.attention import attended
from roofline.ops.communication import COLLECTIVES
from roofline.ops.contraction import routing_exponent
from roofline.ops.pointwise import POINTWISE
from roofline.ops.registry import OPS, Op, OpKind, Work, broadcast, get_op, node_work, op

#: Where operators are declared, in the order in which a reader would look for one.
MODULES = (contraction, convolution, attention, pointwise, rowwise, quantized, state, move, view, communication)

__all__ = [
    "COLLECTIVES", "MODULES", "OPS", "POINTWISE", "Op", "OpKind", "Work", "attended", "broadcast", "get_op",
    "node_work", "op", "routing_exponent",
]  # fmt: skip
