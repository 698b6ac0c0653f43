"""What follows from the signature of a contraction: FLOPs, the matmuls that time it, numpy meaning, both gradients.

Axes in both operands and the result are batch, in one operand and the result rows or columns, in both operands alone
summed. The gradient of an operand contracts the other one with what comes in: the same axes, terms in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from roofline.ir.graph import Node
from roofline.ir.signature import Signature, Term, signature
from roofline.ir.sizes import prod
from roofline.ir.units import MAC
from roofline.ops.arrays import Call
from roofline.ops.gradients import Rule, Tape, bias_gradient, options, sized
from roofline.ops.registry import OPS, Array, Op, OpKind, Work, declare

BiasRule = Callable[[Tape, list[str], str, tuple[int, ...]], None]


def contraction(name: str, axes: str, kind: OpKind, doc: str, operands: str, **fields: Any) -> Op:
    """Declare a contraction of two operands; a third, which may be absent, is added to the result.

    Args:
        name: What nodes call it.
        axes: Its signature, from which the rest follows.
        kind: Its class.
        doc: What it is.
        operands: What the backward calls the two.
        fields: Fields of :class:`~roofline.ops.registry.Op` in place of what follows from the signature.

    Example:
        >>> op = contraction("gram", "b m k, b n k -> b m n", "matmul", "``A B^T``", "a b")
        >>> op.work([(2, 3, 4), (2, 5, 4)], {}).flops, op.gemm, op.output([(2, 3, 4), (2, 5, 4)], {})
        (240, 'b, m, n, k', (2, 3, 5))
        >>> del OPS["gram"]
    """
    follows: dict[str, Any] = {"formula": multiply_adds(axes), "gemm": matmul_axes(axes), "reference": einsum,
                               "gradient": contracted(*operands.split())}  # fmt: skip
    return declare(Op(name, axes, kind, doc, **(follows | fields)))


def factored_terms(spec: Signature) -> tuple[Term, Term, Term]:
    """Return the axes of both operands and of the result, products as their factors."""
    return spec.factors(spec.inputs[0]), spec.factors(spec.inputs[1]), spec.factors(spec.outputs[0])


def _all_axes(terms: Iterable[Term]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(axis for term in terms for axis in term))


def _counted(sizes: Mapping[str, Any], axes: Iterable[str]) -> list[Any]:
    """Return the sizes of axes, ``...`` as one."""
    return [sizes["batch" if axis == "..." else axis] for axis in axes]


def multiply_adds(axes: str) -> Callable[..., Work]:
    """Count a multiply-add for each point of all axes of the two operands."""
    summed = _all_axes(factored_terms(signature(axes))[:2])
    return lambda sizes: Work(flops=MAC * prod(_counted(sizes, summed)))


def axis_roles(left: Term, right: Term, out: Term) -> tuple[Term, Term, Term, Term]:
    """Tell batch, row, column and summed axes apart, each in the order of the operands."""
    roles = ((True, True, True), (True, False, True), (False, True, True), (True, True, False))
    axes = _all_axes((left, right))
    b, m, n, k = (tuple(a for a in axes if (a in left, a in right, a in out) == role) for role in roles)
    return b, m, n, k


def matmul_axes(axes: str) -> str:
    """Return the axes that are batch, m, n and k of the matmuls that a contraction is.

    Example:
        >>> matmul_axes("b (g r) q d, b g k d -> b (g r) q k")
        'b g, r q, k, d'
    """
    roles = axis_roles(*factored_terms(signature(axes)))
    return ", ".join(" ".join("batch" if axis == "..." else axis for axis in role) for role in roles)


def einsum(call: Call, x: Array, y: Array, *bias: Array) -> Array:
    """Contract two arrays as the signature of the operator says."""
    op, codes = OPS[call.op], dict[str, str]()
    assert op.signature is not None
    sizes = op.sizes([x.shape, y.shape], call.attrs)

    def apart(array: Array, term: Term) -> Array:
        axes = ((sizes[axis] if axis == "..." else (sizes[axis],)) for axis in term)
        return array.reshape([size for each in axes for size in each])

    def code(term: Term) -> str:
        return "".join(axis if axis == "..." else codes.setdefault(axis, chr(ord("a") + len(codes))) for axis in term)

    left, right, out = factored_terms(op.signature)
    text = f"{code(left)},{code(right)}->{code(out)}"
    return sum(bias, np.einsum(text, apart(x, left), apart(y, right), optimize=True).reshape(call.shape))


# --- the backward -----------------------------------------------------------------------------------------------------


def contracted(first: str, second: str, *, reverse: bool = False, bias: BiasRule = bias_gradient) -> Rule:
    """Make the backward of a contraction: for each operand the contraction of the other with the gradient.

    Args:
        first: What the first operand is called.
        second: What the second operand is called.
        reverse: Whether the second operand gets its gradient first.
        bias: Gives the operands behind them theirs, from the rows of the gradient.
    """
    names = (first, second)

    def rule(t: Tape, node: Node, dy: str) -> None:
        rows = dy
        for at in (1, 0) if reverse else (0, 1):
            plan = gradient_plan(str(OPS[node.op].axes), at)
            if plan is not None and plan.rows and rows == dy:
                rows = _by_row(t, dy, "grad_rows")
            if t.needs_grad(node.inputs[at]):
                made = _planned(t, node, at, plan, names, rows) if plan else _as_bmm(t, node, at, dy)
                t.accumulate(node.inputs[at], made)
        bias(t, list(node.inputs[2:]), rows, (0,))

    return rule


@dataclass(frozen=True, slots=True)
class Plan:
    """How a registered contraction computes the gradient of an operand.

    Attributes:
        op: The contraction.
        order: Its operands: the gradient that comes in (0) and the other operand (1).
        transposed: Which of them have their last two axes exchanged.
        rows: Whether their leading axes are summed, and so flattened to rows.
    """

    op: str
    order: tuple[int, int]
    transposed: tuple[bool, bool]
    rows: bool


_Axes = tuple[Term, ...]
_LEADING: Term = ("...",)


@cache
def gradient_plan(axes: str, operand: int) -> Plan | None:
    """Find the contraction that has the signature of a gradient, with as few operands transposed as possible.

    Args:
        axes: Signature of the forward contraction.
        operand: The operand whose gradient it is, 0 or 1.

    Example:
        >>> gradient_plan("... k, n k -> ... n", 0)
        Plan(op='matmul', order=(0, 1), transposed=(False, False), rows=False)
    """
    inputs, out = _grouped(signature(axes))
    dy, other, own = _absorbed([out, inputs[1 - operand], inputs[operand]])
    rows = _LEADING in dy and _LEADING in other and _LEADING not in own
    pair = [tuple(("rows",) if axis == _LEADING else axis for axis in axes) if rows else axes for axes in (dy, other)]
    for transposed in ((False, False), (True, False), (False, True), (True, True)):
        for op, forms in _contractions():
            for order in ((0, 1), (1, 0)):
                left, right = (
                    (*pair[at][:-2], *reversed(pair[at][-2:])) if swap else pair[at]
                    for at, swap in zip(order, transposed, strict=True)
                )
                if _numbered((left, right, own)) in forms:
                    return Plan(op, order, transposed, rows)
    return None


def _grouped(spec: Signature) -> tuple[list[_Axes], _Axes]:
    """Return the axes of inputs and output, each as its factors."""
    *inputs, out = (tuple(spec.factors((axis,)) for axis in term) for term in (*spec.inputs, spec.outputs[0]))
    return inputs, out


def _contractions() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield what a backward may launch, in its forms with and without leading axes; autograd launches no linear."""
    for op in OPS.values():
        if op.kind in ("matmul", "attention") and op.signature and len(op.signature.inputs) > 1 and op.name != "linear":
            inputs, out = _grouped(op.signature)
            terms = [*inputs[:2], out]
            plain = [tuple(axis for axis in term if axis != _LEADING) for term in terms]
            yield op.name, (_numbered(_absorbed(terms)), _numbered(plain))


