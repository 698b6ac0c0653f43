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
from functools import cache
from typing import Any, Literal

from roofline.ir.errors import ShapeError, UnknownOp, did_you_mean
from roofline.ir.graph import Node
from roofline.ir.signature import Shape, Signature, signature
from roofline.ir.sizes import prod

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
            sizes: dict[str, Any] = {"shapes": tuple(shapes), "batch": prod(self.output(shapes, attrs))}
        else:
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
        near = did_you_mean(name, OPS) or f"; known: {', '.join(sorted(OPS))}"
        raise UnknownOp(f"{place}unknown operator {name!r}{near}")
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


def axes_of(rank: int, axes: Any) -> tuple[int, ...]:
    """Axes counted from the front, in order; all of them where none are named.

    Raises:
        ShapeError: An axis that the array has not.
    """
    named = (axes,) if isinstance(axes, int) else tuple(axes or range(rank))
    for axis in named:
        if not -rank <= axis < rank:
            raise ShapeError(f"has {rank} axes but is asked for axis {axis}")
    return tuple(sorted({axis % rank for axis in named}))


def pair(value: Any) -> tuple[int, int]:
    return (value[0], value[1]) if isinstance(value, tuple | list) else (value, value)


def single(value: Any) -> Any:
    """The option for one axis."""
    return value[0] if isinstance(value, tuple | list) else value


def triple(value: Any) -> tuple[int, int, int]:
    """An option for three axes, one number for all of them or three."""
    return (value[0], value[1], value[2]) if isinstance(value, tuple | list) else (value,) * 3


def window(size: Any, kernel: Any, stride: int, padding: Any, dilation: int = 1) -> Any:
    """How often a window fits; ``padding`` is a number, or one before and one behind."""
    added = sum(padding) if isinstance(padding, tuple) else 2 * padding
    return (size + added - dilation * (kernel - 1) - 1) // stride + 1


def positive(size: Any) -> Any:
    if isinstance(size, int) and size < 1:
        raise ShapeError("has a kernel larger than its padded input")
    return size
