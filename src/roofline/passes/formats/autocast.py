"""Mixed precision as ``torch.autocast`` runs it: matmuls in 16 bits, sums and norms in fp32, weights in fp32."""

from __future__ import annotations

from dataclasses import replace

from roofline.ir.dtypes import DTYPES
from roofline.ir.dtypes import dtype as number_format
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Node
from roofline.ops.builder import Builder
from roofline.ops.registry import OPS
from roofline.passes.history import graph_pass
from roofline.passes.training.tape import DISCRETE

#: Operators that autocast runs in fp32 (PyTorch, "Automatic Mixed Precision", CUDA ops that autocast to float32).
FP32 = frozenset({
    "softmax", "attention_softmax", "layernorm", "layernorm2d", "rmsnorm", "groupnorm", "cross_entropy", "pow", "exp",
    "log", "reciprocal", "rsqrt", "softplus", "sum", "reduce", "scan",
})  # fmt: skip
#: Kinds of operator that it runs in the lower precision; softmax and its like are no contractions.
_LOWER = frozenset({"matmul", "conv", "attention", "moe"})
#: Operators whose result has the format of their first operand whatever the others have.
_AS_FIRST = frozenset({"batchnorm2d", "batchnorm_train", "embedding", "dropout", "put", "update"})
#: Operators that convert formats that a program stores things in.
_CONVERTS = frozenset({"quantize", "quantize_rows", "dequantize"})


@graph_pass
def autocast(graph: Graph, dtype: str = "bf16") -> Graph:
    """Run a program in fp32 under autocast: each operator in the format that PyTorch chooses for it, with its casts.

    Weights are cast once per run, activations for each matmul that reads them. Elementwise operators take the widest
    format of what they read; what is stored in fewer bits stays. Apply it before :func:`roofline.passes.backward`: the
    backward runs in the formats of the forward, and gradients of weights are cast back.

    Args:
        graph: A forward program.
        dtype: ``bf16`` or ``fp16``.

    Returns:
        The program with its casts.

    Raises:
        UsageError: Another format, or a program that has its backward already.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("gemm", "fp32")
        >>> y = b.op("linear", b.input("x", (8, 64)), b.weight("w", (64, 64)), name="y")
        >>> [(node.op, node.name) for node in autocast(b.graph([y])).nodes]
        [('cast', 'y.x.bf16'), ('cast', 'w.bf16'), ('linear', 'y')]
    """
    lower = number_format(dtype).name
    if lower not in ("bf16", "fp16"):
        raise UsageError(f"autocast to {dtype!r}; allowed: bf16, fp16")
    if graph.backward_start is not None:
        raise UsageError(f"{graph.name}: autocast comes before backward, which follows the formats of the forward")
    return _Casts(graph, lower).run()


class _Casts:
    """The program under autocast in the making."""

    def __init__(self, graph: Graph, lower: str) -> None:
        self.graph, self.lower = graph, lower
        self.b = Builder.of(graph, nodes=())
        self.cached: dict[str, str] = {}
        labels = graph.kernels
        self.fused = {label for label, nodes in labels.items() if len(nodes) > 1}
        self.attention = {
            label for label in self.fused if any(OPS[node.op].kind == "attention" for node in labels[label])
        }

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self._place(node)
        return self.b.graph()

    def _place(self, node: Node) -> None:
        if node.op in _CONVERTS:
            self.b.place(node)
            return
        target = self._format(node)
        inputs = tuple(self._as(name, target, node) for name in node.inputs) if target else node.inputs
        node = replace(node, inputs=inputs)
        self.b.place(node)
        if "keeps" in dict(node.attrs):
            return
        for name in node.outputs:
            if self.b.tensor(name).dtype not in DISCRETE:
                self.b.restate(name, dtype=target or self._promoted(node))

    def _format(self, node: Node) -> str:
        """The format that autocast asks for, empty where it leaves that to the operands."""
        if node.label in self.attention or OPS[node.op].kind in _LOWER:
            return self.lower
        return "fp32" if node.op in FP32 else ""

    def _promoted(self, node: Node) -> str:
        formats = [self.b.tensor(name).dtype for name in node.inputs]
        floats = [each for each in formats if each not in DISCRETE]
        if not floats or node.op == "cast":
            return ""
        if node.op in _AS_FIRST or OPS[node.op].alias is not None:
            return floats[0]
        return max(floats, key=lambda name: (DTYPES[name].bits, name))

    def _as(self, name: str, dtype: str, node: Node) -> str:
        """A tensor in a format: itself, or a cast, which is saved of weights."""
        tensor = self.b.tensor(name)
        if tensor.dtype == dtype or tensor.dtype in DISCRETE or DTYPES[tensor.dtype].bits < DTYPES[self.lower].bits:
            return name
        if name in self.cached:
            return self.cached[name]
        weight = tensor.kind == "weight"
        path = f"{name}.{dtype}" if weight else f"{node.name}.{name.rpartition('.')[2]}.{dtype}"
        inside = node.label in self.fused and node.label not in self.attention
        with self.b.inside(node.label if inside else ""):
            cast = self.b.op("cast", name, name=path, dtype=dtype)
        if weight:
            self.cached[name] = cast
        return cast
