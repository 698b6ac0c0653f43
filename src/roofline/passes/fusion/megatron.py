"""The fused kernels of Megatron-LM: scale, mask and softmax; bias and GELU; bias, dropout and residual sum."""

from __future__ import annotations

from dataclasses import replace

from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Node
from roofline.ops.builder import Builder
from roofline.passes.history import graph_pass

_GELU = frozenset({"gelu", "gelu_tanh"})
#: What lies between scores and probabilities.
_BEFORE_SOFTMAX = frozenset({"mul_scalar", "mask"})


@graph_pass
def megatron_kernels(graph: Graph) -> Graph:
    """Run a GPT's layers by Megatron-LM's fused kernels, as of 2022, before fused attention.

    One kernel for scale, mask and softmax; the biases of the layers before GELU and before the residual sum leave their
    matmuls: one kernel for bias and GELU, one for bias, dropout and sum (megatron/model/fused_softmax.py,
    fused_bias_gelu.py and transformer.py, ``bias_dropout_add``). FLOPs and outputs stay. Apply it before
    :func:`roofline.passes.backward`: the backward of a fused kernel is one kernel.

    Args:
        graph: A forward program with written-out attention, best of phase ``train``.

    Returns:
        The program in those kernels.

    Raises:
        UsageError: Nothing in it has one of these forms.

    Example:
        >>> import roofline as rl
        >>> plain = rl.model("megatron-22b", phase="train", layers=1)
        >>> fused = megatron_kernels(plain)
        >>> rl.count(plain, B=1, S=2048).launches - rl.count(fused, B=1, S=2048).launches
        4
    """
    program = _Program(graph)
    for node in graph.nodes:
        program.visit(node)
    if not program.labels:
        raise UsageError(
            f"{graph.name}: nothing to fuse: no written-out softmax, no bias before GELU or a residual sum"
        )
    return program.run()


class _Program:
    """The program, and the kernels that its nodes move to."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.labels: dict[str, str] = {}
        self.unbiased: dict[str, str] = {}

    def visit(self, node: Node) -> None:
        if node.op == "attention_softmax":
            self._softmax(node)
        elif node.op in _GELU:
            self._biased(node.inputs[0], [node], "bias_gelu")
        elif node.op == "add":
            self._residual(node)

    def _softmax(self, node: Node) -> None:
        members, before = [node], self._only(node.inputs[0])
        while before is not None and before.op in _BEFORE_SOFTMAX:
            members.append(before)
            before = self._only(before.inputs[0])
        if len(members) > 1 and len({member.label for member in members}) == len(members):
            self.labels.update(dict.fromkeys((member.name for member in members), f"{node.name}.scale_mask_softmax"))

    def _residual(self, node: Node) -> None:
        for name in node.inputs:
            drop = self._only(name)
            if drop is not None and drop.op == "dropout" and len(drop.inputs) > 1:
                members = [node, drop, self.graph.producer[drop.inputs[1]]]
                if self._biased(drop.inputs[0], members, "bias_dropout_add"):
                    return

    def _biased(self, name: str, members: list[Node], kernel: str) -> bool:
        """Move the bias of a linear layer to the kernel that reads its result."""
        layer = self._only(name)
        if layer is None or layer.op != "linear" or len(layer.inputs) < 3:
            return False
        label = f"{layer.name}.{kernel}"
        self.unbiased[layer.name] = label
        self.labels.update(dict.fromkeys((member.name for member in members), label))
        return True

    def _only(self, name: str) -> Node | None:
        """Return the node that writes a tensor which only one node reads."""
        alone = len(self.graph.consumers.get(name, ())) == 1 and name not in self.graph.outputs
        return self.graph.producer.get(name) if alone else None

    def run(self) -> Graph:
        b = Builder.of(self.graph, nodes=())
        for node in self.graph.nodes:
            if node.name not in self.unbiased:
                b.place(replace(node, kernel=self.labels.get(node.name, node.kernel)))
                continue
            (x, weight, bias), (name,) = node.inputs, node.outputs
            plain = b.source(f"{name}.plain", b.shape(name), "activation", b.tensor(name).dtype)
            b.place(replace(node, inputs=(x, weight), outputs=(plain,)))
            label, inputs = self.unbiased[node.name], (plain, bias)
            b.place(Node(f"{node.name}.biased", "bias_add", inputs, (name,), (), label, node.count, node.scope))
        return b.graph()
