"""The operator registry: every formula, once.

An operator is one function of the sizes that its signature binds and of its options. It returns :class:`Work`:
``flops`` are the contractions (matmul, convolution, attention) at two per multiply-add, which is what model cards,
MFU and :class:`torch.utils.flop_counter.FlopCounterMode` count; ``vector`` is the other floating-point arithmetic
(norms, softmax, activations), kept apart because it runs on other units. Comparisons and moves count nothing.
Bytes are not counted here: they belong to the boundaries of kernels (:mod:`roofline.count`); an operator only says
where it touches less than a whole tensor (``reads``, ``writes``).

The same body takes integers, arrays and symbolic sizes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any, Literal

from roofline.errors import ShapeError, UnknownOp, did_you_mean
from roofline.graph import Node
from roofline.signature import Shape, Signature, signature
from roofline.sizes import ceil_div, distinct, minimum, prod
from roofline.units import MAC

#: What a kernel made of the operator is like, which decides how it fuses and which ceiling it meets.
OpKind = Literal[
    "matmul", "conv", "attention", "moe", "pointwise", "rowwise", "reduction", "move", "network", "transfer", "view"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Work:
    """What one call of an operator does.

    Attributes:
        flops: Contraction FLOPs, two a multiply-add.
        vector: Other floating-point operations.
        reads: Elements touched of an input, by position, where that is not the whole tensor.
        writes: Elements written, where that is not the whole output.
    """

    flops: Any = 0
    vector: Any = 0
    reads: Mapping[int, Any] = field(default_factory=dict)
    writes: Any = None


@dataclass(frozen=True, slots=True)
class Op:
    """A registered operator."""

    name: str
    kind: OpKind
    signature: Signature | None
    formula: Callable[..., Work]
    derive: Callable[..., dict[str, Any]] | None
    shape: Callable[..., Shape] | None
    alias: int | None
    doc: str

    def sizes(self, shapes: Sequence[Shape], attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Bind input shapes, then add the sizes that options derive (a convolution's output height)."""
        if self.signature is None:
            return {"shapes": tuple(shapes), "batch": prod(self.output(shapes, attrs))}
        sizes = self.signature.bind(shapes)
        if self.derive is not None:
            sizes.update(_apply(self.derive, {**sizes, **attrs}))
        return sizes

    def output(self, shapes: Sequence[Shape], attrs: Mapping[str, Any]) -> Shape:
        """The shape of the output.

        Raises:
            ShapeError: The inputs contradict the signature.
        """
        if self.signature is None:
            assert self.shape is not None
            found: Shape = _apply(self.shape, {"shapes": tuple(shapes), **attrs})
            return found
        return self.signature.shapes(self.sizes(shapes, attrs))[0]

    def work(self, shapes: Sequence[Shape], attrs: Mapping[str, Any]) -> Work:
        """Evaluate the formula on shapes and options."""
        result: Work = _apply(self.formula, {**attrs, **self.sizes(shapes, attrs)})
        return result


def _apply(function: Callable[..., Any], known: Mapping[str, Any]) -> Any:
    wanted, required = _parameters(function)
    missing = [name for name in required if name not in known]
    if missing:
        raise ShapeError(f"needs the option {missing[0]!r}")
    return function(**{name: known[name] for name in wanted if name in known})


@cache
def _parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a function's parameters: all, and those without a default."""
    known = inspect.signature(function).parameters
    return tuple(known), tuple(name for name, p in known.items() if p.default is p.empty)


#: All operators by name.
OPS: dict[str, Op] = {}


def op(
    name: str,
    axes: str | None,
    kind: OpKind,
    *,
    derive: Callable[..., dict[str, Any]] | None = None,
    shape: Callable[..., Shape] | None = None,
    alias: int | None = None,
) -> Callable[[Callable[..., Work]], Callable[..., Work]]:
    """Register an operator.

    Args:
        name: What nodes call it.
        axes: Its signature, or ``None`` where ``shape`` gives the output shape instead.
        kind: Its class.
        derive: Sizes that follow from sizes and options.
        shape: The output shape from input shapes and options.
        alias: The input whose storage the output shares (views, in-place updates).
    """

    def register(formula: Callable[..., Work]) -> Callable[..., Work]:
        parsed = signature(axes) if axes is not None else None
        OPS[name] = Op(name, kind, parsed, formula, derive, shape, alias, inspect.getdoc(formula) or "")
        return formula

    return register


