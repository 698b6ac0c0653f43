"""What all frontends share: an operation of the source as its rule sees it, and how errors say where they happened.

A frontend supplies how operands are found and a table of rules. A rule takes a call, adds nodes to its
builder and returns the names of the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from roofline.frontends import emit
from roofline.ir.errors import RooflineError, UnknownOp, did_you_mean
from roofline.ir.sizes import Size
from roofline.ops.builder import Builder

#: What to do with an operation that has no rule.
UNKNOWN = ("error", "report")

#: What a symbolic size is taken for where two branches are compared.
TYPICAL_SIZE = 128

#: What a malformed attribute or operand makes plain Python raise in a rule.
MALFORMED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, AssertionError)

_Call = TypeVar("_Call")
_Options = ParamSpec("_Options")
_Result = TypeVar("_Result")


def with_options(
    rule: Callable[Concatenate[_Call, _Options], _Result],
) -> Callable[_Options, Callable[[_Call], _Result]]:
    """Make a rule with options, which tables bind: ``_reduce("sum")`` is a rule of calls alone."""
    return lambda *args, **options: lambda call: rule(call, *args, **options)


class BaseCall:
    """One operation of a source program.

    Attributes:
        b: The builder that nodes are added to.
        what: What the source calls the operation.
        name: What its node is called.
        dtype: Number format of its first result.
    """

    b: Builder
    what: str
    name: str
    dtype: str

    #: What a permutation and a broadcast are called where a rule does not say.
    permuted, expanded = "permute", "expand"

    def label(self, part: str) -> str:
        """Return the name of a node that does a part of the operation."""
        return part

    def op(self, op: str, *inputs: str, name: str = "", dtype: str | None = None, **attrs: Any) -> str:
        """Add a node that is called like the operation and has the format of its result."""
        return self.b.op(op, *inputs, name=name or self.name, dtype=dtype or self.dtype, **attrs)

    def view(self, x: str, shape: Sequence[Size], part: str = "view") -> str:
        """Return the same elements under another shape."""
        return emit.view(self.b, x, shape, self.label(part))

    def permute(self, x: str, axes: Sequence[int], part: str = "") -> str:
        """Return a tensor with its axes in another order, read as it lies."""
        order = tuple(int(axis) for axis in axes)
        if order == tuple(range(len(order))):
            return x
        return self.b.op("permute", x, name=self.label(part or self.permuted), axes=order)

    def transpose(self, x: str, part: str = "") -> str:
        """Return a tensor with its last two axes exchanged."""
        rank = len(self.b.shape(x))
        return x if rank < 2 else self.permute(x, (*range(rank - 2), rank - 1, rank - 2), part)

    def expand(self, x: str, shape: Sequence[Size], part: str = "") -> str:
        """Broadcast to a shape, free of copies."""
        return emit.expand(self.b, x, shape, self.label(part or self.expanded))

    def part(self, x: str, shape: Sequence[Size], part: str = "part") -> str:
        """Return a part of a tensor, read where it lies."""
        target = tuple(shape)
        return x if target == self.b.shape(x) else self.b.op("slice", x, name=self.label(part), shape=target)

    def along(self, axis: int, run: Callable[..., str], *inputs: str, last: str = "", back: str = "") -> str:
        """Run a function of rows along any axis: the kernel strides over the others."""
        rank = len(self.b.shape(inputs[0]))
        order = [*(at for at in range(rank) if at != axis), axis]
        rows = [self.permute(x, order, last) for x in inputs]
        return self.permute(run(*rows), [order.index(at) for at in range(rank)], back)

    def matmul(self, x: str, y: str, bias: str | None = None) -> str:
        """Add ``x @ y`` of any ranks."""
        return emit.matmul(self.b, x, y, bias, self.name)

    def reduce(
        self, how: str, x: str, axes: Any = None, keepdim: bool = False, dtype: str = "", outer: bool = False
    ) -> str:
        """Add a reduction that is called like the operation."""
        return emit.reduce(self.b, how, x, axes, keepdim, name=self.name, dtype=dtype or self.dtype, outer=outer)


def unknown(
    b: Builder,
    what: str,
    inputs: Sequence[str],
    shape: Sequence[Size],
    *,
    policy: str,
    where: str,
    known: Iterable[str] = (),
    dtype: str | None = None,
    name: str = "",
) -> str:
    """Refuse an operation without a rule, or add a node whose traffic counts and whose arithmetic does not.

    Args:
        b: The builder.
        what: What the source calls the operation.
        inputs: Full names of the tensors that it reads.
        shape: Of its result.
        policy: ``error`` or ``report``.
        where: Where it stands in the source.
        known: Operations that have rules, for the nearest match.
        dtype: Number format of its result.
        name: Of the node; the last part of ``where`` by default.

    Raises:
        UnknownOp: The policy is ``error``.
    """
    if policy == "error":
        near = did_you_mean(what, known)
        raise UnknownOp(f"{where}: no rule for {what}{near}; unknown='report' counts its bytes and says so")
    label = name or where.rpartition(".")[2] or what
    return b.op("unknown", *inputs, name=label, dtype=dtype, what=what, shape=tuple(shape))


def one_line(error: object) -> str:
    """Cut an error of somebody else to a line."""
    return " ".join(str(error).split())[:200]


def located(error: RooflineError, where: str, what: str, sign: str) -> RooflineError:
    """Return the error of a rule with where in the source it happened.

    Args:
        error: What was raised.
        where: Where the operation stands.
        what: What the source calls it.
        sign: What an error holds that says so already.
    """
    return error if sign in str(error) else type(error)(f"{where}: {what}: {error}")
