"""The builder: add operators one by one and get a validated :class:`~roofline.ir.graph.Graph`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from roofline.ir.dtypes import dtype as number_format
from roofline.ir.errors import ShapeError, UsageError
from roofline.ir.graph import Graph, Info, Kind, Node, Tensor
from roofline.ir.sizes import Size
from roofline.ops.registry import get_op


class Builder:
    """Collects tensors and nodes, infers shapes from the operator registry.

    Args:
        name: What the program is called.
        dtype: Number format of activations, weights and cache unless said otherwise.

    Example:
        >>> b = Builder("tiny", dtype="bf16")
        >>> x = b.input("x", (32, 64))
        >>> y = b.op("linear", x, b.weight("w", (128, 64)), name="up")
        >>> b.tensor(y).shape, b.graph(outputs=[y]).parameters
        ((32, 128), 8192)
    """

    def __init__(self, name: str, dtype: str) -> None:
        self.name = name
        self.dtype = number_format(dtype).name
        self._tensors: dict[str, Tensor] = {}
        self._nodes: list[Node] = []
        self._scopes: list[str] = []
        self._kernel = ""
        self._kernels: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._times = 1

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the names of everything built inside, like a submodule."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    @contextmanager
    def kernel(self, name: str) -> Iterator[None]:
        """Run everything built inside, and nothing else, as one kernel."""
        outer, self._kernel = self._kernel, self._unique(name)
        self._kernels.add(self._kernel)
        try:
            yield
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

    @property
    def prefix(self) -> str:
        """The scopes that are open, dotted."""
        return ".".join(self._scopes)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes so far."""
        return tuple(self._nodes)

    @property
    def state(self) -> tuple[Any, ...]:
        """What was built so far, to come back to by :meth:`restore`."""
        return dict(self._tensors), list(self._nodes), set(self._kernels), dict(self._numbers)

    def restore(self, state: tuple[Any, ...]) -> None:
        """Forget, or put back, what was built since or until then."""
        tensors, nodes, kernels, numbers = state
        self._tensors, self._nodes, self._kernels = dict(tensors), list(nodes), set(kernels)
        self._numbers = dict(numbers)

    def _path(self, name: str) -> str:
        return ".".join([*self._scopes, name])

    def _unique(self, name: str) -> str:
        wanted = path = self._path(name)
        number = self._numbers.get(wanted, 1)
        while path in self._tensors or path in self._kernels:
            number += 1
            path = f"{wanted}_{number}"
        self._numbers[wanted] = number
        return path

    def _format(self, dtype: str | None) -> str:
        return number_format(dtype).name if dtype else self.dtype

    def source(self, name: str, shape: tuple[Size, ...], kind: Kind, dtype: str | None = None) -> str:
        """Declare a tensor that nothing computes; returns its full name."""
        for size in shape:
            if isinstance(size, str):
                raise ShapeError(
                    f"{self._path(name)}: a size of {size!r}, which is text; wanted roofline.ir.sizes.symbol({size!r})"
                )
            if isinstance(size, int) and size < 1:
                raise ShapeError(f"{self._path(name)}: a size of {size} in {list(shape)}; sizes start at 1")
        path = self._unique(name)
        self._tensors[path] = Tensor(path, tuple(shape), self._format(dtype), kind)
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

    def restate(self, name: str, shape: tuple[Size, ...]) -> None:
        """Write a tensor's shape in another form of the same value, such as a source's own for a symbolic size."""
        self._tensors[name] = replace(self._tensors[name], shape=shape)

    def op(self, op: str, *inputs: str, name: str = "", dtype: str | None = None, count: int = 1, **attrs: Any) -> str:
        """Add a node and return the name of its output.

        Args:
            op: Operator name in the registry.
            inputs: Full names of its inputs.
            name: Of the node and its output, in the current scope; the operator's name by default.
            dtype: Number format of the output, the builder's by default (a view keeps its input's).
            count: How often it runs; a loop around it multiplies that.
            attrs: The operator's options.

        Raises:
            UnknownOp: No such operator.
            ShapeError: The inputs contradict it.
            UsageError: It would not run even once.
        """
        path = self._unique(name or op)
        if count < 1:
            raise UsageError(f"{path}: count={count}; a node runs at least once")
        spec = get_op(op, path)
        try:
            shape = spec.output([self._tensors[i].shape for i in inputs], attrs)
        except ShapeError as error:
            raise ShapeError(f"{path}: {op} {error}") from None
        kept = self._tensors[inputs[spec.alias]].dtype if spec.alias is not None else self.dtype
        self._tensors[path] = Tensor(path, shape, self._format(dtype or kept))
        options = tuple(sorted((key, _frozen(value)) for key, value in attrs.items()))
        times, scope = count * self._times, path.rpartition(".")[0]
        self._nodes.append(Node(path, op, inputs, (path,), options, self._kernel, times, scope))
        return path

    def graph(
        self,
        outputs: list[str],
        items: Size = 1,
        item: str = "run",
        info: Info | None = None,
    ) -> Graph:
        """Finish: the validated graph."""
        graph = Graph(self.name, self._tensors, tuple(self._nodes), tuple(outputs), items, item, info or Info())
        return graph.validate()


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value