def get_op(name: str, where: str = "") -> Op:
    """Look up an operator.

    Raises:
        UnknownOp: Names the node and the nearest operators.
    """
    if name not in OPS:
        place = f"{where}: " if where else ""
        raise UnknownOp(f"{place}unknown operator {name!r}" + (did_you_mean(name, OPS) or f"; known: {', '.join(OPS)}"))
    return OPS[name]


def node_work(node: Node, shapes: Sequence[Shape]) -> Work:
    """The work of a node, with its name in any error.

    Raises:
        ShapeError: The shapes contradict the operator.
        UnknownOp: The operator is not registered.
    """
    try:
        return get_op(node.op, node.name).work(shapes, dict(node.attrs))
    except ShapeError as error:
        raise ShapeError(f"{node.name}: {node.op} {error}") from None


# --- contractions ---------------------------------------------------------------------------------------------------


@op("linear", "... k, n k, [n] -> ... n", "matmul")
def linear(batch: Any, k: Any, n: Any) -> Work:
    """``x W^T + b``; the bias starts the accumulator and costs nothing."""
    return Work(flops=MAC * batch * k * n)


@op("matmul", "... m k, k n, [n] -> ... m n", "matmul")
def matmul(batch: Any, m: Any, k: Any, n: Any) -> Work:
    """``a @ b`` with one right-hand matrix."""
    return Work(flops=MAC * batch * m * k * n)


@op("bmm", "... m k, ... k n -> ... m n", "matmul")
def bmm(batch: Any, m: Any, k: Any, n: Any) -> Work:
    """``a @ b`` with both operands batched."""
    return Work(flops=MAC * batch * m * k * n)


@op("expert_linear", "t k, e n k, [e n] -> t n", "matmul")
def expert_linear(t: Any, k: Any, e: Any, n: Any, top_k: int) -> Work:
    """One matmul for each routed token; reads the experts that at least one token picked.

    ``t`` counts (token, expert) pairs, so ``t / top_k`` tokens draw ``top_k`` of ``e`` experts each. With uniform
    routing they touch ``E (1 - (1 - k/E)^T)`` distinct ones.
    """
    touched = distinct(e, top_k, _ratio(t, top_k)) * n
    return Work(flops=MAC * t * k * n, reads={1: touched * k, 2: touched})


def routing_exponent(distribution: str) -> float:
    """The exponent of a routing such as ``power_law_1.2``; 0 for ``balanced`` and ``uniform``.

    Raises:
        ShapeError: None of these.

    Example:
        >>> routing_exponent("power_law_1.2"), routing_exponent("balanced")
        (1.2, 0.0)
    """
    if distribution in ("balanced", "uniform"):
        return 0.0
    head, _, tail = distribution.rpartition("_")
    found = float(tail) if head == "power_law" and tail.replace(".", "", 1).isdecimal() else 0.0
    if not 0 < found < 10:
        raise ShapeError(f"distribution {distribution!r}; allowed: balanced, uniform, power_law_X with 0 < X < 10")
    return found


def _moe_sizes(top_k: Any, ranks: Any) -> dict[str, Any]:
    return {"picks": top_k, "ranks": ranks}


@op("moe", "t h, e u h, e h i -> t h", "moe", derive=_moe_sizes)
def moe(t: Any, h: Any, e: Any, u: Any, i: Any, picks: Any, ranks: Any, distribution: str = "uniform") -> Work:
    """The experts of one of ``ranks`` ranks, for ``t`` tokens of all ranks that choose ``picks`` experts each.

    Counts what a rank gets on average: every one as many (token, expert) pairs. Read are the experts that at least one
    token chose: evenly routed all that there are pairs for, at random ``E (1 - (1 - k/E)^T)``, and at least half of
    that where some experts are more popular. The time model works out the busiest rank.
    """
    pairs = ceil_div(t * picks, ranks)
    touched = ceil_div(distinct(e * ranks, picks, t), ranks)
    if distribution == "balanced":
        touched = minimum(e, pairs)
    elif distribution != "uniform":
        touched = touched * Fraction(1, 2)
    return Work(flops=MAC * pairs * h * (u + i), reads={1: touched * u * h, 2: touched * h * i})


