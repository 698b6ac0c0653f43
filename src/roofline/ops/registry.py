"""The operator registry: one declaration for each operator, and everything known about it in that declaration.

An operator says what it computes in numpy (``reference``), what that costs (``formula``: a function of the sizes that
its signature binds and of its options, which returns :class:`Work`), what its gradients are, and which axes of its
tensors belong together. What follows from the signature is left out: of a contraction all of these
(:mod:`roofline.ops.einsum`), of the others the axes.

``flops`` are the contractions (matmul, convolution, attention) at two per multiply-add, which is what model cards,
MFU and :class:`torch.utils.flop_counter.FlopCounterMode` count; ``vector`` is the other floating-point arithmetic
(norms, softmax, activations), kept apart because it runs on other units. Comparisons and moves count nothing.
Bytes are not counted here: they belong to the boundaries of kernels (:mod:`roofline.counting`); an operator only says
where it touches less than a whole tensor (``reads``, ``writes``).

A formula takes integers, arrays and symbolic sizes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Literal

from roofline.ir.errors import ShapeError, UnknownOp, did_you_mean
from roofline.ir.graph import Node
from roofline.ir.signature import Shape, Signature, signature
from roofline.ir.sizes import prod

#: What a kernel made of the operator is like, which decides how it fuses and which ceiling it meets.
OpKind = Literal[
    "matmul", "conv", "attention", "moe", "pointwise", "rowwise", "reduction", "move", "network", "transfer", "view"
]  # fmt: skip

#: An array of double precision. Not spelt out: numpy's own types of what its functions return are too loose to check.
Array = Any
#: What an operator computes: of a :class:`roofline.ops.arrays.Call` and its operands.
Reference = Callable[..., Array]
#: The backward of an operator: of a :class:`roofline.ops.gradients.Tape`, the node and the gradient of its output.
Gradient = Callable[[Any, Node, str], None]
#: What an operator says about the axes of its tensors, beyond its signature: of a :class:`roofline.ops.axes.Site`.
AxisRule = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Work:
    """What one call of an operator does.

    From an operator's formula; :func:`roofline.count` adds them up.

    Attributes:
        flops: Contraction FLOPs, two per multiply-add.
        vector: Other floating-point operations.
        reads: Elements touched of an input, by position, where that is not the whole tensor.
        writes: Elements written, where that is not the whole output.
    """

    flops: Any = 0
    vector: Any = 0
    reads: Mapping[int, Any] = field(default_factory=dict)
    writes: Any = None


@dataclass(frozen=True, slots=True)
class Derivative:
    """The derivative of an elementwise function, times the gradient of its result.

    Attributes:
        reads: What the backward reads beside that gradient: the function's operand ``x`` or its result ``y``.
        flops: Operations per element, the product with the gradient included.
        reference: What it computes: of a call, the gradient, and what it reads.
    """

    reads: Literal["x", "y"]
    flops: int
    reference: Reference


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """The declaration of an operator.

    One of ``OPS``; :func:`roofline.listing` shows where they stand.

    Attributes:
        name: What nodes call it.
        axes: Its signature, or ``None`` where ``shape`` gives the output shape instead.
        kind: Its class.
        doc: What it is.
        formula: What a call does, from sizes and options by name; ``shapes`` are those of the inputs, ``sizes`` all
            sizes, ``batch`` the product of the leading axes, or all elements of the result without a signature.
        reference: What it computes in numpy.
        shape: The output shape from input shapes and options.
        derive: Sizes that follow from sizes and options.
        options: Options that are sizes of axes, such as ``{"image": "c h w"}``.
        defaults: Those of them that may be absent: their size then, ``None`` where the shapes tell it.
        nouns: What axes are called in errors.
        alias: The input whose storage the output shares (views, in-place updates).
        gradient: Its backward.
        derivative: Of an elementwise function, which its backward follows from.
        gradients: What elementwise operators of its backward compute, by the name that it gives them.
        rule: What it says about axes beyond its signature, or without one.
        fixed: Axes that its arithmetic ties to something that the signature does not say, so that none may change.
        gemm: Axes that are batch, m, n and k of the matmuls that it is timed as, or a function of its sizes.
    """

    name: str
    axes: str | None
    kind: OpKind
    doc: str = ""
    formula: Callable[..., Work] = lambda: Work()
    reference: Reference | None = None
    shape: Callable[..., Shape] | None = None
    derive: Callable[..., dict[str, Any]] | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, int | None] = field(default_factory=dict)
    nouns: Mapping[str, str] = field(default_factory=dict)
    alias: int | None = None
    gradient: Gradient | None = None
    derivative: Derivative | None = None
    gradients: Mapping[str, Reference] = field(default_factory=dict)
    rule: AxisRule | None = None
    fixed: str = ""
    gemm: str | Callable[[Mapping[str, Any]], tuple[Any, Any, Any, Any]] | None = None
    signature: Signature | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "signature", None if self.axes is None else signature(self.axes))

    def sizes(self, shapes: Sequence[Shape], attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Bind input shapes, then add the sizes that options derive (a convolution's output height).

        Raises:
            ShapeError: The inputs contradict the signature, or an option that gives a size is missing.
        """
        if self.signature is None:
            sizes: dict[str, Any] = {"shapes": tuple(shapes), "batch": prod(self.output(shapes, attrs))}
        else:
            sizes = self.signature.bind(shapes, self.given(attrs) if self.options else None, self.nouns)
        if self.derive is not None:
            sizes.update(_apply(self.derive, {**sizes, **attrs, "sizes": sizes}))
        return sizes

    def given(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sizes of axes that options give.

        Raises:
            ShapeError: One of the options is missing.
        """
        sizes: dict[str, Any] = {}
        for option, axes in self.options.items():
            if option in attrs:
                value = attrs[option]
                sizes.update(zip(axes.split(), value if " " in axes else (value,), strict=True))
            elif option not in self.defaults:
                raise ShapeError(f"needs the option {option!r}")
            elif self.defaults[option] is not None:
                sizes[axes] = self.defaults[option]
        return sizes

    def output(self, shapes: Sequence[Shape], attrs: Mapping[str, Any]) -> Shape:
        """Return the shape of the output.

        Raises:
            ShapeError: The inputs contradict the signature, or an option is missing.
        """
        shape: Shape = _once(_output, self, shapes, attrs)
        return shape

    def work(self, shapes: Sequence[Shape], attrs: Mapping[str, Any]) -> Work:
        """Evaluate the formula on shapes and options.

        Raises:
            ShapeError: The inputs contradict the signature, or an option is missing.
        """
        work: Work = _once(_work, self, shapes, attrs)
        return work

    def matmuls(self, sizes: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
        """Return how many matmuls an operator is timed as, and their m, n and k, from the sizes of its axes."""
        assert self.gemm is not None, self.name
        if not isinstance(self.gemm, str):
            return self.gemm(sizes)
        b, m, n, k = (prod(sizes[axis] for axis in axes.split()) for axes in self.gemm.split(","))
        return b, m, n, k

    @property
    def parameters(self) -> frozenset[str]:
        """The options that the operator takes: parameters of its functions that no axis provides."""
        functions = (each for each in (self.formula, self.derive, self.shape) if each is not None)
        names = {name for each in functions for name in _parameters(each)[0]}
        axes = {axis for term in (*self.signature.inputs, *self.signature.outputs) for axis in term} if (
            self.signature) else set()  # fmt: skip
        return frozenset(names - axes - {"batch", "shapes", "sizes"} | self.options.keys())


def _output(op: Op, shapes: Sequence[Shape], attrs: Mapping[str, Any]) -> Shape:
    if op.signature is None:
        assert op.shape is not None
        shape: Shape = _apply(op.shape, {"shapes": shapes, **attrs})
        return shape
    return op.signature.shapes(op.sizes(shapes, attrs))[0]


def _work(op: Op, shapes: Sequence[Shape], attrs: Mapping[str, Any]) -> Work:
    sizes = op.sizes(shapes, attrs)
    work: Work = _apply(op.formula, {**attrs, **sizes, "sizes": sizes, "shapes": shapes})
    return work


def _once(function: Callable[..., Any], op: Op, shapes: Sequence[Shape], attrs: Mapping[str, Any]) -> Any:
    """Work something out once for equal shapes and options, since layers repeat."""
    try:
        return _latest(function, op, tuple(shapes), tuple(attrs.items()))
    except TypeError:  # a shape or an option that is no key
        return function(op, tuple(shapes), attrs)


@lru_cache(maxsize=2**14)
def _latest(function: Callable[..., Any], op: Op, shapes: tuple[Shape, ...], attrs: tuple[tuple[str, Any], ...]) -> Any:
    return function(op, shapes, dict(attrs))


def _apply(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    names, required = _parameters(function)
    missing = [name for name in required if name not in values]
    if missing:
        raise ShapeError(f"needs the option {missing[0]!r}")
    return function(**{name: values[name] for name in names if name in values})


@cache
def _parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a function's parameters: all, and those without a default."""
    known = inspect.signature(function).parameters
    return tuple(known), tuple(name for name, p in known.items() if p.default is p.empty)


#: All operators by name.
OPS: dict[str, Op] = {}
#: What elementwise operators of a backward compute, by their option ``what``.
GRADIENTS: dict[str, Reference] = {}


def declare(op: Op) -> Op:
    """Enter an operator in the registry."""
    OPS[op.name] = op
    GRADIENTS.update(op.gradients)
    if op.derivative is not None:
        GRADIENTS[f"{op.name}_grad"] = op.derivative.reference
    return op


def op(name: str, axes: str | None, kind: OpKind, **fields: Any) -> Callable[[Reference], Reference]:
    """Declare an operator by the function that it computes in numpy, which brings its documentation.

    Args:
        name: What nodes call it.
        axes: Its signature, or ``None``.
        kind: Its class.
        fields: Other fields of :class:`Op`.
    """

    def register(reference: Reference) -> Reference:
        declare(Op(name, axes, kind, inspect.getdoc(reference) or "", reference=reference, **fields))
        return reference

    return register


# --- formulas and shapes that several operators share -----------------------------------------------------------------


def per_element(flops: int) -> Callable[..., Work]:
    """Count operations for each element of the first operand."""
    return lambda shapes: Work(vector=flops * prod(shapes[0]))


def by_option(shapes: Sequence[Shape], shape: Sequence[Any]) -> Shape:
    """Return the shape that the option ``shape`` gives."""
    return tuple(shape)


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
    """Return the work of a node, with its name in any error.

    Raises:
        ShapeError: The shapes contradict the operator.
        UnknownOp: The operator is not registered.
    """
    try:
        return get_op(node.op, node.name).work(shapes, dict(node.attrs))
    except ShapeError as error:
        raise ShapeError(f"{node.name}: {node.op} {error}") from None


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that arrays broadcast to, by numpy's rules.

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
    """Return axes counted from the front, in order; all of them where none are named.

    Raises:
        ShapeError: An axis that the array has not.
    """
    named = (axes,) if isinstance(axes, int) else tuple(axes or range(rank))
    for axis in named:
        if not -rank <= axis < rank:
            raise ShapeError(f"has {rank} axes but is asked for axis {axis}")
    return tuple(sorted({axis % rank for axis in named}))
