"""What the backwards of operators share: the tape that they write on, and rules that several operators have.

A rule gets the tape, the forward node and the gradient of its output, and hands a gradient to each input that wants
one. The nodes are what autograd launches in eager mode (PyTorch's derivatives.yaml); fused kernels have one backward
kernel, for which the tape sees.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from roofline.ir.graph import Node
from roofline.ir.sizes import Size
from roofline.ops.builder import Builder
from roofline.ops.registry import OPS

#: Options of a contraction that its backward takes over.
CARRIED = ("compute", "padded", "groups", "stride", "padding", "dilation", "channels_last")


class Tape(Protocol):
    """The backward in the making, as rules see it (:class:`roofline.passes.training.tape.Tape`)."""

    b: Builder

    def shape(self, name: str) -> tuple[Size, ...]:
        """Return the shape of a tensor."""

    def wants(self, name: str) -> bool:
        """Tell whether a tensor needs a gradient."""

    def kept(self, name: str) -> str:
        """Return a forward tensor as the backward finds it: itself, or a copy that is recomputed."""

    def op(self, op: str, *inputs: str, name: str, like: str, **attrs: Any) -> str:
        """Add a backward node, whose number format is that of the gradient of ``like``."""

    def give(self, name: str, gradient: str) -> None:
        """Hand in a gradient of a tensor."""

    def give_part(self, name: str, gradient: str, start: Any = None) -> None:
        """Hand in the gradient of a part that was cut out of a tensor."""

    def kernel(self, label: str) -> AbstractContextManager[None]:
        """Run what is added inside as one kernel."""

    def reshaped(self, gradient: str, shape: tuple[Size, ...], name: str = "shaped") -> str:
        """Return a view in another shape."""

    def placed(self, name: str, part: str, *picks: str) -> str:
        """Return the gradient of a few places of a tensor, zero elsewhere."""


Rule = Callable[[Tape, Node, str], None]


def options(node: Node, *names: str) -> dict[str, Any]:
    """Return the options of a node that go by some names, those that contractions carry by default."""
    return {key: value for key, value in node.attrs if key in (names or CARRIED)}


def runs(op: str, *reads: str, carried: tuple[str, ...] = (), shaped: bool = False, **fixed: Any) -> Rule:
    """Make a rule that runs one operator on the gradient for the first operand.

    Args:
        op: The operator.
        reads: What it reads as well: ``x`` the first operand, ``y`` the result.
        carried: Options that it takes over from the forward node.
        shaped: Whether it takes the operand's shape as an option.
        fixed: Options of its own.
    """

    def rule(t: Tape, node: Node, dy: str) -> None:
        x = node.inputs[0]
        tensors = [t.kept({"x": x, "y": node.outputs[0]}[each]) for each in reads]
        attrs = {**fixed, **(options(node, *carried) if carried else {}), **({"shape": t.shape(x)} if shaped else {})}
        t.give(x, t.op(op, dy, *tensors, name="grad", like=x, **attrs))

    return rule


def derived(t: Tape, node: Node, dy: str) -> None:
    """Run the derivative that an elementwise function declares."""
    derivative = OPS[node.op].derivative
    assert derivative is not None
    runs("elementwise", derivative.reads, flops=derivative.flops, what=f"{node.op}_grad")(t, node, dy)


def unchanged(t: Tape, node: Node, dy: str) -> None:
    """Hand the gradient on as it comes."""
    for name in node.inputs:
        if t.wants(name):
            t.give(name, dy)


def each_operand(flops: int | None = None, what: str = "") -> Rule:
    """Make a rule that runs an elementwise operator of all operands for each of them.

    Args:
        flops: Operations per element; as many as the forward's and the product where absent.
        what: Names the operator by the operand's position, such as ``maximum_grad_{}``.
    """

    def rule(t: Tape, node: Node, dy: str) -> None:
        attrs: dict[str, Any] = {"flops": dict(node.attrs).get("flops", 1) + 1 if flops is None else flops}
        for at, name in enumerate(node.inputs):
            if t.wants(name):
                named = {"what": what.format(at)} if what else {}
                saved = map(t.kept, node.inputs)
                t.give(name, t.op("elementwise", dy, *saved, name=f"grad_{at}", like=name, **attrs, **named))

    return rule


def masked(mask: int) -> Rule:
    """Make a rule for an operator whose input at a position says which elements of the others get a gradient."""

    def rule(t: Tape, node: Node, dy: str) -> None:
        for at, name in enumerate(node.inputs):
            if name != node.inputs[mask] and t.wants(name):
                t.give(name, t.op("mask", dy, t.kept(node.inputs[mask]), name=f"grad_{at}", like=name, value=0))

    return rule


def bias_gradient(t: Tape, bias: list[str], dy: str, axes: tuple[int, ...]) -> None:
    """Sum a gradient over all axes but the bias's."""
    for name in bias:
        if t.wants(name):
            t.give(name, t.op("reduce", dy, name="grad_b", like=name, axes=axes, how="sum"))


def repeated(t: Tape, dy: str, x: str, axes: tuple[int, ...]) -> str:
    """Lay a gradient along the axes that were summed up: a view."""
    shape = tuple(1 if at in axes else size for at, size in enumerate(t.shape(x)))
    return t.op("expand", t.reshaped(dy, shape), name="grad_repeated", like=x, shape=t.shape(x))
