"""Sequence mixers with a state of fixed size: causal convolutions, state-space scans, delta rule, linear recurrences.

Over many positions the scans run in chunks, whose products are contractions; one new position runs the recurrence
itself, which is elementwise arithmetic on the state. The state that a step reads is the last operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from roofline.ir.errors import ShapeError
from roofline.ir.signature import Shape
from roofline.ir.sizes import minimum, prod
from roofline.ir.units import MAC
from roofline.ops.registry import Work, op

#: A position, channel and state of Mamba-1: decay ``exp(dt A)`` 2, input ``dt B x`` 3, update 2, output 2 (the 9 that
#: the VMamba authors count for arXiv 2312.00752, algorithm 2).
SELECTIVE_SCAN_FLOPS = 9
#: A head's state element in one step: decay and add 2, outer product 1, output 2 (arXiv 2405.21060, equation 1).
RECURRENCE_FLOPS = 5
#: A pair of positions in a chunk: difference of the cumulated decays, exponential, product (arXiv 2405.21060, sec. 6).
DECAY_FLOPS = 3
#: A channel of the real-gated linear recurrence: ``a = exp(c r log a)`` 3, ``sqrt(1 - a^2)`` 3, ``a h + b i x`` 4
#: (Griffin, arXiv 2402.19427, section 2.4).
LRU_FLOPS = 10


def _first(shapes: Sequence[Shape]) -> Shape:
    return shapes[0]


@op("causal_conv", None, "pointwise", shape=_first)
def causal_conv(shapes: Any, batch: Any) -> Work:
    """Depthwise convolution over time, ``(B, L, C)`` with ``(C, K)``; a bias and the last ``K`` inputs may follow."""
    if shapes[1][0] != shapes[0][-1]:
        raise ShapeError(f"has {shapes[0][-1]} channels but a kernel for {shapes[1][0]}")
    return Work(flops=MAC * batch * shapes[1][-1])


@op("selective_scan", "b l d, b l d, d n, b l n, b l n, [d], [b d n] -> b l d", "pointwise")
def selective_scan(b: Any, l: Any, d: Any, n: Any) -> Work:  # noqa: E741
    """Mamba's scan of inputs, steps, A, B, C, the skip D and a state; the skip is two operations a channel."""
    return Work(vector=SELECTIVE_SCAN_FLOPS * b * l * d * n + 2 * b * l * d)


def _heads(shapes: Sequence[Shape]) -> dict[str, Any]:
    (b, length, h, p), (*_, g, n) = shapes[0], shapes[1]
    if isinstance(h, int) and isinstance(g, int) and h % g:
        raise ShapeError(f"has {h} heads, which is no multiple of {g} groups")
    return {"b": b, "length": length, "h": h, "p": p, "g": g, "n": n}


@op("ssd_scan", None, "pointwise", shape=_first, derive=_heads)
def ssd_scan(b: Any, length: Any, h: Any, p: Any, g: Any, n: Any, chunk: int = 256, recurrent: bool = False) -> Work:
    """Mamba-2's scan of ``X (B, L, H, P)``, ``B`` and ``C (B, L, G, N)``; steps, decays, skip and state may follow.

    In chunks of ``Q`` positions (arXiv 2405.21060, section 6): ``C B^T`` by group, its product with ``X``, the state
    that each chunk adds and the output that the state before it gives.
    """
    if recurrent:
        return Work(vector=RECURRENCE_FLOPS * b * length * h * p * n)
    q = minimum(length, chunk)
    products = b * length * (q * g * n + q * h * p + 2 * h * p * n)
    return Work(flops=MAC * products, vector=DECAY_FLOPS * b * length * q * h)


@op("delta_scan", None, "pointwise", shape=lambda shapes: shapes[2])
def delta_scan(shapes: Any, chunk: int = 64, recurrent: bool = False) -> Work:
    """The gated delta rule on ``Q``, ``K (B, L, H, D)`` and ``V (B, L, H, E)``; decays (by head or by
    channel), strengths and state may follow.

    In chunks of ``C`` positions (arXiv 2412.06464, section 3.3; arXiv 2406.06484, section 3.2): ``K K^T`` and
    ``Q K^T``, the inverse of a triangle, its products with keys and values, and three products with the state.
    """
    (b, length, h, d), e = shapes[1], shapes[2][-1]
    if recurrent:  # beside decay, update and output, the value that the state already holds for the key
        return Work(vector=(RECURRENCE_FLOPS + 2) * b * length * h * d * e)
    q = minimum(length, chunk)
    products = q * (3 * d + 2 * e) + q * q * Fraction(1, 3) + 3 * d * e
    return Work(flops=MAC * b * length * h * products, vector=DECAY_FLOPS * b * length * q * h)


@op("linear_recurrence", None, "pointwise", shape=_first)
def linear_recurrence(batch: Any) -> Work:
    """The real-gated linear recurrence on inputs, two gates, the decay and a state, channel by channel."""
    return Work(vector=LRU_FLOPS * batch)


@op("mixer_grad", None, "pointwise", shape=lambda shapes, shape: tuple(shape))
def mixer_grad(products: Any = 0, operations: Any = 0) -> Work:
    """A gradient of one of the mixers above, with its share of the kernel's ``products`` and other ``operations``."""
    return Work(flops=products, vector=operations)


@op("state_update", None, "move", shape=_first, alias=0)
def state_update(shapes: Any) -> Work:
    """Write a state that a scan or convolution has just worked out back in place: no operand is read for it."""
    return Work(reads=dict.fromkeys(range(len(shapes)), 0), writes=prod(shapes[0]))
