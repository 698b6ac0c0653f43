"""The operators: every formula, once; one module a class of operator.

Importing the package registers them all.
"""

from __future__ import annotations

import lazy_loader

from roofline.ir.dtypes import dtype
from roofline.ir.graph import Applied, Node, Tensor
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
from roofline.ops.registry import OPS, Op, Work

#: Where operators are declared, in the order in which a reader would look for one.
MODULES = (contraction, convolution, attention, pointwise, rowwise, quantized, state, move, view, communication)

__all__ = ["OPS", "Applied", "Node", "Op", "Tensor", "Work", "dtype"]

#: What builds and runs graphs imports this package, and so loads on first use.
_LATER = {"builder": ["Builder"], "reference": ["Sameness", "execute", "same"]}
__getattr__, _, _later = lazy_loader.attach(__name__, submod_attrs=_LATER)
__all__ += _later
