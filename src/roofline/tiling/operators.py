"""The loop nests of operators: matmuls, convolutions, attention, reductions, and any contraction by its signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from roofline.ir.errors import UsageError
from roofline.ops.registry import OPS, Op, get_op
from roofline.ops.windows import paddings, per_axis
from roofline.tiling.moves import Traffic, traffic
from roofline.tiling.nest import Band, Nest, Operand, Role, Window, positive_number, whole_number

#: Bytes of the running maximum and sum of a row of an online softmax, both in fp32 (arXiv 2205.14135, algorithm 1).
STATISTICS = 8.0


def matmul(m: Any, n: Any, k: Any, *, batch: Any = 1, widths: Any = 1, partial: float | None = None) -> Nest:
    """Describe ``c = a b`` of ``m x k`` by ``k x n``, or a batch of them.

    Args:
        m: Rows of the result.
        n: Columns of it.
        k: Products that are summed in an element.
        batch: Matmuls, each with operands of its own.
        widths: Bytes of an element, one number, or one each of a, b and c; 1 counts elements [byte].
        partial: Bytes of an unfinished sum; that of c's elements by default [byte].

    Returns:
        The nest, whose operands are a, b and c.

    Raises:
        UsageError: A size that is no whole number from 1 on, or a width that is not above 0.

    Example:
        >>> matmul(4096, 4096, 64).sizes
        {'batch': 1, 'm': 4096, 'n': 4096, 'k': 64}
    """
    a, b, c = checked_widths(widths, 3)
    sizes = {"batch": batch, "m": m, "n": n, "k": k}
    for axis, size in sizes.items():
        whole_number(f"matmul: size along {axis}", size)
    _checked_shapes(*sizes.values())
    if partial is not None:
        positive_number("matmul: partial", partial, "bytes")
    return Nest("matmul", sizes, (
        Operand("a", ("batch", "m", "k"), a), Operand("b", ("batch", "k", "n"), b),
        Operand("c", ("batch", "m", "n"), c, "sum", partial),
    ))  # fmt: skip


def matmul_traffic(
    m: Any, n: Any, k: Any, tile: Sequence[Any], *, order: str = "mnk", capacity: Any = None, batch: Any = 1,
    widths: Any = 1, partial: float | None = None,
) -> Traffic:  # fmt: skip
    """Count what a tiled matmul moves between a buffer and the memory behind it.

    Args:
        m: Rows of the result; all sizes and tiles are numbers, or arrays that broadcast.
        n: Columns of it.
        k: Products that are summed in an element.
        tile: Elements of a tile along m, n and k.
        order: Loops from the outermost inwards; ``mnk`` finishes a tile of c before it goes to the next.
        capacity: Of the buffer [byte]; without one it holds one tile of a, b and c.
        batch: Matmuls, each with operands of its own, one after the other.
        widths: Bytes of an element, one number, or one each of a, b and c; 1 counts elements [byte].
        partial: Bytes of an unfinished sum; that of c's elements by default [byte].

    Returns:
        Bytes read and written by operand, and what the buffer holds.

    Raises:
        UsageError: A size or tile that is no whole number from 1 on, or a buffer too small for the tile.

    Example:
        >>> moved = matmul_traffic(4096, 4096, 4096, (128, 128, 64), widths=2)
        >>> float(moved.bytes) / 1e9
        2.18103808
    """
    nest = matmul(m, n, k, batch=batch, widths=widths, partial=partial)
    if not isinstance(tile, Sequence) or isinstance(tile, str) or len(tile) != 3:
        raise UsageError(f"matmul: tile {tile!r}; allowed: three sizes, along m, n and k")
    _checked_shapes(m, n, k, batch, *tile)
    return traffic(nest, dict(zip("mnk", tile, strict=True)), ("batch", *order), capacity)


def _checked_shapes(*values: Any) -> None:
    """Refuse arrays of sizes that do not broadcast."""
    shapes = [np.shape(value) for value in values]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        named = ", ".join(map(str, dict.fromkeys(shapes)))
        raise UsageError(f"matmul: arrays of shapes {named}; allowed: numbers, or arrays that broadcast") from None


def checked_widths(widths: Any, count: int) -> tuple[float, ...]:
    """Return bytes of an element of each of so many operands.

    Raises:
        UsageError: Another number of them, or one that is not above 0.
    """
    each = np.atleast_1d(positive_number("widths", widths, "bytes"))
    if each.shape not in ((1,), (count,)):
        raise UsageError(f"widths: {widths!r}; allowed: one number, or {count}")
    return tuple(float(width) for width in np.broadcast_to(each, (count,)))


def of_operator(op: str, *shapes: Sequence[int], widths: Any = 1, partial: float | None = None, **options: Any) -> Nest:
    """Describe a contraction by its signature: matmuls, convolutions and their gradients, parts of attention.

    A convolution's image is indexed by a window over positions and taps, so that strides, dilation, padding and what
    neighbouring tiles share are counted as they are.

    Args:
        op: Name of an operator of matmuls or convolutions.
        shapes: Of its inputs.
        widths: Bytes of an element, one number, or one for each input and one for the result; 1 counts elements [byte].
        partial: Bytes of an unfinished sum; that of the result's elements by default [byte].
        **options: Of the operator: ``stride``, ``padding``, ``dilation``, ``groups``...

    Returns:
        The nest, whose operands are a, b, further inputs by number, and c, the result.

    Raises:
        UsageError: Another class of operator.
        ShapeError: Shapes that contradict its signature.
        UnknownOp: There is none of that name.

    Example:
        >>> of_operator("conv2d", (1, 64, 56, 56), (128, 64, 3, 3), stride=2, padding=1).sizes["p"]
        28
    """
    what, inputs = get_op(op), [tuple(shape) for shape in shapes]
    _check_windows(op, options)
    if what.signature is None or not is_contraction(what):
        allowed = ", ".join(name for name, each in OPS.items() if is_contraction(each))
        raise UsageError(f"{op}: no contraction with a signature; allowed: {allowed}")
    sizes = what.sizes(inputs, {"groups": 1, **options} if what.kind == "conv" else options)
    return nest_of(what, sizes, options, checked_widths(widths, len(inputs) + 1), partial)


def _check_windows(op: str, options: Mapping[str, Any]) -> None:
    """Refuse options of a convolution that are no whole numbers."""
    for name in {"stride", "dilation", "groups"} & options.keys():
        whole_number(f"{op}: {name}", options[name])
    padding = np.asarray(options.get("padding", 0))
    if padding.dtype.kind not in "iu" or np.any(padding < 0):
        raise UsageError(f"{op}: padding {options['padding']!r}; allowed: whole numbers from 0 on")


def nest_of(
    op: Op, sizes: Mapping[str, Any], options: Mapping[str, Any], widths: Sequence[float], partial: float | None = None
) -> Nest:
    """Describe a contraction by the sizes of its axes; ``widths`` of as many inputs as it has, and of the result."""
    assert op.signature is not None, op.name
    windows, inputs = _windows(op, sizes, options), op.signature.inputs[: len(widths) - 1]
    names = [*("a", "b", *map(str, range(2, len(widths))))[: len(inputs)], "c"]
    operands = []
    for name, axes, width in zip(names, (*inputs, op.signature.outputs[0]), widths, strict=True):
        term = ("batch" if axis == "..." else axis for axis in op.signature.factors(axes))
        role: Role = "sum" if name == "c" else "read"
        dims = tuple(windows.get(axis, axis) for axis in term)
        operands.append(Operand(name, dims, width, role, partial if role == "sum" else None))
    every = dict.fromkeys(axis for operand in operands for axis in sorted(operand.axes))
    return Nest(op.name, {axis: sizes[axis] for axis in every}, tuple(operands))


def is_contraction(op: Op) -> bool:
    """Tell whether all of an operator's products follow from its signature."""
    return op.kind == "conv" or isinstance(op.gemm, str)


