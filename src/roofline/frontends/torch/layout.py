"""How PyTorch's elementwise kernels walk their operands, by its TensorIterator's rules on sizes and strides.

Axes are put in the order of the strides and joined where one follows the other in memory, in every operand alike
(``reorder_dimensions`` and ``coalesce_dimensions`` of aten/src/ATen/TensorIterator.cpp). What is left with one axis
and steps of one element is loaded in vectors, or one by one where it is cast on the way; anything else works out the
address of every element (``gpu_kernel_impl`` of aten/src/ATen/native/cuda/CUDALoops.cuh).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

#: Sizes and strides of a tensor's axes, in elements, at the sizes of the capture.
Layout = tuple[tuple[int, int], ...]
#: How a kernel gets at its elements: see :func:`access`.
Access = tuple[str, int, int]
#: Bytes of memory that are fetched together.
SECTOR = 32


def layout_of(tensor: Any) -> Layout | None:
    """Return sizes and strides of a tensor, symbolic ones by their hints; ``None`` where there are none."""
    try:
        sizes, steps = tensor.shape, tensor.stride()
    except RuntimeError:  # a sparse tensor
        return None
    try:
        return tuple((_hint(size), _hint(step)) for size, step in zip(sizes, steps, strict=True))
    except (AttributeError, TypeError):  # a size that depends on values
        return None


def contiguous(layout: Layout) -> Layout:
    """Return the layout of new memory of the same sizes: rows one after the other."""
    steps = [1]
    for size, _ in reversed(layout[1:]):
        steps.append(steps[-1] * size)
    return tuple((size, step) for (size, _), step in zip(layout, reversed(steps), strict=False))


def is_contiguous(layout: Layout) -> bool:
    """Tell whether rows lie one after the other; the steps of axes of one element do not count."""
    pairs = zip(layout, contiguous(layout), strict=True)
    return all(own == other or own[0] == 1 for own, other in pairs)


def _hint(size: Any) -> int:
    return size if type(size) is int else int(size.node.hint)


@lru_cache(maxsize=4096)
def walk(operands: tuple[Layout, ...]) -> list[tuple[int, tuple[int, ...]]]:
    """Return the joined axes of a kernel from the innermost: the size, and each operand's stride (0 where repeated).

    Args:
        operands: The memory that a result is written to, unless it is new, and what is read. New memory is laid out
            in the order of what is read.

    Example:
        >>> contiguous, row = ((8, 4), (4, 1)), ((4, 1),)
        >>> walk((contiguous, contiguous)), walk((contiguous, contiguous, row))
        ([(32, (1, 1))], [(4, (1, 1, 1)), (8, (4, 4, 0))])
    """
    rank = max(map(len, operands))
    sizes = [max(each[len(each) - rank + at][0] for each in operands if len(each) >= rank - at) for at in range(rank)]
    steps = [tuple(_step(each, at - rank, size) for each in operands) for at, size in enumerate(sizes)]
    axes = [(size, step) for size, step in zip(sizes, steps, strict=True) if size != 1][::-1]
    for at in range(1, len(axes)):
        for before in range(at - 1, -1, -1):
            order = _compare(axes[before], axes[at])
            if order > 0:
                axes[before], axes[at] = axes[at], axes[before]
                at = before
            elif order < 0:
                break
    joined = axes[:1]
    for size, step in axes[1:]:
        inner, inner_step = joined[-1]
        if all(inner * a == b for a, b in zip(inner_step, step, strict=True)):
            joined[-1] = (inner * size, inner_step)
        else:
            joined.append((size, step))
    return joined


def _step(layout: Layout, at: int, size: int) -> int:
    own, step = layout[at] if -at <= len(layout) else (1, 0)
    return step if own == size else 0


def _compare(a: tuple[int, tuple[int, ...]], b: tuple[int, tuple[int, ...]]) -> int:
    """Return 1 where ``b`` goes before ``a``: by the first operand that repeats neither and has other strides."""
    for left, right in zip(a[1], b[1], strict=True):
        if left and right and left != right:
            return 1 if left > right else -1
        if left and right and a[0] > b[0]:
            return 1
    return 0


def access(written: Layout | None, read: Sequence[tuple[Layout, int]], cast: bool) -> Access:
    """Return how a kernel gets at its elements.

    Args:
        written: The memory that is written, ``None`` for new memory.
        read: The operands, with the bytes of an element.
        cast: Whether some operand is of another format than the arithmetic.

    Returns:
        ``vector``, ``cast`` (one by one, on the way to another format), ``strided`` (by an address of its own each)
        or ``mixed`` (both); the axes that addresses are worked out from; and of an operand whose neighbours lie in
        other sectors the size of the innermost axis, 0 where there is none.

    Example:
        >>> rows, columns = ((64, 1024), (1024, 1)), ((64, 1), (1024, 64))
        >>> access(None, [(rows, 2), (rows, 2)], cast=False), access(None, [(columns, 2)], cast=False)
        (('vector', 1, 0), ('vector', 1, 0))
        >>> access(rows, [(columns, 2)], cast=False)
        ('strided', 2, 1024)
    """
    operands = tuple(layout for layout, _ in read)
    axes = walk(operands if written is None else (written, *operands))
    size, steps = axes[0] if axes else (1, ())
    if len(axes) <= 1 and all(step == 1 for step in steps):
        return ("cast" if cast else "vector"), 1, 0
    widths = [width for _, width in read] if written is None else [read[0][1] if read else 1, *(w for _, w in read)]
    apart = any(step * width >= SECTOR for step, width in zip(steps, widths, strict=True))
    return ("mixed" if cast else "strided"), len(axes), size if apart else 0


def is_outer(layout: Layout, axes: Sequence[int]) -> bool:
    """Tell whether a reduction leaves the axis whose elements lie side by side.

    Example:
        >>> image = ((8, 1024), (64, 1), (4, 256), (4, 64))
        >>> is_outer(image, (2, 3)), is_outer(image, (1,))
        (True, False)
    """
    inner = [at for at, (size, step) in enumerate(layout) if step == 1 and size != 1]
    return bool(inner) and inner[-1] not in {axis % len(layout) for axis in axes}
