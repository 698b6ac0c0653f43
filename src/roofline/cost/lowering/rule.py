"""What a rule of a runtime's table is, and the place where it puts the kernels that an operator becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from roofline.counting.counts import Kernel
from roofline.hardware.chip import Chip
from roofline.ir.graph import Tensor
from roofline.ops.builder import Builder
from roofline.ops.registry import OPS


def word(kernel: Kernel) -> str:
    """Return what rules call an operator: its name, ``sdpa`` or ``sdpa_backward``; nothing for most other groups."""
    ops = [node.op for node in kernel.nodes if OPS[node.op].kind != "view"]
    if len(ops) == 1:
        return ops[0]
    if [op for op in ops if op != "dequantize"] == [kernel.main.op] and kernel.kind == "conv":
        return kernel.main.op  # weights stored narrow change nothing in the layout that its images are copied to
    if any(dict(node.attrs).get("batch_norm") for node in kernel.nodes):
        return "batch_norm_sums"
    if ops[0] != "attention_scores" or "attention_values" not in ops:
        return ""
    return "sdpa_backward" if "attention_softmax_grad" in ops else "sdpa"


@dataclass(frozen=True)
class Site:
    """An operator that a rule takes apart, and the graph that its kernels are added to.

    Attributes:
        kernel: The operator, symbolic: its shapes, options, operands and what it writes.
        chip: Where it runs.
        b: Where its kernels go; each node is a launch unless ``b.kernel`` joins several.
        flowing: Whether activations come from the kernel before it, and so from the cache.
        tf32: Whether its fp32 contractions run on the tf32 matrix units.
    """

    kernel: Kernel
    chip: Chip
    b: Builder
    flowing: bool
    tf32: bool = False
    _known: dict[str, str] = field(default_factory=dict)

    @property
    def attrs(self) -> dict[str, Any]:
        """Options of the operator."""
        return self.kernel.attrs

    @property
    def dtype(self) -> str:
        """Format of its result."""
        return self.kernel.output.dtype

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names in the graph of what its main node reads, in its order."""
        kinds = {tensor.name: tensor for tensor in self.kernel.operands}
        return tuple(self.read(kinds.get(tensor.name, tensor)) for tensor in self.kernel.inputs)

    @property
    def operands(self) -> tuple[str, ...]:
        """Names in the graph of all that it reads, in the order of its nodes."""
        return tuple(map(self.read, self.kernel.operands))

    def read(self, tensor: Tensor) -> str:
        """Return the name in the graph of a tensor from outside."""
        if tensor.name not in self._known:
            self._known[tensor.name] = self._declared(tensor)
        return self._known[tensor.name]

    def _declared(self, tensor: Tensor) -> str:
        if tensor.kind != "activation" or not self.flowing:
            kind = "input" if tensor.kind == "activation" else tensor.kind
            return self.b.source("operand", tensor.shape, kind, tensor.dtype)
        return self.b.op("empty", name="operand", shape=tensor.shape, dtype=tensor.dtype)

    def main(self, *inputs: str, name: str = "", dtype: str | None = None, **attrs: Any) -> str:
        """Add the operator itself, on these inputs and with these changes of its options."""
        node = self.kernel.main
        return self.b.op(node.op, *inputs, name=name or node.op, dtype=dtype or self.dtype, **{**self.attrs, **attrs})

    def whole(self, exchanged: Mapping[str, str], name: str, **attrs: Any) -> str:
        """Add all of its nodes as one kernel, on other tensors in place of some operands, with more options."""
        known = {tensor.name: self.read(tensor) for tensor in self.kernel.operands if tensor.name not in exchanged}
        with self.b.kernel(name):
            return self.apart({**known, **exchanged}, **attrs)

    def apart(self, known: Mapping[str, str], **attrs: Any) -> str:
        """Add all of its nodes, a kernel each, on the tensors of the graph that are ``known``, with more options."""
        names = {**{tensor.name: self.read(tensor) for tensor in self.kernel.inner}, **known}
        for node in self.kernel.nodes:
            inputs = [names[each] for each in node.inputs]
            names[node.outputs[0]] = self.b.op(node.op, *inputs, dtype=self.dtype, **{**dict(node.attrs), **attrs})
        return names[self.kernel.nodes[-1].outputs[0]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of a runtime's table.

    Attributes:
        op: The operator, as :func:`word` calls it.
        launches: What it becomes, in words.
        source: Where the runtime's own code or its documentation says so.
        emit: Adds the kernels.
        when: For which operators, by what is known without sizes.
        at: At which sizes, from those of the axes of the operator; ``None`` at all. A number or an array of truth.
    """

    op: str
    launches: str
    source: str
    emit: Callable[[Site], object]
    when: Callable[[Site], bool] = lambda site: True
    at: Callable[[Mapping[str, Any]], Any] | None = None
