"""The least that any schedule moves between a memory of a given capacity and the one behind it.

A schedule is cut into segments that move so much each. How many products fit what is at hand in a segment bounds the
segments, and so the bytes (Hong and Kung 1981). The bounds hold for the operators' own arithmetic, in any order and
however it is tiled, with whatever lies in the memory at the start; not for algorithms that multiply less, such as
Strassen's and Winograd's.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Any

import numpy as np

from roofline.counting.grid import plain
from roofline.tiling.masks import pairs
from roofline.tiling.moves import compulsory
from roofline.tiling.nest import Nest, Window, positive_number
from roofline.tiling.operators import matmul

#: Of a capacity, by how much a last segment may read less than its share: ``2 s`` where ``3 s^(2/3) = 1``.
SHORT = 2 / 3**1.5
#: Bytes of the narrowest score, or sum of one, that a schedule may set aside unfinished.
NARROW = 1.0


def lower_bound(nest: Nest, capacity: Any) -> Any:
    """Bound what any schedule of a nest moves, whatever its tiles and its order.

    Contractions: ``2 p sqrt(x y z / (r S)) - 0.385 S`` bytes for ``p`` products of operands of ``x``, ``y`` and ``z``
    bytes an element, which for a matmul in elements is ``2 m n k / sqrt(S) - 0.385 S`` (Smith et al.,
    https://arxiv.org/abs/1702.02017, who subtract 2 S for a last segment that may be short; what it reads is counted
    here). In a convolution the same pixel and filter meet in up to ``r`` products: taps
    that are a multiple of the stride apart (for each of the others it is a matmul; compare Demmel and Dinh,
    https://arxiv.org/abs/1802.06905).
    Attention: ``p x y / S``, less what one segment may do, for ``p`` pairs of queries of ``x`` bytes and keys of
    ``y`` bytes; of the order that holds for any algorithm where S exceeds d^2 (Dao et al.,
    https://arxiv.org/abs/2205.14135; Saha and Ye, https://arxiv.org/abs/2402.07443).
    Never less than each operand once.

    Args:
        nest: What is computed.
        capacity: S, of all memory in front of the one whose traffic is asked for [byte].

    Returns:
        Bytes read and written [byte].

    Raises:
        UsageError: A capacity that is not above 0.

    Example:
        >>> from roofline.tiling import matmul
        >>> float(lower_bound(matmul(512, 512, 512), 64**2)), float(lower_bound(matmul(512, 512, 512), 1e6))
        (4192727.4488649326, 786432.0)
    """
    room = positive_number("capacity", capacity, "bytes")
    least: Any = 0.0
    if nest.name == "attention":
        queries, keys = nest.operands[:2]
        least = attention_bound(pairs(nest), queries.width, keys.width, room)
    elif [operand.role for operand in nest.operands if len(operand.dims) > 1] == ["read", "read", "sum"]:
        least = contraction_bound(nest, room)
    return plain(np.maximum(least, compulsory(nest)))


def matmul_lower_bound(m: Any, n: Any, k: Any, capacity: Any, *, batch: Any = 1, widths: Any = 1) -> Any:
    """Bound what any schedule of a matmul moves: ``max(2 m n k / sqrt(S) - 0.385 S, m k + k n + m n)`` elements.

    The first term counts reads, those of the result on its first touch among them; each of these is written once, so it
    holds for reads and writes as they are. Kwasniewski et al. (https://arxiv.org/abs/1908.09606) state
    ``2 m n k / sqrt(S) + m n``, which short sums go below: of m = n = 100, k = 1, a column of 100, one element of the
    row and one of the result fit S = 102, and 10,200 elements move where it says 11,980.

    Args:
        m: Rows of the result; numbers, or arrays that broadcast.
        n: Columns of it.
        k: Products that are summed in an element.
        capacity: S, of all memory in front of the one whose traffic is asked for [byte].
        batch: Matmuls, each with operands of its own.
        widths: Bytes of an element, one number, or one each of a, b and c; 1 counts elements [byte].

    Returns:
        Bytes read and written [byte].

    Raises:
        UsageError: A size that is no whole number from 1 on, or a capacity that is not above 0.

    Example:
        >>> round(float(matmul_lower_bound(8192, 8192, 8192, 1e6, widths=2)) / 1e9, 4)
        3.1095
    """
    return lower_bound(matmul(m, n, k, batch=batch, widths=widths), capacity)


def contraction_bound(nest: Nest, capacity: Any) -> Any:
    """Bound the bytes of a contraction of two operands, those that its result takes on the first touch among them.

    Of ``x, y, z`` elements at hand, ``sqrt(r x y z)`` products are done at most (Loomis and Whitney). With all three
    operands in ``3 S`` bytes, a segment that reads ``2 S`` of them does ``V = S^1.5`` times the root of ``r`` over the
    product of the widths. A last segment does a share ``s`` of that and reads ``(3 s^(2/3) - 1) S`` at least, which is
    never more than :data:`SHORT` below ``2 s S``.
    """
    operands = [operand for operand in nest.operands if len(operand.dims) > 1]
    windows = [dim for operand in operands for dim in operand.dims if isinstance(dim, Window)]
    inside = {axis for dim in windows for axis in (dim.position, dim.tap)}
    products: Any = prod(_products(dim, nest.sizes[dim.position], nest.sizes[dim.tap]) for dim in windows)
    for axis in nest.sizes.keys() - inside:
        products = products * np.asarray(nest.sizes[axis], dtype=np.float64)
    widths = prod(min(operand.width, operand.held) for operand in operands)
    shared = prod(_shared(dim, nest.sizes[dim.tap]) for dim in windows)
    return np.maximum(2 * products * np.sqrt(widths / (shared * capacity)) - SHORT * capacity, 0.0)


def _products(dim: Window, positions: int, taps: int) -> int:
    """Count the pairs of positions and taps that meet a point of the image and not its padding."""
    points = np.arange(positions)[:, None] * dim.stride + np.arange(taps) * dim.dilation - dim.before
    return int(np.count_nonzero((points >= 0) & (points < dim.size)))


def _shared(dim: Window, taps: int) -> int:
    """Count the taps through which positions see the same points: those a multiple of the stride apart."""
    return -(-taps * gcd(dim.stride, dim.dilation) // dim.stride)


def attention_bound(scores: Any, query: Any, key: Any, capacity: Any) -> Any:
    """Bound the bytes of queries and keys for scores that are computed once or more.

    A segment that moves S has ``a x + b y <= 2 S`` bytes of queries and keys at hand, and computes at most
    ``a b <= S^2 / (x y)`` scores from them alone. Others are unfinished where it starts or ends, S of them at most, or
    are moved.

    Args:
        scores: Pairs of a query and a key.
        query: Bytes of a query [byte].
        key: Bytes of a key [byte].
        capacity: S [byte].
    """
    alone = capacity / query / key
    return np.maximum((scores - capacity * alone - capacity / NARROW) / (alone + 2 / NARROW), 0.0)
