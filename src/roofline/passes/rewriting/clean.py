"""Leave out what a program does in vain: dead code, the same thing twice, what only depends on constants.

Each pass keeps the outputs as they are (``same`` runs both programs), and neither FLOPs nor bytes nor
what is stored ever grow. What cannot be told from the graph is left alone: a ``slice`` that does not say where it
starts is not the same as another one, and a constant is only computed ahead where the result takes no more room than
what it is made of, so that weights stored in few bits stay so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from roofline.counting.counts import nbytes
from roofline.counting.parameters import active_parameters
from roofline.ir.graph import Graph, Node
from roofline.ops.aliases import Aliases, aliases, in_place, is_view
from roofline.ops.registry import OPS
from roofline.passes.history import graph_pass

#: Results that differ from run to run, or that nothing has computed.
RANDOM = frozenset({"dropout", "bernoulli", "fill", "empty"})

#: Options without which an operator leaves open what it computes; none of them settles an empty tuple.
OPEN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("unknown", "take", "rearrange", "resample", "pool", "pool_grad", "scan", "recurrent_cell",
                     "recurrent_cell_grad", "put", "state_update", "topk", "triangular_solve"), ()),
    **dict.fromkeys(("mul_scalar", "add_scalar", "mask"), ("value",)),
    "slice": ("start",), "elementwise": ("what",), "reduce": ("how",), "softcap": ("cap",),
}  # fmt: skip

#: Operators of several operands, and the options that stand for one that is a number and not listed.
OPERANDS: dict[str, tuple[int, tuple[str, ...]]] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "maximum", "minimum"), (2, ("value",))),
    "pow": (2, ("exponent",)), "clamp": (3, ("low", "high")), "where": (3, ("values",)),
}  # fmt: skip

#: Memory of an imported program that is read without having been written; kept as a buffer, but not a constant.
_SCRATCH = "scratch."


def settled(node: Node) -> bool:
    """Tell whether operands and options say all that a node computes, so that an equal node computes the same.

    Example:
        >>> settled(Node("a", "relu", ("x",), ("y",))), settled(Node("a", "mul_scalar", ("x",), ("y",)))
        (True, False)
    """
    attrs = dict(node.attrs).keys()
    if node.op in RANDOM:
        return False
    if node.op in OPEN:
        return bool(OPEN[node.op]) and attrs >= set(OPEN[node.op])
    operands, options = OPERANDS.get(node.op, (0, ()))
    return len(node.inputs) >= operands or attrs >= set(options)


def rewritten(graph: Graph, *notes: str) -> Graph:
    """The program with remarks for its reader, and without what ``info`` says of kernels and weights before."""
    active = active_parameters(graph) if graph.info.active_parameters is not None else None
    return graph.with_info(kernels=None, active_parameters=active).with_notes(*notes)


def _restricted(graph: Graph, nodes: Iterable[Node], always: frozenset[str] = frozenset({"input", "cache"})) -> Graph:
    """The program with these nodes and no tensor that none of them touches, but for what the caller hands in."""
    rest = tuple(nodes)
    touched = {name for node in rest for name in (*node.inputs, *node.outputs)}.union(graph.outputs)
    tensors = {name: t for name, t in graph.tensors.items() if name in touched or t.kind in always}
    return replace(graph, nodes=rest, tensors=tensors)


# --- dead code --------------------------------------------------------------------------------------------------------


@graph_pass
def eliminate_dead(graph: Graph) -> Graph:
    """Leave out nodes whose results nobody needs, and weights that nobody reads.

    Needed are the outputs, and what is written in place into storage that outlives the run (caches, buffers, weights,
    inputs). Inputs and caches stay, read or not: they belong to the caller.

    Args:
        graph: The program; one that names no outputs is left as it is.

    Returns:
        The smaller program, the graph itself where all is needed.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("half", "fp32")
        >>> x = b.input("x", (8,))
        >>> kept, lost = b.op("exp", x), b.op("mul", x, b.weight("w", (8,)))
        >>> after = eliminate_dead(b.graph([kept]))
        >>> [node.op for node in after.nodes], after.parameters
        (['exp'], 0)
    """
    if not graph.outputs:
        return graph
    after = _live(graph)
    nodes, weights = len(graph.nodes) - len(after.nodes), _stored(graph) - _stored(after)
    if not nodes and len(after.tensors) == len(graph.tensors):
        return graph
    return rewritten(after, f"dead code: {nodes} nodes and {len(weights)} weights or buffers that nothing reads")


def _live(graph: Graph) -> Graph:
    root = aliases(graph).root
    return _restricted(graph, graph.live(
        node for node in graph.nodes if in_place(node) and graph.tensors[root(node.outputs[0])].kind != "activation"
    ).nodes)  # fmt: skip


def _stored(graph: Graph) -> set[str]:
    return {name for name, tensor in graph.tensors.items() if tensor.kind in ("weight", "buffer")}


# --- the same thing twice ---------------------------------------------------------------------------------------------


@graph_pass
def merge_equal(graph: Graph) -> Graph:
    """Compute once what equal nodes compute from the same tensors (common subexpressions).

    Equal are operator, options, inputs and number format. Left apart are nodes that leave open what they compute,
    random ones, those that run several times (on other data each time) or whose storage is written in place, outputs,
    and nodes of different fused kernels, where to compute again may be cheaper than to write out. In training all stay:
    what is computed again there is a recomputation that saves memory. In imported programs the source's own word for
    the operation must be the same too: several of them may share an operator (``leaky_relu`` is counted as ``relu``).

    Args:
        graph: The program.

    Returns:
        The smaller program, the graph itself where no two nodes are equal.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("twice", "fp32")
        >>> x = b.input("x", (8,))
        >>> y = b.op("add", b.op("exp", x), b.op("exp", x))
        >>> [node.op for node in merge_equal(b.graph([y])).nodes]
        ['exp', 'add']
    """
    if graph.info.phase == "train":
        return graph
    storage = aliases(graph)
    renamed: dict[str, str] = {}
    first: dict[Any, Node] = {}
    nodes: list[Node] = []
    apart = 0
    for node in graph.nodes:
        node = replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))
        key = _meaning(graph, node)
        twin = first.setdefault(key, node) if settled(node) else node
        apart += not settled(node) and first.setdefault((key, "open"), node) is not node
        if twin is node or not _may_merge(graph, storage, twin, node):
            nodes.append(node)
        else:
            renamed.update(zip(node.outputs, twin.outputs, strict=True))
    if not renamed:
        return graph
    merged = f"common subexpressions: {len(renamed)} results that were already computed"
    open_ = f"{apart} equal nodes do not determine what they compute and stay separate" if apart else ""
    return rewritten(_restricted(graph, nodes), merged, open_)


def _meaning(graph: Graph, node: Node) -> Any:
    """Equal for nodes that compute the same."""
    word = node.name.rpartition(".")[2].rstrip("0123456789").rstrip("_") if graph.info.source is not None else ""
    formats = tuple((graph.tensors[name].dtype, graph.tensors[name].shape) for name in node.outputs)
    return node.op, node.attrs, node.inputs, node.count, formats, word


def _may_merge(graph: Graph, storage: Aliases, twin: Node, node: Node) -> bool:
    if (
        in_place(node)
        or node.count != 1
        or not storage.written.isdisjoint(map(storage.root, (*node.outputs, *twin.outputs)))
    ):
        return False
    together = (
        node.label == twin.label
        or len(graph.kernels[node.label]) == len(graph.kernels[twin.label]) == 1
        or is_view(node)
    )
    return together and not set(graph.outputs).intersection(node.outputs)


# --- what only depends on constants -----------------------------------------------------------------------------------


@graph_pass
def fold_constants(graph: Graph) -> Graph:
    """Compute ahead what only depends on weights and buffers.

    The results become weights, or buffers where only buffers went into them. What computes them is kept as a graph in
    ``info.folded``, so that values can still be had. A result that would take more room than what it replaces
    (weights stored in few bits, a table that is spread out) is left to the run, and so are random values, exchanges
    between devices and everything in training, where weights change.

    Args:
        graph: The program.

    Returns:
        The program that reads the results, the graph itself where nothing is constant.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("scaled", "fp32")
        >>> w = b.op("mul", b.weight("w", (8, 4)), b.weight("s", (4,)), name="ws")
        >>> after = fold_constants(b.graph([b.op("linear", b.input("x", (2, 4)), w)]))
        >>> [node.op for node in after.nodes], after.parameters, after.info.folded.nodes[0].op
        (['linear'], 32, 'mul')
    """
    constants = Constants(graph)
    folded = constants.folded
    if not folded:
        return graph
    after = _without(graph, constants, folded)
    after = after.with_info(folded=_ahead(graph, after, constants, folded))
    note = f"constant folding: {len(folded)} nodes that depend only on weights"
    larger = f"not folded: {constants.larger} constants that would need more memory" if constants.larger else ""
    return rewritten(after, note, larger)


class Constants:
    """Tensors that are the same in every run, and what it would take to store them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.storage = aliases(graph)
        self.kind: dict[str, str] = {
            name: tensor.kind
            for name, tensor in graph.tensors.items()
            if tensor.kind in ("weight", "buffer")
            and name not in self.storage.written
            and not name.startswith(_SCRATCH)
        }
        self.views = {node.outputs[0]: node for node in graph.nodes if is_view(node)}
        #: What outputs look at: a view of a weight keeps the weight.
        self.outlive = {self.storage.base(name) for name in graph.outputs}
        self.larger = 0
        if graph.info.phase == "train":  # weights change
            self.kind.clear()
        #: The nodes to compute ahead, in order.
        self.folded = tuple(node for node in graph.nodes if self._folds(node))

    def owned(self, name: str, reader: Node) -> bool:
        """Tell whether a tensor is a constant that one node alone reads."""
        base = self.base(name)
        return name in self.kind and self.readers(base) == {reader.name} and base not in self.outlive

    def base(self, name: str) -> str:
        """Return what a view looks at."""
        return self.storage.base(name)

    def readers(self, base: str) -> set[str]:
        """The nodes that read a tensor, itself or by a view."""
        readers, waiting = set[str](), [base]
        while waiting:
            for node in self.graph.consumers.get(waiting.pop(), ()):
                if is_view(node) and any(name in self.graph.consumers for name in node.outputs):
                    waiting.extend(node.outputs)
                else:  # a view that nothing reads stays, and what it looks at with it
                    readers.add(node.name)
        return readers

    def _folds(self, node: Node) -> bool:
        if not node.inputs or node.count != 1 or not all(name in self.kind for name in node.inputs):
            return False
        kinds = {self.kind[name] for name in node.inputs}
        if is_view(node):
            self.kind.update(dict.fromkeys(node.outputs, max(kinds)))
            return False
        fixed = in_place(node) or node.op in RANDOM or OPS[node.op].kind in ("network", "transfer")
        if fixed or not (self.storage.written | set(self.graph.outputs)).isdisjoint(node.outputs):
            return False
        if not self._smaller(node):
            self.larger += 1
            return False
        self.kind.update(dict.fromkeys(node.outputs, max(kinds)))
        return True

    def _smaller(self, node: Node) -> bool:
        """Tell whether the result takes no more room than the inputs that nobody else reads."""
        own = {self.base(name) for name in node.inputs if self.owned(name, node)}
        before, after = (sum(nbytes(self.graph.tensors[name]) for name in names) for names in (own, node.outputs))
        return bool(after == before) or (not hasattr(after - before, "terms") and bool(after <= before))


