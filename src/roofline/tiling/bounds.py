"""The least that any schedule moves between a memory of a given capacity and the one behind it.

All bounds are for the operators' own arithmetic, every product done once: not for Strassen's or Winograd's algorithms.
The count is by segments of a schedule, each of which reads so much: how many products fit the operands that are at hand
in it bounds the segments, and so the reads. Hong and Kung (1981) began it; Smith et al. (https://arxiv.org/abs/1702.02017)
found the constant 2 for matmuls.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from roofline.tiling.nest import positive_number, whole_number
from roofline.tiling.operators import checked_widths


def matmul_lower_bound(m: Any, n: Any, k: Any, capacity: Any, *, batch: Any = 1, widths: Any = 1) -> Any:
    """Bound what any schedule of a matmul moves: ``max(2 m n k / sqrt(S) - 2 S, m k + k n + m n)`` elements.

    The first term is Smith et al.'s (https://arxiv.org/abs/1702.02017) for reads, those of c's elements on their first
    touch among them; each of these is written once, so it holds for reads and writes as they are. With operands of
    several widths, their geometric mean takes the place of one. Kwasniewski et al. (https://arxiv.org/abs/1908.09606)
    state ``2 m n k / sqrt(S) + m n``, which is higher, but short sums go below it: of m = n = 100, k = 1, a column of
    100, one element of the row and one of the result fit S = 102, and 10,200 elements move where it says 11,980.

    Args:
        m: Rows of the result; numbers, or arrays that broadcast.
        n: Columns of it.
        k: Products that are summed in an element.
        capacity: Of all memory in front of the one whose traffic is asked for [byte].
        batch: Matmuls, each with operands of its own.
        widths: Bytes of an element, one number, or one each of a, b and c; 1 counts elements [byte].

    Returns:
        Bytes read and written [byte].

    Raises:
        UsageError: A size that is no whole number from 1 on, or a capacity that is not above 0.

    Example:
        >>> round(float(matmul_lower_bound(8192, 8192, 8192, 1e6, widths=2)) / 1e9, 4)
        3.1079
    """
    m, n, k = (whole_number(f"matmul: size along {axis}", size) for axis, size in (("m", m), ("n", n), ("k", k)))
    many, capacity = whole_number("matmul: batch", batch), positive_number("capacity", capacity, "bytes")
    a, b, c = checked_widths(widths, 3)
    return np.maximum(segments(many * m * n * k, capacity, a * b * c), many * (m * k * a + k * n * b + m * n * c))


def segments(products: Any, capacity: Any, widths: float, shared: float = 1.0) -> Any:
    """Bound the bytes of three operands from ``p`` products, of which ``sqrt(shared x y z)`` at most fit ``x, y, z``.

    Loomis and Whitney: of a matmul, ``shared`` is 1. With all three operands in ``X = 3 S`` bytes, a segment that reads
    ``2 S`` does at most ``sqrt(shared) S^1.5 / sqrt(widths)`` products; the last segment may be short.

    Args:
        products: Multiply-adds.
        capacity: S [byte].
        widths: Product of the bytes of an element of each operand.
        shared: Products that the same three elements may take part in.
    """
    return np.maximum(2 * products * np.sqrt(widths / (shared * capacity)) - 2 * capacity, 0.0)