def _windows(op: Op, sizes: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Window]:
    """Return the windows of a convolution's image, or of a transposed one's result, by their axes."""
    if op.kind != "conv":
        return {}
    axes = op.fixed.split()
    rank = len(axes) // 3
    image, taps, positions = axes[:rank], axes[rank : 2 * rank], axes[2 * rank :]
    if "transpose" in op.name:  # the input's points are the positions, and what a window covers is the result
        image, positions = positions, image
    points = zip(image, taps, positions, strict=True)
    own = [max(1, round(sizes[of] / sizes[to])) for of, _, to in points]
    strides, gaps = per_axis(options.get("stride", tuple(own)), rank), per_axis(options.get("dilation", 1), rank)
    before = [start for start, _ in paddings(options.get("padding", 0), rank)]
    return {
        of: Window(to, by, int(stride), int(gap), start, int(sizes[of]))
        for of, by, to, stride, gap, start in zip(image, taps, positions, strides, gaps, before, strict=True)
    }


def conv(
    n: int, c: int, image: Sequence[int], o: int, kernel: Sequence[int], *, widths: Any = 1,
    partial: float | None = None, groups: int = 1, **options: Any,
) -> Nest:  # fmt: skip
    """Describe a direct convolution, or the implicit GEMM that it is: positions by channels times taps by filters.

    Args:
        n: Images.
        c: Channels of them.
        image: Their points along each axis.
        o: Filters.
        kernel: Taps of a filter along each axis.
        widths: Bytes of an element, one number, or one each of image, filters and result; 1 counts elements [byte].
        partial: Bytes of an unfinished sum; that of the result's elements by default [byte].
        groups: Groups of channels, each with its share of the filters.
        **options: ``stride``, ``padding``, ``dilation``; a number, or one for each axis.

    Returns:
        The nest, whose operands are the image a, the filters b and the result c.

    Raises:
        UsageError: Another number of axes than one to three.
        ShapeError: Sizes that do not go together.

    Example:
        >>> from roofline.tiling import compulsory
        >>> layer = conv(32, 64, (56, 56), 64, (3, 3), padding=1)
        >>> layer.sizes["p"], int(compulsory(layer))
        (56, 12881920)
    """
    if any(isinstance(each, str) or not isinstance(each, Sequence) for each in (image, kernel)) or not (
        1 <= len(image) == len(kernel) <= 3
    ):
        raise UsageError(f"conv: image {image!r} and kernel {kernel!r}; allowed: one to three axes, of both as many")
    for what, size in (("n", n), ("c", c), ("o", o), ("groups", groups), ("image", image), ("kernel", kernel)):
        whole_number(f"conv: {what}", size)
    if unknown := options.keys() - {"stride", "padding", "dilation"}:
        raise UsageError(f"conv: unknown option {min(unknown)!r}; allowed: stride, padding, dilation, groups")
    if c % groups:
        raise UsageError(f"conv: {c} channels in {groups} groups; allowed: groups of as many channels")
    shapes = (n, c, *image), (o, c // groups, *kernel)
    return of_operator(f"conv{len(image)}d", *shapes, widths=widths, partial=partial,
                       **{"stride": 1, "groups": groups, **options})  # fmt: skip


def im2col(n: int, c: int, image: Sequence[int], o: int, kernel: Sequence[int], **options: Any) -> tuple[Nest, Nest]:
    """Describe a convolution by a materialised copy: what each position sees is written out, then multiplied.

    Args:
        n: Images.
        c: Channels of them.
        image: Their points along each axis.
        o: Filters.
        kernel: Taps of a filter along each axis.
        **options: As for :func:`conv`.

    Returns:
        The copy, which reads the image a and writes the columns, padding among them, and the matmul of columns and
        filters.

    Raises:
        UsageError: As :func:`conv` does.
        ShapeError: As :func:`conv` does.

    Example:
        >>> from roofline.tiling import compulsory
        >>> [int(compulsory(each)) for each in im2col(32, 64, (56, 56), 64, (3, 3), padding=1)]
        [64225280, 64262144]
    """
    direct = conv(n, c, image, o, kernel, **options)
    pixels, filters, result = direct.operands
    seen = {axis: size for axis, size in direct.sizes.items() if axis in pixels.axes}
    columns = Operand("columns", tuple(seen), pixels.width)
    return (
        Nest("im2col", seen, (pixels, replace(columns, role="write"))),
        Nest("im2col matmul", direct.sizes, (columns, filters, result)),
    )


def attention(
    q: int, k: int, d: int, *, heads: int = 1, kv_heads: int | None = None, batch: int = 1, value: int | None = None,
    causal: bool = False, window: int = 0, width: float = 2.0, scores: float = 4.0, partial: float = 4.0,
) -> Nest:  # fmt: skip
    """Describe flash attention: tiles of queries and keys whose scores never leave the buffer.

    With queries outside, as FlashAttention-2 walks (https://arxiv.org/abs/2307.08691), the output is written once and
    keys and values are read for every tile of queries; with keys outside (https://arxiv.org/abs/2205.14135) the output
    and the running statistics of its rows come and go. A tile that a causal mask hides as a whole is skipped.

    Args:
        q: Queries.
        k: Keys, of which the last stands at the last query.
        d: Elements of a query and of a key.
        heads: Heads of the queries.
        kv_heads: Heads of keys and values; as many by default.
        batch: Sequences.
        value: Elements of a value; d by default.
        causal: Whether a query sees no later key.
        window: Keys that a query sees at most under a causal mask; 0 for all.
        width: Bytes of an element of all four [byte].
        scores: Bytes of a score in the buffer [byte].
        partial: Bytes of an element of an unfinished output [byte].

    Returns:
        The nest, with axes batch, g (heads of keys), r (heads of queries to each), q and k.

    Raises:
        UsageError: A size that is no whole number from 1 on, heads that do not divide, or a window without a mask.

    Example:
        >>> from roofline.tiling import traffic
        >>> moved = traffic(attention(4096, 4096, 128, heads=32), {"batch": 1, "g": 1, "q": 128, "k": 128}, "gqk")
        >>> int(moved.read["k"]) == 32 * 32 * 4096 * 128 * 2
        True
    """
    groups, value = heads if kv_heads is None else kv_heads, d if value is None else value
    for what, size in (("q", q), ("k", k), ("d", d), ("heads", heads), ("kv_heads", groups), ("batch", batch),
                       ("value", value)):  # fmt: skip
        whole_number(f"attention: {what}", size)
    for what, bytes_each in (("width", width), ("scores", scores), ("partial", partial)):
        positive_number(f"attention: {what}", bytes_each, "bytes")
    if heads % groups:
        raise UsageError(f"attention: {heads} heads and kv_heads={groups}; allowed: a number that divides the heads")
    if not isinstance(causal, bool | np.bool_):
        raise UsageError(f"attention: causal={causal!r}; allowed: True or False")
    if window:
        whole_number("attention: window", window)
    if window and not causal:
        raise UsageError(f"attention: window={window} without a mask; allowed: with causal=True, or 0")
    rows, columns = ("batch", "g", "r", "q"), ("batch", "g", "k")
    operands = (
        Operand("q", rows, d * width), Operand("k", columns, d * width), Operand("v", columns, value * width),
        Operand("o", rows, value * width, "sum", value * partial),
        Operand("statistics", rows, 0.0, "sum", STATISTICS),
        Operand("scores", (*rows, "k"), scores, "local"),
    )  # fmt: skip
    band = Band("q", "k", k - q, window or float("inf")) if causal else None
    return Nest("attention", {"batch": batch, "g": groups, "r": heads // groups, "q": q, "k": k}, operands, band)


def rowwise(rows: int, columns: int, *, passes: int = 2, widths: Any = 1) -> Nest:
    """Describe an operator along rows, such as a softmax or a norm: some passes over a row, and one result each.

    A row that the buffer holds as a whole is read once, else once a pass.

    Args:
        rows: Of the operand.
        columns: Elements of a row.
        passes: Times that a row is looked at: two for a norm, and for a softmax with a running maximum and sum.
        widths: Bytes of an element, one number, or one each of operand and result; 1 counts elements [byte].

    Returns:
        The nest, with operands x and y.

    Raises:
        UsageError: A size that is no whole number from 1 on.

    Example:
        >>> from roofline.tiling import traffic
        >>> long = rowwise(1024, 65536)
        >>> [int(traffic(long, {"row": 1, "column": size}).bytes) // 2**26 for size in (65536, 8192)]
        [2, 3]
    """
    x, y = checked_widths(widths, 2)
    sizes = {"row": rows, "pass": passes, "column": columns}
    for axis, size in sizes.items():
        whole_number(f"rowwise: size along {axis}", size)
    operands = Operand("x", ("row", "column"), x), Operand("y", ("row", "column"), y, "write")
    return Nest("rowwise", sizes, operands, order=tuple(sizes), single=("pass",))


def reduction(results: int, summed: int, *, widths: Any = 1, partial: float | None = None) -> Nest:
    """Describe a sum over one axis.

    Args:
        results: Elements of the result.
        summed: Elements that each of them adds up.
        widths: Bytes of an element, one number, or one each of operand and result; 1 counts elements [byte].
        partial: Bytes of an unfinished sum; that of the result's elements by default [byte].

    Returns:
        The nest, with operands x and y, and axes result and summed.

    Raises:
        UsageError: A size that is no whole number from 1 on.

    Example:
        >>> from roofline.tiling import compulsory
        >>> int(compulsory(reduction(1000, 64)))
        65000
    """
    x, y = checked_widths(widths, 2)
    sizes = {"result": results, "summed": summed}
    for axis, size in sizes.items():
        whole_number(f"reduction: size along {axis}", size)
    return Nest(
        "reduction", sizes, (Operand("x", ("result", "summed"), x), Operand("y", ("result",), y, "sum", partial))
    )
