"""The builder: write a program, or edit one, operator by operator; the result is a validated graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any, Self

from roofline.ir.dtypes import dtype as number_format
from roofline.ir.errors import ShapeError, UsageError
from roofline.ir.graph import Graph, Info, Kind, Node, Phase, Tensor
from roofline.ir.sizes import Size, python_number
from roofline.ops.registry import get_op


class Builder:
    """Collects tensors and nodes, infers shapes from the operator registry.

    :meth:`of` starts from a program to edit it: operators are appended, put :meth:`before` a node or in the place of
    one (``replacing``), nodes are changed and dropped, and tensors that nothing writes any more go with them.

    Args:
        name: What the program is called.
        dtype: Number format of activations, weights and cache unless said otherwise; empty for that of what an operator
            reads first.

    Example:
        >>> b = Builder("tiny", dtype="bf16")
        >>> x = b.input("x", (32, 64))
        >>> y = b.op("linear", x, b.weight("w", (128, 64)), name="up")
        >>> b.tensor(y).shape, b.graph(outputs=[y]).parameters
        ((32, 128), 8192)
        >>> edited = Builder.of(b.graph([y]))
        >>> with edited.before(edited.nodes[0]):
        ...     edited.change(edited.nodes[0], inputs=(edited.op("relu", x), "w"))
        >>> [node.op for node in edited.graph().nodes]
        ['relu', 'linear']
    """

    def __init__(self, name: str, dtype: str = "") -> None:
        self.name = name
        self.dtype = dtype and number_format(dtype).name
        self.phase: Phase = "forward"
        #: The node that was added last.
        self.latest = ""
        self._start = Graph(name, {}, ())
        self._tensors: dict[str, Tensor] = {}
        #: Nodes by the place that they stand at, each first at its own.
        self._places: dict[str, list[Node]] = {}
        self._before: Node | None = None
        self._scopes: list[str] = []
        self._kernel = ""
        self._kernels: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._times = 1

    @classmethod
    def of(cls, graph: Graph, nodes: Iterable[Node] | None = None, dtype: str = "") -> Self:
        """Start from a program.

        Args:
            graph: The program.
            nodes: Those of its nodes that stay; all by default.
            dtype: As for a program that is new.

        Returns:
            A builder whose :meth:`graph` has the program's name, outputs, items, information and history.
        """
        b = cls(graph.name, dtype)
        b._start, b._tensors = graph, dict(graph.tensors)
        b._places = {node.name: [node] for node in (graph.nodes if nodes is None else nodes)}
        b._kernels = {name for node in graph.nodes for name in (node.name, node.label)}
        return b

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the names of everything built inside, like a submodule."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    @contextmanager
    def kernel(self, name: str) -> Iterator[str]:
        """Run everything built inside, and nothing else, as one kernel; its label."""
        outer, self._kernel = self._kernel, self._unique(name)
        self._kernels.add(self._kernel)
        try:
            yield self._kernel
        finally:
            self._kernel = outer

    @contextmanager
    def repeat(self, times: int) -> Iterator[None]:
        """Run everything built inside so many times, like the body of a loop."""
        outer, self._times = self._times, self._times * times
        try:
            yield
        finally:
            self._times = outer

    @contextmanager
    def inside(self, label: str) -> Iterator[None]:
        """Run everything built inside in the kernel of this label; each operator in its own where it is empty."""
        outer, self._kernel = self._kernel, label
        try:
            yield
        finally:
            self._kernel = outer

    @contextmanager
    def before(self, node: Node) -> Iterator[None]:
        """Put everything built inside in front of a node."""
        outer, self._before = self._before, node
        try:
            yield
        finally:
            self._before = outer

    @property
    def prefix(self) -> str:
        """The scopes that are open, dotted."""
        return ".".join(self._scopes)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes so far."""
        return tuple(chain.from_iterable(self._places.values()))

    @property
    def state(self) -> tuple[Any, ...]:
        """A copy of what was built so far, to come back to by :meth:`restore`."""
        places = {name: list(nodes) for name, nodes in self._places.items()}
        return dict(self._tensors), places, set(self._kernels), dict(self._numbers)

    def restore(self, state: tuple[Any, ...]) -> None:
        """Forget, or put back, what was built since or until then."""
        tensors, places, kernels, numbers = state
        self._tensors, self._kernels, self._numbers = dict(tensors), set(kernels), dict(numbers)
        self._places = {name: list(nodes) for name, nodes in places.items()}

    def _unique(self, name: str) -> str:
        first = path = ".".join([*self._scopes, name])
        number = self._numbers.get(first, 1)
        while path in self._tensors or path in self._kernels:
            number += 1
            path = f"{first}_{number}"
        self._numbers[first] = number
        return path

    def source(self, name: str, shape: tuple[Size, ...], kind: Kind, dtype: str | None = None) -> str:
        """Declare a tensor that nothing computes; returns its full name."""
        path, shape = self._unique(name), tuple(map(python_number, shape))
        for size in shape:
            if isinstance(size, str):
                raise ShapeError(
                    f"{path}: a size of {size!r}, which is text; expected roofline.ir.sizes.symbol({size!r})"
                )
            if isinstance(size, int) and size < 1:
                raise ShapeError(f"{path}: a size of {size} in {list(shape)}; sizes start at 1")
        self._tensors[path] = Tensor(path, shape, number_format(dtype).name if dtype else self.dtype, kind)
        return path

    def input(self, name: str, shape: tuple[Size, ...], dtype: str | None = None) -> str:
        """Declare a tensor that the caller hands in."""
        return self.source(name, shape, "input", dtype)

    def weight(self, name: str, shape: tuple[Size, ...], dtype: str | None = None) -> str:
        """Declare a parameter."""
        return self.source(name, shape, "weight", dtype)

    def cache(self, name: str, shape: tuple[Size, ...], dtype: str | None = None) -> str:
        """Declare state kept between steps, such as the KV cache."""
        return self.source(name, shape, "cache", dtype)

    def tensor(self, name: str) -> Tensor:
        """A tensor by full name."""
        return self._tensors[name]

    def shape(self, name: str) -> tuple[Size, ...]:
        """The shape of a tensor by full name."""
        return self._tensors[name].shape

    def restate(self, name: str, shape: tuple[Size, ...] | None = None, dtype: str = "") -> None:
        """Give a tensor another shape, such as a source's own form of a symbolic size, or another format."""
        old = self._tensors[name]
        self._tensors[name] = replace(old, shape=old.shape if shape is None else shape, dtype=dtype or old.dtype)

    def node(self, name: str) -> Node:
        """Return a node of the program that is edited as it is now."""
        return next(node for node in self._places[name] if node.name == name)

    def place(self, node: Node) -> None:
        """Put a node as it is: last, or before the node that :meth:`before` names."""
        self.latest = node.name
        if self._before is None:
            self._places.setdefault(node.name, []).append(node)
            return
        nodes = self._places[self._before.name]
        nodes.insert(next((at for at, other in enumerate(nodes) if other is self._before), len(nodes)), node)

    def change(self, node: Node, **changes: Any) -> None:
        """Give a node other inputs, options, another kernel..."""
        nodes = self._places[node.name]
        self._places[node.name] = [replace(n, **changes) if n.name == node.name else n for n in nodes]

    def drop(self, *nodes: Node) -> None:
        """Leave out nodes."""
        for node in nodes:
            self._places[node.name] = [other for other in self._places[node.name] if other is not node]

    def op(
        self, op: str, *inputs: str, name: str = "", dtype: str | None = None, count: int = 1,
        replacing: Node | None = None, **attrs: Any,
    ) -> str:  # fmt: skip
        """Add a node and return the name of its output.

        Args:
            op: Operator name in the registry.
            inputs: Full names of its inputs.
            name: Of the node and its output, in the current scope; the operator's name by default.
            dtype: Number format of the output, the builder's by default (a view keeps its input's).
            count: How often it runs; a loop around it multiplies that.
            replacing: The node in whose place it stands: it takes its name, output, kernel and count.
            attrs: The operator's options.

        Raises:
            UnknownOp: No such operator.
            ShapeError: The inputs contradict it, or the output of the node that it replaces.
            UsageError: It would not run even once.
        """
        path = replacing.name if replacing else self._unique(name or op)
        if count < 1:
            raise UsageError(f"{path}: count={count}; a node runs at least once")
        spec, old = get_op(op, path), self._tensors[replacing.outputs[0]] if replacing else None
        options = tuple(sorted((key, _frozen(value)) for key, value in attrs.items()))
        try:
            shape = spec.output([self._tensors[i].shape for i in inputs], dict(options))
        except ShapeError as error:
            raise ShapeError(f"{path}: {op} {error}") from None
        if old is not None and old.shape != shape:
            raise ShapeError(f"{path}: {op} gives {list(shape)} where the program has {list(old.shape)}")
        if not dtype:
            follows = spec.alias is not None or not self.dtype
            dtype = self._tensors[inputs[spec.alias or 0]].dtype if follows else self.dtype
        out = Tensor(old.name if old else path, shape, number_format(dtype).name)
        kernel, times, scope = self._kernel, count * self._times, path.rpartition(".")[0]
        if replacing:
            kernel, times, scope = kernel or replacing.kernel, replacing.count, replacing.scope
            self.drop(replacing)
        self._tensors[out.name] = out
        self.place(Node(path, op, inputs, (out.name,), options, kernel, times, scope, self.phase))
        return out.name

    def graph(
        self,
        outputs: Iterable[str] | None = None,
        items: Size | None = None,
        item: str = "",
        info: Info | None = None,
    ) -> Graph:
        """Finish: the validated graph.

        Args:
            outputs: Tensors that outlive the run.
            items: What one run produces, for throughput.
            item: The word for one of them.
            info: What is known of the program. All that is left out is as in the program that was edited.
        """
        start = self._start
        ends = start.outputs if outputs is None else tuple(outputs)  # which may add the last nodes
        nodes = self.nodes
        written = {name for node in nodes for name in node.outputs}
        return replace(
            start, name=self.name, nodes=nodes,
            tensors={name: t for name, t in self._tensors.items() if t.kind != "activation" or name in written},
            outputs=ends,
            items=start.items if items is None else items, item=item or start.item, info=info or start.info,
        ).validate()  # fmt: skip


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value