def _absorbed(terms: Sequence[_Axes]) -> list[_Axes]:
    """Count the axis that always stands behind ``...`` among these."""
    behind = {term[term.index(_LEADING) + 1 :][:1] for term in terms if _LEADING in term}
    if len(behind) == 1:
        (axis,) = behind
        if axis and all((axis[0] in term) == (_LEADING in term) for term in terms):
            return [tuple(each for each in term if each != axis[0]) for term in terms]
    return list(terms)


def _numbered(terms: Sequence[_Axes]) -> tuple[Any, ...]:
    """Number axes in the order in which they come, so that equal contractions are equal."""
    numbers: dict[str, Any] = {"...": "..."}
    return tuple(
        tuple(tuple(numbers.setdefault(factor, len(numbers)) for factor in axis) for axis in term) for term in terms
    )


def _planned(t: Tape, node: Node, at: int, plan: Plan, names: tuple[str, str], rows: str) -> str:
    """Run a contraction of the registry, on views of its operands."""
    own, operands = node.inputs[at], []
    for source, transposed in zip(plan.order, plan.transposed, strict=True):
        label, x = ("grad", rows) if source == 0 else (names[1 - at], t.saved(node.inputs[1 - at]))
        x = _by_row(t, x, "rows") if source == 1 and plan.rows else x
        if transposed:
            rank = len(t.shape(x))
            x = t.op("permute", x, name=f"{label}_turned", like=x, axes=(*range(rank - 2), rank - 1, rank - 2))
        operands.append(x)
    by_column = {"turned": True} if plan.op == "matmul" and plan.transposed[0] else {}
    attrs = {**options(node, "compute", "padded", *OPS[plan.op].parameters), **sized(t, plan.op, own), **by_column}
    return t.op(plan.op, *operands, name=f"grad_{names[at]}", like=own, **attrs)