def _ratio(a: Any, b: int) -> Any:
    return a // b if isinstance(a, int) and a % b == 0 else a / b


def _pair(value: Any) -> tuple[int, int]:
    return (value[0], value[1]) if isinstance(value, tuple | list) else (value, value)


def _window(size: Any, kernel: Any, stride: int, padding: int, dilation: int = 1) -> Any:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _conv_sizes(
    c: Any, h: Any, w: Any, o: Any, i: Any, r: Any, s: Any,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> dict[str, Any]:  # fmt: skip
    if c != i * groups or (isinstance(o, int) and o % groups):
        raise ShapeError(f"has {c} input and {o} output channels but a kernel for {i} in {groups} groups")
    (sh, sw), (ph, pw), (dh, dw) = _pair(stride), _pair(padding), _pair(dilation)
    return {"p": _positive(_window(h, r, sh, ph, dh)), "q": _positive(_window(w, s, sw, pw, dw))}


def _positive(size: Any) -> Any:
    if isinstance(size, int) and size < 1:
        raise ShapeError("has a kernel larger than its padded input")
    return size


@op("conv2d", "n c h w, o i r s, [o] -> n o p q", "conv", derive=_conv_sizes)
def conv2d(n: Any, o: Any, p: Any, q: Any, i: Any, r: Any, s: Any) -> Work:
    """Direct convolution: every output point sums ``i*r*s`` products (groups are in ``i``)."""
    return Work(flops=MAC * n * o * p * q * i * r * s)


def _transposed_sizes(
    h: Any,
    w: Any,
    o: Any,
    r: Any,
    s: Any,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
) -> dict[str, Any]:
    (sh, sw), (ph, pw), (oh, ow) = _pair(stride), _pair(padding), _pair(output_padding)
    p, q = (h - 1) * sh - 2 * ph + r + oh, (w - 1) * sw - 2 * pw + s + ow
    return {"f": o * groups, "p": _positive(p), "q": _positive(q)}


@op("conv_transpose2d", "n c h w, c o r s, [f] -> n f p q", "conv", derive=_transposed_sizes)
def conv_transpose2d(n: Any, c: Any, h: Any, w: Any, o: Any, r: Any, s: Any) -> Work:
    """Transposed convolution: every *input* point spreads ``o*r*s`` products."""
    return Work(flops=MAC * n * c * h * w * o * r * s)


def _conv1d_sizes(c: Any, x: Any, i: Any, r: Any, stride: int = 1, padding: int = 0, groups: int = 1) -> dict[str, Any]:
    if c != i * groups:
        raise ShapeError(f"has {c} input channels but a kernel for {i} in {groups} groups")
    return {"p": _positive(_window(x, r, stride, padding))}


@op("conv1d", "n c x, o i r, [o] -> n o p", "conv", derive=_conv1d_sizes)
def conv1d(n: Any, o: Any, p: Any, i: Any, r: Any) -> Work:
    """One-dimensional convolution."""
    return Work(flops=MAC * n * o * p * i * r)


# --- attention, as its parts ----------------------------------------------------------------------------------------


def attended(q: Any, k: Any, causal: bool, window: int) -> Any:
    """Query-key pairs that a mask leaves, for ``q`` queries against the last of ``k`` keys.

    Causal: query ``i`` sees ``k - q + 1 + i`` keys, at most ``window`` of them; ``window`` 0 means no limit. Of more
    queries than keys, the first see none.

    Example:
        >>> attended(4, 4, True, 0), attended(4, 4, False, 0), attended(4, 4, True, 2), attended(1, 9, True, 4)
        (10, 16, 7, 4)
    """
    if causal:
        q = minimum(q, k)
    if not window:
        return q * k - (q * (q - 1) // 2 if isinstance(q, int) else q * (q - 1) / 2) if causal else q * k
    if not causal:
        return q * minimum(k, window)
    return _capped_sum(k, window) - _capped_sum(k - q, window)


def _capped_sum(count: Any, window: int) -> Any:
    ramp = minimum(count, window)
    triangle = ramp * (ramp + 1)
    return (triangle // 2 if isinstance(triangle, int) else triangle / 2) + (count - ramp) * window


def _grouped(h: Any, g: Any) -> dict[str, Any]:
    if isinstance(h, int) and isinstance(g, int) and h % g:
        raise ShapeError(f"has {h} query heads, which is no multiple of {g} key-value heads")
    return {}


@op("attention_scores", "b h q d, b g k d -> b h q k", "attention", derive=_grouped)
def attention_scores(b: Any, h: Any, g: Any, q: Any, k: Any, d: Any, causal: bool = False, window: int = 0) -> Work:
    """``Q K^T`` by query head; grouped key heads are read once each, and a window only reads its own keys."""
    return Work(flops=MAC * b * h * attended(q, k, causal, window) * d, reads=_keys_read(b, g, q, k, d, window))


@op("attention_softmax", "b h q k, [h] -> b h q k", "rowwise")
def attention_softmax(b: Any, h: Any, q: Any, k: Any, causal: bool = False, window: int = 0) -> Work:
    """Scaled softmax over the keys that the mask leaves, five operations each; ``[h]`` are learned sinks, free."""
    return Work(vector=SOFTMAX_FLOPS * b * h * attended(q, k, causal, window))


@op("attention_values", "b h q k, b g k d -> b h q d", "attention", derive=_grouped)
def attention_values(b: Any, h: Any, g: Any, q: Any, k: Any, d: Any, causal: bool = False, window: int = 0) -> Work:
    """Probabilities times values."""
    return Work(flops=MAC * b * h * attended(q, k, causal, window) * d, reads=_keys_read(b, g, q, k, d, window))


def _keys_read(b: Any, g: Any, q: Any, k: Any, d: Any, window: int) -> dict[int, Any]:
    return {1: b * g * minimum(k, q + window - 1) * d} if window else {}


# --- elementwise ----------------------------------------------------------------------------------------------------


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape that arrays broadcast to, by numpy's rules.

    Raises:
        ShapeError: Two sizes differ and neither is 1.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Any] = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, start=rank - len(shape)):
            if result[axis] == 1:
                result[axis] = size
            elif size not in (1, result[axis]):
                raise ShapeError(f"cannot broadcast {size} against {result[axis]} on axis {axis}")
    return tuple(result)


#: Floating-point operations of one output element; a transcendental counts one, a comparison or a move none.
POINTWISE: dict[str, int] = {
    "add": 1, "sub": 1, "mul": 1, "div": 1, "neg": 1, "mul_scalar": 1, "add_scalar": 1, "bias_add": 1,
    "square": 1, "sqrt": 1, "rsqrt": 1, "exp": 1, "log": 1, "tanh": 1, "pow": 1, "reciprocal": 1, "cos": 1, "sin": 1,
    "erf": 1, "softcap": 3, "sigmoid": 3, "silu": 4, "gelu": 5, "gelu_tanh": 9, "quick_gelu": 5, "softplus": 3,
    "mish": 5, "hardswish": 4, "hardsigmoid": 3, "where": 0, "mask": 0, "relu": 0, "relu6": 0, "clamp": 0, "abs": 0,
    "maximum": 0, "minimum": 0, "copy": 0, "cast": 0, "dropout": 1, "identity": 0,
}  # fmt: skip


def _register_pointwise(name: str, cost: int) -> None:
    def formula(batch: Any) -> Work:
        return Work(vector=cost * batch)

    formula.__doc__ = f"Elementwise {name} with broadcasting, {cost} FLOP an element."
    op(name, None, "pointwise", shape=lambda shapes: broadcast(shapes))(formula)


for _name, _cost in POINTWISE.items():
    _register_pointwise(_name, _cost)


@op("elementwise", None, "pointwise", shape=lambda shapes: broadcast(shapes))
def elementwise(batch: Any, flops: int = 1) -> Work:
    """Any elementwise function, ``flops`` operations an element."""
    return Work(vector=flops * batch)


@op("fill", None, "pointwise", shape=lambda shapes, shape: tuple(shape))
def fill() -> Work:
    """Write a constant."""
    return Work()


# --- along an axis --------------------------------------------------------------------------------------------------

#: Maximum excluded: subtract, exponential, sum, divide, and the scale before it (Yuan et al. 2024 count the same 5).
SOFTMAX_FLOPS = 5
#: Mean, centre, square, sum, normalise, scale, shift (the 7 of Yuan et al. 2024).
LAYERNORM_FLOPS = 7
#: Square, sum, normalise, scale.
RMSNORM_FLOPS = 4


@op("softmax", "... c -> ... c", "rowwise")
def softmax(batch: Any, c: Any) -> Work:
    """Softmax along the last axis."""
    return Work(vector=SOFTMAX_FLOPS * batch * c)


@op("layernorm", "... c, [c], [c] -> ... c", "rowwise")
def layernorm(batch: Any, c: Any) -> Work:
    """Layer normalisation along the last axis."""
    return Work(vector=LAYERNORM_FLOPS * batch * c)


@op("rmsnorm", "... c, [c] -> ... c", "rowwise")
def rmsnorm(batch: Any, c: Any) -> Work:
    """Root-mean-square normalisation along the last axis."""
    return Work(vector=RMSNORM_FLOPS * batch * c)


@op("groupnorm", "n c h w, [c], [c] -> n c h w", "rowwise")
def groupnorm(n: Any, c: Any, h: Any, w: Any) -> Work:
    """Group normalisation of an image."""
    return Work(vector=LAYERNORM_FLOPS * n * c * h * w)


@op("layernorm2d", "n c h w, [c], [c] -> n c h w", "rowwise")
def layernorm2d(n: Any, c: Any, h: Any, w: Any) -> Work:
    """Layer normalisation over the channels of an image."""
    return Work(vector=LAYERNORM_FLOPS * n * c * h * w)


@op("batchnorm2d", "n c h w, [c], [c], [c], [c] -> n c h w", "pointwise")
def batchnorm2d(n: Any, c: Any, h: Any, w: Any) -> Work:
    """Batch normalisation at inference: one scale and one shift an element."""
    return Work(vector=2 * n * c * h * w)


@op("sum", "... c -> ...", "reduction")
def sum_(batch: Any, c: Any) -> Work:
    """Sum along the last axis."""
    return Work(vector=batch * c)


@op("mean", "... c -> ...", "reduction")
def mean(batch: Any, c: Any) -> Work:
    """Mean along the last axis."""
    return Work(vector=batch * c)


@op("argmax", "... c -> ...", "reduction")
def argmax() -> Work:
    """Index of the largest along the last axis: comparisons only."""
    return Work()


@op("topk", "... c -> ... k", "rowwise", derive=lambda k: {"k": k})
def topk() -> Work:
    """The ``k`` largest along the last axis: comparisons only."""
    return Work()


def _pool_sizes(h: Any, w: Any, r: Any, stride: Any = None, padding: Any = 0) -> dict[str, Any]:
    (rh, rw), (sh, sw), (ph, pw) = _pair(r), _pair(stride or r), _pair(padding)
    return {"p": _positive(_window(h, rh, sh, ph)), "q": _positive(_window(w, rw, sw, pw))}


@op("maxpool2d", "n c h w -> n c p q", "reduction", derive=_pool_sizes)
def maxpool2d() -> Work:
    """Maximum over windows: comparisons only."""
    return Work()


@op("avgpool2d", "n c h w -> n c p q", "reduction", derive=_pool_sizes)
def avgpool2d(n: Any, c: Any, p: Any, q: Any, r: Any) -> Work:
    """Mean over windows."""
    return Work(vector=n * c * p * q * _pair(r)[0] * _pair(r)[1])


@op("global_avgpool", "n c h w -> n c", "reduction")
def global_avgpool(n: Any, c: Any, h: Any, w: Any) -> Work:
    """Mean over the image."""
    return Work(vector=n * c * h * w)


# --- moves ----------------------------------------------------------------------------------------------------------


@op("embedding", "v d, ... -> ... d", "move")
def embedding(batch: Any, d: Any) -> Work:
    """Rows of a table by index: no arithmetic, and only the rows that are asked for are read."""
    return Work(reads={0: batch * d})


@op("gather", "v, ... -> ...", "move")
def gather(batch: Any) -> Work:
    """Single elements of a vector by index."""
    return Work(reads={0: batch})


@op("gather_rows", "v d, t -> t d", "move")
def gather_rows(t: Any, d: Any) -> Work:
    """Rows of an activation by index, each read once for each time it is asked for."""
    return Work(reads={0: t * d})


@op("scatter_add", "u d -> t d", "move", derive=lambda t: {"t": t})
def scatter_add(u: Any, d: Any) -> Work:
    """Add rows into ``t`` output rows."""
    return Work(vector=u * d)


@op("cache_update", "b g c d, b g n d -> b g c d", "move", alias=0)
def cache_update(b: Any, g: Any, n: Any, d: Any) -> Work:
    """Write the new positions into a cache in place; the rest is neither read nor written."""
    return Work(reads={0: 0}, writes=b * g * n * d)


@op("transpose_copy", "... r c -> ... c r", "move")
def transpose_copy() -> Work:
    """Write the transpose out."""
    return Work()


# --- between devices ------------------------------------------------------------------------------------------------

#: Operators in which devices exchange data, with the shape that each device gets from the one it gives.
COLLECTIVES: dict[str, Callable[[Any, int], Any]] = {
    "all_reduce": lambda e, devices: e,
    "all_gather": lambda e, devices: e * devices,
    "reduce_scatter": lambda e, devices: ceil_div(e, devices),
    "alltoall": lambda e, devices: e,
    "broadcast": lambda e, devices: e,
}


def _register_collective(name: str, given: Callable[[Any, int], Any]) -> None:
    def formula() -> Work:
        return Work()

    formula.__doc__ = f"{name} among ``devices``: each gives ``e`` elements and gets ``g``; sums on the way are free."
    op(name, "e -> g", "network", derive=lambda e, devices: {"g": given(e, devices), "devices": devices})(formula)


for _name, _given in COLLECTIVES.items():
    _register_collective(_name, _given)


@op("memcpy_h2d", "e -> e", "transfer")
def memcpy_h2d() -> Work:
    """Copy from the host to the device; ``pinned`` says whether the host's memory is page-locked."""
    return Work()


@op("memcpy_d2h", "e -> e", "transfer")
def memcpy_d2h() -> Work:
    """Copy from the device to the host."""
    return Work()


def _cat_shape(shapes: tuple[Shape, ...], axis: int = -1) -> Shape:
    first = shapes[0]
    if any(len(shape) != len(first) for shape in shapes):
        raise ShapeError("joins arrays of different rank")
    at = axis % len(first)
    for shape in shapes:
        if shape[:at] + shape[at + 1 :] != first[:at] + first[at + 1 :]:
            raise ShapeError(f"joins along axis {at} but another axis differs: {list(shape)} and {list(first)}")
    total: Any = sum((shape[at] for shape in shapes[1:]), first[at])
    return (*first[:at], total, *first[at + 1 :])


@op("cat", None, "move", shape=_cat_shape)
def cat() -> Work:
    """Join along ``axis``."""
    return Work()


@op("upsample2d", "n c h w -> n c p q", "move", derive=lambda h, w, scale: {"p": h * scale, "q": w * scale})
def upsample2d() -> Work:
    """Nearest-neighbour upsampling."""
    return Work()


def _view_shape(shapes: tuple[Shape, ...], shape: Any) -> Shape:
    target = tuple(shape)
    if prod(target) != prod(shapes[0]):
        raise ShapeError(f"cannot view {list(shapes[0])} as {list(target)}: the element counts differ")
    return target


@op("view", None, "view", shape=_view_shape, alias=0)
def view() -> Work:
    """The same elements under another shape or order: nothing moves."""
    return Work()


@op("slice", None, "view", shape=lambda shapes, shape: tuple(shape), alias=0)
def slice_() -> Work:
    """A part of a tensor: nothing moves."""
    return Work()


@op("expand", None, "view", shape=lambda shapes, shape: _expand_shape(shapes[0], tuple(shape)), alias=0)
def expand() -> Work:
    """Axes of size 1 repeated without a copy: a reader touches no more than the base tensor."""
    return Work()


def _expand_shape(base: Shape, target: Shape) -> Shape:
    if len(base) != len(target) or any(b not in (1, t) for b, t in zip(base, target, strict=False)):
        raise ShapeError(f"cannot expand {list(base)} to {list(target)}: only axes of size 1 repeat")
    return target
