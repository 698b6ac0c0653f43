"""Moving and looking: views are free, a transpose is a kernel unless a matmul reads it as it lies.

Reshapes keep the storage. Slices, splits and expansions are read where they lie, as compilers do and runtimes try to.
A transpose of a constant is done when the program is loaded, and one of the last two axes that only matmuls
read is theirs to undo; any other writes the array out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from roofline.frontends import emit
from roofline.frontends.call import with_options
from roofline.frontends.onnx.known import UNKNOWN, Value
from roofline.frontends.onnx.walk import Call, Result, Rule, Undetermined
from roofline.ir.errors import ShapeError
from roofline.ir.sizes import Dim, Size, ceil_div, prod, quotient
from roofline.ops.registry import broadcast

_MATMULS = frozenset({"MatMul", "Gemm", "FusedMatMul", "TransposeMatMul", "MatMulInteger"})
#: A bound beyond this means "to the end".
_END = 2**31 - 1


def _reshape(call: Call) -> Result:
    shape, data = call.shape(), call.data(1)
    target = call.attr("shape") if data is None else list(data.reshape(-1))
    copies = not call.attr("allowzero", 0)
    sizes: list[Any] = [shape[at] if copies and size == 0 else size for at, size in enumerate(target or [])]
    unknown = [at for at, size in enumerate(sizes) if size is UNKNOWN]
    if len(unknown) == 1 and -1 not in sizes:
        sizes[unknown[0]] = -1
    elif unknown or target is None:
        try:
            return call.view(call.tensor(), call.declared())
        except ShapeError:
            raise Undetermined(f"{call.name}: its target depends on values known only at run time") from None
    return call.view(call.tensor(), emit.fill_in(shape, sizes, call.name))


def _flattened(call: Call, shape: Sequence[Size]) -> list[Size]:
    at = call.number("axis", 1)
    at = at + len(shape) if at < 0 else at
    return [prod(shape[:at]), prod(shape[at:])]


def _squeezed(call: Call, shape: Sequence[Size]) -> list[Size]:
    axes = call.integers(1, "axes")
    gone = {axis % max(len(shape), 1) for axis in axes} if axes else {at for at, n in enumerate(shape) if n == 1}
    return [size for at, size in enumerate(shape) if at not in gone]


def _unsqueezed(call: Call, shape: Sequence[Size]) -> list[Size]:
    sizes, axes = list(shape), call.integers(1, "axes") or []
    for axis in sorted(axis % (len(shape) + len(axes)) for axis in axes):
        sizes.insert(axis, 1)
    return sizes


#: The shape under which an operator looks at what is there.
LOOKS: dict[str, Callable[[Call, Sequence[Size]], list[Size]]] = {
    "Flatten": _flattened, "Squeeze": _squeezed, "Unsqueeze": _unsqueezed,
}  # fmt: skip


def _transpose(call: Call) -> Result:
    shape, x = call.shape(0), call.tensor(0)
    rank = len(shape)
    axes = [axis % rank for axis in call.attr("perm") or range(rank)[::-1]]
    if sorted(axes) != list(range(rank)):
        raise ShapeError(f"{call.name}: perm {axes} is no order of {rank} axes")
    moved = [axis for axis in axes if shape[axis] != 1]
    if moved == sorted(moved):
        return call.view(x, [shape[axis] for axis in axes])
    last = axes[:-2] == list(range(rank - 2))
    readers = set(call.walk.readers(call.outputs[0]))
    if call.value(0).const or (last and readers <= _MATMULS):
        return call.permute(x, axes)
    return call.op("transpose_copy", x) if last else call.rearrange([shape[axis] for axis in axes], x)


def bounds(size: Size, start: Any, end: Any, step: Any) -> Any:
    """Return how many elements a slice of one axis has.

    Raises:
        Undetermined: They depend on values, or on which of two symbolic sizes is larger.
    """
    if UNKNOWN in (start, end) or not isinstance(step, int) or step == 0:
        raise Undetermined("a bound depends on values known only at run time")
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(size)[start:end:step])
    if step < 0:
        if isinstance(start, int) and isinstance(end, int) and (start == -1 or start >= _END) and end < -_END:
            return ceil_div(size, -step)
        raise Undetermined("a backward slice of part of a symbolic size")
    length = _bound(size, end) - _bound(size, start)
    return length if step == 1 else ceil_div(length, step)


def _bound(size: Size, bound: Any) -> Any:
    if not isinstance(bound, int):
        # A bound such as S - 512 of S: the part that is left can never be less than nothing.
        negative = isinstance(bound, Dim) and all(factor < 0 for _, factor in bound.terms)
        return size + bound if negative else bound
    if bound >= _END:
        return size
    if bound < -_END:
        return 0
    return size + bound if bound < 0 else bound


def _raw(call: Call, at: int, name: str) -> list[Any] | None:
    data = call.data(at)
    return list(call.attrs[name]) if name in call.attrs else None if data is None else list(data.reshape(-1))


def _slice(call: Call) -> Result:
    shape = list(call.shape())
    starts, stops, axes, steps = (
        _raw(call, at, name) for at, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    )
    if starts is None or stops is None:
        return call.part(call.tensor(), call.declared())
    axes = axes or list(range(len(starts)))
    try:
        for start, stop, axis, step in zip(starts, stops, axes, steps or [1] * len(axes), strict=True):
            shape[axis] = bounds(shape[axis], start, stop, step)
    except Undetermined:
        return call.part(call.tensor(), call.declared())
    return call.part(call.tensor(), shape)


def _split(call: Call) -> Result:
    shape = call.shape(0)
    axis = call.axis(0, len(shape))
    sizes = call.sizes(1, "split")
    if sizes is None:
        count = len(call.outputs)
        each = ceil_div(shape[axis], count)
        exact = quotient(shape[axis], count)
        each = each if exact is None else exact
        sizes = [each] * (count - 1) + [shape[axis] - each * (count - 1)]
    x = call.tensor(0)
    return [call.part(x, (*shape[:axis], size, *shape[axis + 1 :]), f"part_{at}") for at, size in enumerate(sizes)]


def _concat(call: Call) -> Result:
    rank = len(call.shape(0))
    axis = call.axis(0, rank)
    full = [at for at in range(len(call.inputs)) if call.has(at) and call.shape(at)[axis] != 0]
    return call.value(full[0]) if len(full) == 1 else call.op("cat", *call.tensors(*full), axis=axis)


def _gather(call: Call) -> Result:
    data, index = call.shape(0), call.shape(1)
    axis = call.axis(0, len(data))
    shape = (*data[:axis], *index, *data[axis + 1 :])
    if call.data(1) is not None and not index:  # one row, at a place that the file says
        part = call.part(call.tensor(0), (*data[:axis], 1, *data[axis + 1 :]))
        return call.view(part, shape)
    if axis == 0 and len(data) in (1, 2):
        return call.op("embedding" if len(data) == 2 else "gather", call.tensor(0), call.tensor(1))
    return call.op("take", call.tensor(0), call.tensor(1), shape=shape)


def _gather_nd(call: Call) -> Result:
    data, index, batch = call.shape(), call.shape(1), call.number("batch_dims", 0)
    if not isinstance(index[-1], int):
        raise Undetermined("the depth of the indices is symbolic")
    return call.op("take", call.tensor(0), call.tensor(1), shape=(*index[:-1], *data[batch + index[-1] :]))


def _scatter(call: Call) -> Result:
    flops = 1 if call.attr("reduction", "none") in ("add", "mul") else 0
    return call.op("put", call.tensor(0), call.tensor(2), call.tensor(1), flops=flops)


def _pad(call: Call) -> Result:
    shape, pads = list(call.shape(0)), call.sizes(1, "pads") or []
    axes = call.integers(3) or list(range(len(shape)))
    for at, axis in enumerate(axes):
        shape[axis] = shape[axis] + pads[at] + pads[at + len(axes)]
    return call.value(0) if tuple(shape) == call.shape(0) else call.rearrange(shape, call.tensor(0))


def _fill(call: Call) -> Result:
    """One value everywhere: a constant of the file where the shape is one, else written in each run."""
    shape = tuple(call.sizes(0) or [])
    if all(isinstance(size, int) for size in shape):
        return Value(call.outputs[0], shape, call.dtype, const=True, kind="buffer")
    return call.rearrange(shape)


def _range(call: Call) -> Result:
    ends: list[Any] = [UNKNOWN if (data := call.data(at)) is None else data.reshape(-1)[0] for at in range(3)]
    start, end, step = ends
    if UNKNOWN in ends or not isinstance(step, int) or step == 0:
        return call.rearrange(call.declared())
    return call.rearrange([end - start if step == 1 else ceil_div(end - start, step)])


def _one_hot(call: Call) -> Result:
    depth = call.sizes(1) or [1]
    shape = list(call.shape(0))
    at = call.number("axis", -1)
    shape.insert(at if at >= 0 else at + len(shape) + 1, depth[0])
    return call.rearrange(shape, call.tensor(0))


@with_options
def _blocks(call: Call, deeper: bool) -> Result:
    n, c, h, w = call.shape(0)
    side = call.number("blocksize")
    if deeper:
        return call.rearrange((n, c * side * side, h // side, w // side), call.tensor(0))
    return call.rearrange((n, c // (side * side), h * side, w * side), call.tensor(0))


#: Operations for each output element of an interpolation by how many axes it runs over: a linear one mixes two
#: neighbours (subtract, multiply, add) along each axis in turn, a cubic one four (four products, three sums).
_MIXING = {"linear": lambda axes: 3 * (2**axes - 1), "cubic": lambda axes: 7 * (4**axes - 1) // 3}


def _resize(call: Call) -> Result:
    shape = call.shape(0)
    target = _resized(call, shape)
    axes = sum(before != after for before, after in zip(shape, target, strict=True))
    cost: Callable[[int], int] | None = _MIXING.get(str(call.attr("mode", "nearest")))
    if cost is None or not axes:
        return call.rearrange(target, call.tensor(0))
    with call.b.kernel(call.name):
        return call.op("elementwise", call.rearrange(target, call.tensor(0), part="taps"), flops=cost(axes))


def _resized(call: Call, shape: tuple[Size, ...]) -> list[Size]:
    axes = call.attr("axes") or list(range(len(shape)))
    scales = None if call.what == "Resize" and call.version < 11 else 2
    at = 1 if scales is None or call.what.endswith("Upsample") else 2
    sizes = call.sizes(3) if call.has(3) and call.shape(3) != (0,) else None
    target = list(shape)
    if sizes is None:
        factors = call.sizes(at, "scales")
        if not factors:
            return list(call.declared())
        sizes = [_scaled(shape[axis], factor) for axis, factor in zip(axes, factors, strict=True)]
    for axis, size in zip(axes, sizes, strict=True):
        target[axis] = size
    return target


def _scaled(size: Size, factor: Any) -> Size:
    exact = Fraction(factor).limit_denominator(10**6)
    times = size * exact.numerator
    return times if exact.denominator == 1 else times // exact.denominator


def _affine_grid(call: Call) -> Result:
    size = call.sizes(1) or []
    return call.rearrange((size[0], *size[2:], len(size) - 2), call.tensor())


def _compress(call: Call) -> Result:
    """Operators whose result is as large as values say."""
    inputs = call.tensors()
    outputs = [at for at in range(len(call.outputs)) if at == 0 or call.is_read(at)]
    first = call.rearrange(call.declared(), *inputs)
    rest = {at: call.rearrange(call.declared(at), first, dtype="int64", part=f"result_{at}") for at in outputs[1:]}
    return [first, *(rest.get(at) for at in range(1, len(call.outputs)))]


def _grid_sample(call: Call) -> Result:
    images, grid = call.shape(0), call.shape(1)
    shape = (*images[:2], *grid[1:-1])
    cost = 0 if call.attr("mode", "linear") == "nearest" else 3 * (2 ** (len(grid) - 2) - 1)
    with call.b.kernel(call.name):
        taken = call.op("take", call.tensor(0), call.tensor(1), shape=shape, name=f"{call.name}.taps")
        return call.op("elementwise", taken, flops=cost)


#: Operators that look at what is there in another way.
VIEWS = frozenset({
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Transpose", "Slice", "Split", "Identity",
})  # fmt: skip

#: Operators whose result nothing in memory decides.
FILLS = frozenset({
    "ConstantOfShape", "EyeLike", "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli",
    "Range",
})  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(LOOKS, lambda call: call.view(call.tensor(), LOOKS[call.what](call, call.shape()))),
    "Reshape": _reshape,
    "Tile": lambda call: call.rearrange(
        [size * times for size, times in zip(call.shape(), call.sizes(1) or [], strict=True)], call.tensor()),
    "Expand": lambda call: call.expand(call.tensor(), broadcast([call.shape(), tuple(call.sizes(1) or ())])),
    "Transpose": _transpose, "Slice": _slice, "Split": _split, "Concat": _concat, "Gather": _gather,
    "GatherND": _gather_nd, "ScatterND": _scatter, "ScatterElements": _scatter, "Scatter": _scatter, "Pad": _pad,
    "GatherElements": lambda call: call.op("take", call.tensor(0), call.tensor(1), shape=call.shape(1)),
    "ConstantOfShape": _fill, "Range": _range, "OneHot": _one_hot, "Resize": _resize, "Upsample": _resize,
    "DepthToSpace": _blocks(False), "SpaceToDepth": _blocks(True), "GridSample": _grid_sample,
    "AffineGrid": _affine_grid,
    # New positions into a cache, in place.
    "TensorScatter": lambda call: call.op("put", call.tensor(0), call.tensor(1), *call.tensors(2)),
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow"),
                    lambda call: call.rearrange(call.sizes(0) or [])),
    "BitCast": lambda call: call.op("elementwise", call.tensor(), flops=0),
    "ReverseSequence": lambda call: call.rearrange(call.shape(), call.tensor()),
    **dict.fromkeys(FILLS - {"ConstantOfShape", "Range"}, lambda call: call.rearrange(
        call.attr("shape") if call.attr("shape") is not None else call.shape())),
    **dict.fromkeys(("NonZero", "Compress", "NonMaxSuppression", "Unique"), _compress),
}  # fmt: skip
