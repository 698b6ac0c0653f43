"""Set the number formats of weights, activations, cache and arithmetic apart from each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from roofline.ir.dtypes import dtype as number_format
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Node, Tensor
from roofline.ops.aliases import aliases
from roofline.ops.builder import Builder
from roofline.ops.registry import OPS, get_op
from roofline.passes.history import graph_pass

#: Tensors in these formats hold indices or flags and keep them.
_DISCRETE = frozenset({"int64", "int32", "int16", "bool"})


#: The option of a node whose result stays in the format that it names, such as a loss.
_KEEPS = "keeps"


_MISSING = {"weights": "weights that contractions multiply by", "cache": "KV cache"}

#: How elementwise kernels get at elements of one format, by how they do where they cast some on the way.
_UNCAST = {"cast": "vector", "mixed": "strided"}


@graph_pass
def cast(
    graph: Graph,
    dtype: str | None = None,
    *,
    weights: str | None = None,
    cache: str | None = None,
    activations: str | None = None,
    compute: str | None = None,
) -> Graph:
    """Give a graph other number formats; its FLOPs stay. A loss stays in fp32, with a cast before it.

    Args:
        graph: The program.
        dtype: Format of everything that the others do not name.
        weights: Format of the matrices that contractions multiply by (embedding tables that are not also the output
            head, norms and biases stay in ``dtype``, as weight-only quantisation leaves them).
        cache: Format of the KV cache.
        activations: Format of what flows between kernels.
        compute: Format that contractions run in; by default the widest of their operands, so 8-bit weights on 16-bit
            activations multiply in 16 bits.

    Returns:
        The program in the other formats.

    Raises:
        UnknownDType: No such format.
        UsageError: A format of weights or of a cache where the program has none.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("gemm", "bf16")
        >>> y = b.op("linear", b.input("x", (8, 64)), b.weight("w", (64, 64)))
        >>> cast(b.graph([y]), weights="int8").tensors["w"].dtype
        'int8'
    """
    base, weight, state, flow, arithmetic = (
        number_format(name).name if name is not None else None for name in (dtype, weights, cache, activations, compute)
    )
    matrices, caches = _matrices(graph), _stored_in_cache(graph)
    for option, word, there in (("weights", weights, matrices), ("cache", cache, caches)):
        if word is not None and not there:
            raise UsageError(
                f"{option}={word!r} (--{option}): {graph.name} has no {_MISSING[option]} to give a format to"
            )

    def changed(tensor: Tensor) -> Tensor:
        if tensor.dtype in _DISCRETE:
            return tensor
        if tensor.kind == "weight":
            target = weight if tensor.name in matrices else base
        elif tensor.name in caches:
            target = state
        else:
            target = flow
        return replace(tensor, dtype=target or base or tensor.dtype)

    nodes = graph.nodes if arithmetic is None else tuple(_computes_in(node, arithmetic) for node in graph.nodes)
    tensors = {name: changed(tensor) for name, tensor in graph.tensors.items()}
    nodes = tuple(_uncast(node, graph.tensors, tensors) for node in nodes)
    return _keep_formats(replace(graph, tensors=tensors, nodes=nodes))


def _uncast(node: Node, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Node:
    """Let an elementwise kernel load as they are what it cast on the way, where all has one format by now."""
    formats, now = ({of[name].dtype for name in (*node.inputs, *node.outputs)} for of in (before, after))
    how, *more = dict(node.attrs).get("access", ("",))
    if how not in _UNCAST or len(now) > 1 or len(formats) == 1:
        return node
    return replace(node, attrs=tuple(sorted({**dict(node.attrs), "access": (_UNCAST[how], *more)}.items())))


def _matrices(graph: Graph) -> frozenset[str]:
    """Weights that a contraction multiplies by, itself or through views."""
    contractions = (node for node in graph.nodes if get_op(node.op, node.name).kind in ("matmul", "conv"))
    operands = (name for node in contractions for name in node.inputs[:2] if len(graph.tensors[name].shape) > 1)
    return frozenset(map(aliases(graph).base, operands))


def _stored_in_cache(graph: Graph) -> frozenset[str]:
    """The cache tensors, and whatever shares their storage."""
    root = aliases(graph).root
    return frozenset(name for name in graph.tensors if graph.tensors[root(name)].kind == "cache")


def _computes_in(node: Node, arithmetic: str) -> Node:
    if OPS[node.op].kind not in ("matmul", "conv", "attention"):
        return node
    return replace(node, attrs=tuple(sorted({**dict(node.attrs), "compute": arithmetic}.items())))


def _keep_formats(graph: Graph) -> Graph:
    """Give nodes with the option ``keeps`` their format back, with a cast before them where they read another one.

    A cast that has become one of a format to itself goes.
    """
    if not any(_format(node) for node in graph.nodes):
        return graph
    b, instead = Builder.of(graph, nodes=()), dict[str, str]()
    for node in graph.nodes:
        inputs, dtype = [instead.get(name, name) for name in node.inputs], _format(node)
        if dtype and node.op == "cast" and b.tensor(inputs[0]).dtype == dtype:
            instead[node.outputs[0]] = inputs[0]
            continue
        if dtype and node.op != "cast":
            inputs = [_cast(b, name, dtype, node) for name in inputs]
        for name in node.outputs:
            b.restate(name, dtype=dtype)
        b.place(replace(node, inputs=tuple(inputs)))
    return b.graph()


def _format(node: Node) -> str:
    return str(dict(node.attrs).get(_KEEPS, ""))


def _cast(b: Builder, name: str, dtype: str, node: Node) -> str:
    if b.tensor(name).dtype in (dtype, "int64", "bool"):
        return name
    return b.op("cast", name, name=f"{node.name}.{dtype}", dtype=dtype, keeps=dtype)