def _by_row(t: Tape, x: str, name: str) -> str:
    shape = t.shape(x)
    return t.reshaped(x, (prod(shape[:-1]), shape[-1]), name)


def _as_bmm(t: Tape, node: Node, at: int, dy: str) -> str:
    """Run any contraction as ``torch.einsum`` does: a batched matmul of operands in another order."""
    op, own = OPS[node.op], node.inputs[at]
    assert op.signature is not None
    sizes = op.sizes([t.shape(name) for name in node.inputs], dict(node.attrs))
    *inputs, out = factored_terms(op.signature)
    b, m, n, k = axis_roles(out, inputs[1 - at], inputs[at])

    def laid_out(x: str, axes: Term, order: tuple[Term, ...], label: str) -> str:
        flat = [axis for group in order for axis in group]
        x = t.reshaped(x, tuple(_counted(sizes, axes)), f"{label}_apart")
        if flat != list(axes):
            x = t.op("permute", x, name=f"{label}_turned", like=x, axes=tuple(map(axes.index, flat)))
        return t.reshaped(x, tuple(prod(_counted(sizes, group)) for group in order), f"{label}_matrix")

    left = laid_out(dy, out, (b, m, k), "grad")
    right = laid_out(t.saved(node.inputs[1 - at]), inputs[1 - at], (b, k, n), f"x{1 - at}")
    made = t.op("bmm", left, right, name=f"grad_{at}", like=own, **options(node, "compute", "padded"))
    flat, axes = (*b, *m, *n), inputs[at]
    made = t.reshaped(made, tuple(_counted(sizes, flat)), f"grad_{at}_apart")
    if flat != axes:
        made = t.op("permute", made, name=f"grad_{at}_turned", like=own, axes=tuple(map(flat.index, axes)))
    return t.reshaped(made, t.shape(own), f"grad_{at}_shaped")
