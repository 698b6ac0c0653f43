"""The operators: one declaration each, with all that is known about it; one module for each class of operator.

A contraction is one call, and all else follows from its signature::

    contraction("gram", "b m k, b n k -> b m n", "matmul", "``A B^T`` for each of a batch.", "a b")

Any other is the function that it computes in numpy, with what that costs, its gradient and its axes beside it::

    @op("softmax", "... c -> ... c", "rowwise", formula=per_element(5), gradient=runs("softmax_grad", "y"))
    def softmax(call: Call, x: Array) -> Array: ...

Importing the package declares them all.
"""

from __future__ import annotations

import lazy_loader

from roofline.ir.dtypes import dtype
from roofline.ir.graph import Applied, Node, Tensor
from roofline.ir.sizes import symbol
from roofline.ops import (  # noqa: F401
    attention,
    communication,
    contraction,
    convolution,
    moves,
    pointwise,
    quantized,
    rowwise,
    state,
    views,
)
from roofline.ops.builder import Builder
from roofline.ops.registry import OPS, Op, Work

__all__ = ["OPS", "Applied", "Builder", "Node", "Op", "Tensor", "Work", "dtype", "symbol"]

#: What runs graphs loads on first use.
_LATER = {"reference": ["Sameness", "execute", "same"]}
__getattr__, _, _later = lazy_loader.attach(__name__, submod_attrs=_LATER)
__all__ += _later


def __dir__() -> list[str]:
    return __all__
