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


class Tape(Protocol):
    """The backward in the making, as rules see it (:class:`roofline.passes.training.tape.Tape`)."""

    b: Builder

    def shape(self, name: str) -> tuple[Size, ...]:
        """Return the shape of a tensor."""

    def needs_grad(self, name: str) -> bool:
        """Tell whether a tensor needs a gradient."""

    def saved(self, name: str) -> str:
        """Return a forward tensor as the backward finds it: itself, or a copy that is recomputed."""

    def op(self, op: str, *inputs: str, name: str, like: str, **attrs: Any) -> str:
        """Add a backward node, whose number format is that of the gradient of ``like``."""

    def accumulate(self, name: str, gradient: str) -> None:
        """Hand in a gradient of a tensor."""

    def accumulate_part(self, name: str, gradient: str, start: Any = None) -> None:
        """Hand in the gradient of a part that was cut out of a tensor."""

    def kernel(self, label: str) -> AbstractContextManager[None]:
        """Run what is added inside as one kernel."""

    def reshaped(self, gradient: str, shape: tuple[Size, ...], name: str = "shaped") -> str:
        """Return a view in another shape."""

    def placed(self, name: str, part: str, *picks: str) -> str:
        """Return the gradient of a few places of a tensor, zero elsewhere."""


Rule = Callable[[Tape, Node, str], None]


def options(node: Node, *names: str) -> dict[str, Any]:
    """Return the options of a node that go by some names."""
    return {key: value for key, value in node.attrs if key in names}


def sized(t: Tape, op: str, own: str) -> dict[str, Any]:
    """Return the options that tell an operator the sizes of the gradient that it computes."""
    spec, shape = OPS[op], t.shape(own)
    if spec.signature is None:
        return {"shape": shape} if "shape" in spec.parameters else {}
    sizes = dict(zip(spec.signature.outputs[0], shape, strict=False))
    return {option: sizes[axis] for option, axis in spec.options.items() if axis in sizes}


def runs(op: str, *reads: str | int, carried: tuple[str, ...] = (), name: str = "grad", **fixed: Any) -> Rule:
    """Make a rule that runs one operator for the first operand.

    Args:
        op: The operator; it takes over those options of the forward node that it has itself.
        reads: What it reads: ``dy`` the gradient, in front where it is not named; ``x`` the first operand, ``y`` the
            result, a number an operand that needs no gradient.
        carried: Further options that it takes over.
        name: What its node is called.
        fixed: Options of its own.
    """
    order = reads if "dy" in reads else ("dy", *reads)

    def rule(t: Tape, node: Node, dy: str) -> None:
        x, saved = node.inputs[0], {"x": node.inputs[0], "y": node.outputs[0]}
        tensors = [
            node.inputs[each] if isinstance(each, int) else dy if each == "dy" else t.saved(saved[each])
            for each in order
        ]
        attrs = {**options(node, *OPS[op].parameters, *carried), **sized(t, op, x), **fixed}
        t.accumulate(x, t.op(op, *tensors, name=name, like=x, **attrs))

    return rule


def derived(t: Tape, node: Node, dy: str) -> None:
    """Run the derivative that an elementwise function declares."""
    derivative = OPS[node.op].derivative
    assert derivative is not None
    runs("elementwise", derivative.reads, flops=derivative.flops, what=f"{node.op}_grad")(t, node, dy)


def unchanged(t: Tape, node: Node, dy: str) -> None:
    """Hand the gradient on as it comes."""
    for name in node.inputs:
        if t.needs_grad(name):
            t.accumulate(name, dy)


def each_operand(flops: int | None = None, what: str = "") -> Rule:
    """Make a rule that runs an elementwise operator of all operands for each of them.

    Args:
        flops: Operations per element; as many as the forward's and the product where absent.
        what: Names the operator by the operand's position, such as ``maximum_grad_{}``.
    """

    def rule(t: Tape, node: Node, dy: str) -> None:
        attrs: dict[str, Any] = {"flops": dict(node.attrs).get("flops", 1) + 1 if flops is None else flops}
        for at, name in enumerate(node.inputs):
            if t.needs_grad(name):
                named = {"what": what.format(at)} if what else {}
                saved = map(t.saved, node.inputs)
                t.accumulate(name, t.op("elementwise", dy, *saved, name=f"grad_{at}", like=name, **attrs, **named))

    return rule


def masked(mask: int) -> Rule:
    """Make a rule for an operator whose input at a position says which elements of the others get a gradient."""

    def rule(t: Tape, node: Node, dy: str) -> None:
        for at, name in enumerate(node.inputs):
            if name != node.inputs[mask] and t.needs_grad(name):
                t.accumulate(name, t.op("mask", dy, t.saved(node.inputs[mask]), name=f"grad_{at}", like=name, value=0))

    return rule


def bias_gradient(t: Tape, bias: list[str], dy: str, axes: tuple[int, ...]) -> None:
    """Sum a gradient over all axes but the bias's."""
    for name in bias:
        if t.needs_grad(name):
            t.accumulate(name, t.op("reduce", dy, name="grad_b", like=name, axes=axes, how="sum"))


def back_in_place(t: Tape, node: Node, dy: str) -> None:
    """Put single elements that were picked back in their places among zeros."""
    x, *picks = node.inputs
    t.accumulate(x, t.placed(x, dy, *picks))