def _without(graph: Graph, constants: Constants, folded: tuple[Node, ...]) -> Graph:
    """The program that reads the results; what only the folded nodes read is gone, views of constants among it."""
    gone, nodes, needed = {node.name for node in folded}, list[Node](), set(graph.outputs)
    for node in reversed(graph.nodes):
        read_before = any(name in graph.consumers for name in node.outputs)
        idle = is_view(node) and node.inputs[0] in constants.kind and read_before and needed.isdisjoint(node.outputs)
        if node.name not in gone and not idle:
            nodes.append(node)
            needed.update(node.inputs)
    touched = {name for node in graph.nodes for name in (*node.inputs, *node.outputs)}
    written = {name for node in nodes for name in node.outputs}
    stored: dict[str, Any] = {name: constants.kind[name] for node in folded for name in node.outputs}
    tensors = {
        name: replace(tensor, kind=stored.get(name, tensor.kind))
        for name, tensor in graph.tensors.items()
        if name in needed or name in written or name not in touched
    }
    return replace(graph, nodes=tuple(reversed(nodes)), tensors=tensors)


def _ahead(graph: Graph, after: Graph, constants: Constants, folded: tuple[Node, ...]) -> Graph:
    """Return the program that computes the results still read, with what was computed ahead before."""
    old = graph.info.folded or Graph("", {}, ())
    names = {node.name for node in (*folded, *_views_for(constants, folded))}
    fresh = tuple(replace(node, kernel="") for node in graph.nodes if node.name in names)
    tensors = {name: graph.tensors[name] for node in fresh for name in (*node.inputs, *node.outputs)}
    results = (*old.outputs, *(name for node in folded for name in node.outputs))
    outputs = tuple(name for name in results if name in after.tensors)
    return _live(Graph(f"{graph.name}, ahead", {**tensors, **old.tensors}, (*old.nodes, *fresh), outputs))


def _views_for(constants: Constants, folded: tuple[Node, ...]) -> Iterator[Node]:
    for node in folded:
        for name in node.inputs:
            while name in constants.views:
                yield constants.views[name]
                name = constants.views[name].inputs[0]


# --- all of it --------------------------------------------------------------------------------------------------------


@graph_pass
def clean(graph: Graph) -> Graph:
    """Leave out all that a program does in vain: equal nodes, constants, dead code, until nothing changes.

    Args:
        graph: The program.

    Returns:
        The smaller program, the graph itself where nothing is in vain.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("wasteful", "fp32")
        >>> x, w = b.input("x", (2, 4)), b.weight("w", (4, 4))
        >>> transposed = [b.op("transpose_copy", w, name=name) for name in ("w1", "w2")]
        >>> matmuls = [b.op("matmul", x, each) for each in transposed]
        >>> lost = b.op("softmax", matmuls[0])
        >>> [node.op for node in clean(b.graph([b.op("add", *matmuls, name="y")])).nodes]
        ['matmul', 'add']
    """
    while True:
        after = eliminate_dead(fold_constants(merge_equal(graph)))
        if after is graph:
            return graph
        graph = after
