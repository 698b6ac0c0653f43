"""What frameworks call one operation, as operators of the registry: matmul of any ranks, convolution, attention.

Each function adds nodes to a :class:`~roofline.ops.builder.Builder` and returns the name of the result. A frontend
translates the words of its source to these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.ir.errors import ShapeError, UnknownOp
from roofline.ir.sizes import Size, prod, quotient
from roofline.ops.builder import Builder
from roofline.ops.registry import broadcast
from roofline.ops.rowwise import PER_ELEMENT
from roofline.programs.layers import primitives


def view(b: Builder, x: str, shape: Sequence[Size], name: str = "view") -> str:
    """Return the same elements under another shape; the tensor itself where nothing changes."""
    target = tuple(shape)
    return x if b.shape(x) == target else b.op("view", x, name=name, shape=target)


def expand(b: Builder, x: str, shape: Sequence[Size], name: str = "expand") -> str:
    """Broadcast to a shape, free of copies."""
    target = tuple(shape)
    base = (1,) * (len(target) - len(b.shape(x))) + b.shape(x)
    return x if b.shape(x) == target else b.op("expand", view(b, x, base), name=name, shape=target)


def matmul(b: Builder, x: str, y: str, bias: str | None = None, name: str = "matmul") -> str:
    """Add ``x @ y`` as numpy defines it for any ranks, with a bias along the last axis.

    Raises:
        ShapeError: The inner sizes differ, or the leading ones do not broadcast.
    """
    left, right = b.shape(x), b.shape(y)
    if not left or not right:
        raise ShapeError(f"{name}: matmul of a scalar; allowed: two arrays of one axis or more")
    rows = view(b, x, (1, *left), f"{name}_row") if len(left) == 1 else x
    columns = view(b, y, (*right, 1), f"{name}_column") if len(right) == 1 else y
    result = _matmul(b, rows, columns, bias, name)
    shape = b.shape(result)
    if len(left) == 1:
        shape = (*shape[:-2], shape[-1])
    return view(b, result, shape[:-1] if len(right) == 1 else shape, f"{name}_out")


def _matmul(b: Builder, x: str, y: str, bias: str | None, name: str) -> str:
    left, right = b.shape(x), b.shape(y)
    if all(size == 1 for size in right[:-2]) and len(right) <= len(left):
        return b.op("matmul", x, view(b, y, right[-2:], f"{name}_right"), *([bias] if bias else []), name=name)
    try:
        lead = broadcast([left[:-2], right[:-2]])
    except ShapeError as error:
        raise ShapeError(f"{name}: matmul {error}") from None
    x, y = (expand(b, t, (*lead, *b.shape(t)[-2:]), f"{name}_{side}") for t, side in ((x, "left"), (y, "right")))
    result = b.op("bmm", x, y, name=name)
    return b.op("add", result, bias, name=f"{name}_bias") if bias else result


def reduce(
    b: Builder, how: str, x: str, axes: Any = None, keepdim: bool = False, name: str = "", dtype: str | None = None,
    outer: bool = False,
) -> str:  # fmt: skip
    """Add a reduction by name over some axes, all where none are named.

    An ``outer`` one leaves the axis whose elements lie side by side in memory.

    Raises:
        UnknownOp: No such reduction.
        ShapeError: An axis that the tensor has not.
    """
    if how not in PER_ELEMENT:
        raise UnknownOp(f"{name or how}: unknown reduction {how!r}; allowed: {', '.join(PER_ELEMENT)}")
    rank = len(b.shape(x))
    named = (axes,) if isinstance(axes, int) else tuple(axes or range(rank))
    more: dict[str, Any] = {"outer": True} if outer else {}
    last = not outer and rank > 0 and [axis % rank for axis in named] == [rank - 1]
    if last and not keepdim and how in ("sum", "mean", "argmax"):
        return b.op(how, x, name=name or how, dtype=dtype)
    return b.op("reduce", x, name=name or how, dtype=dtype, axes=named, keepdim=keepdim, how=how,
                **more)  # fmt: skip


def attention(
    b: Builder, q: str, k: str, v: str, *, causal: bool = False, bias: str | None = None, softcap: float = 0.0,
    **more: Any,
) -> str:  # fmt: skip
    """Add attention as one kernel on ``(..., heads, length, width)``; leading axes, if any, are the batch."""
    shape = (*b.shape(q)[:-1], b.shape(v)[-1])
    flat = [by_head(b, name) for name in (q, k, v)]
    out = primitives.attention(b, *flat, causal=causal, bias=bias, softcap=softcap, **more)
    return view(b, out, shape, "attended")


def by_head(b: Builder, x: str) -> str:
    """Return ``(..., heads, length, width)`` with one batch axis; heads may be missing."""
    shape = b.shape(x)
    rows = shape if len(shape) > 2 else (1, *shape)
    return view(b, x, (prod(rows[:-3]), *rows[-3:]), "heads")


def convolution(
    b: Builder, x: str, weight: str, bias: str | None = None, *,
    stride: Sequence[int], padding: Sequence[Any], dilation: Sequence[int], groups: int = 1,
    transposed: bool = False, output_padding: Sequence[int] = (), channels_last: bool = False, name: str = "conv",
) -> str:  # fmt: skip
    """Add a convolution of one, two or three axes, plain or transposed, channels first.

    Args:
        b: The builder.
        x: Images ``(N, C, *sizes)``.
        weight: ``(O, C / groups, *window)``; transposed ``(C, O / groups, *window)``.
        bias: ``(O,)``.
        stride: A number per axis.
        padding: A number per axis, the same before and behind, or two where a plain convolution's differ.
        dilation: A number per axis.
        groups: Groups of channels that know nothing of each other.
        transposed: Whether every input point spreads over a window of the output.
        output_padding: Of a transposed one.
        channels_last: Whether the channels lie innermost in memory.
        name: Of the node.

    Returns:
        The full name of the result.

    Raises:
        ShapeError: Sizes that contradict each other.
    """
    axes = len(b.shape(x)) - 2
    if axes not in (1, 2, 3):
        kind = "transposed convolution" if transposed else "convolution"
        raise ShapeError(f"{name}: a {kind} over {axes} axes; allowed: 1, 2, 3")
    operands = [x, weight, *([bias] if bias else [])]
    options: dict[str, Any] = {"stride": stride, "padding": padding, "groups": groups, "channels_last": channels_last}
    if any(step != 1 for step in dilation):
        options["dilation"] = dilation
    if transposed:
        options["output_padding"] = output_padding or (0,) * axes
        if axes == 1:
            return _transposed_line(b, operands, options, name)
    op = f"conv_transpose{axes}d" if transposed else f"conv{axes}d"
    return b.op(op, *operands, name=name, **{key: _plain(value) for key, value in options.items()})


def _plain(value: Any) -> Any:
    """Return one number for all axes where they agree."""
    same = isinstance(value, list | tuple) and len(set(value)) == 1 and not isinstance(value[0], tuple)
    return value[0] if same else tuple(value) if isinstance(value, list | tuple) else value


def _transposed_line(b: Builder, operands: list[str], options: dict[str, Any], name: str) -> str:
    """Add a transposed convolution over one axis: it gets a neighbour of size 1."""
    flat = [view(b, t, (*b.shape(t)[:2], 1, b.shape(t)[2]), f"{name}_plane") for t in operands[:2]]
    fill = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}
    wide: dict[str, Any] = {key: (fill[key], value[0]) if key in fill else value for key, value in options.items()}
    out = b.op("conv_transpose2d", *flat, *operands[2:], name=name, **wide)
    return view(b, out, (*b.shape(out)[:2], b.shape(out)[3]), f"{name}_line")


def fill_in(shape: Sequence[Size], target: Sequence[Size], where: str = "reshape") -> tuple[Size, ...]:
    """Return the target of a reshape with its one ``-1`` worked out.

    Raises:
        ShapeError: Two sizes are left open, or the elements do not divide.

    Example:
        >>> from roofline.ir.sizes import symbol
        >>> fill_in((symbol("B"), 12, 64), (-1, 768))
        (B, 768)
    """
    if -1 not in target:
        return tuple(target)
    left, rest = list(shape), [size for size in target if size != -1]
    if len(rest) != len(target) - 1:
        raise ShapeError(f"{where}: more than one -1 in {list(target)}")
    for size in list(rest):
        if size in left:
            left.remove(size)
            rest.remove(size)
    size_left = quotient(prod(left), prod(rest)) if prod(rest) != 0 else None
    if size_left is None:
        raise ShapeError(f"{where}: cannot view {list(shape)} as {list(target)}: the elements do not divide")
    return tuple(size_left if size == -1 else size for size in target)
