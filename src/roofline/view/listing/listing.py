"""A graph as a person reads it: what each node is, what it costs, which kernel it lands in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from roofline.counting.counts import (
    Counts,
    Kernel,
    KernelCount,
    Share,
    kernel_boundaries,
    kernels,
    shares,
    unknown_operations,
)
from roofline.counting.grid import grid
from roofline.frontends.source import Program, as_graph
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Tensor, sizes_of
from roofline.ir.sizes import Dim, evaluate, substitute, symbols
from roofline.ops.registry import OPS
from roofline.passes.fusion.fuse import unfuse
from roofline.view.listing import dot, text
from roofline.view.listing.drawing import BOX_HEIGHT, BOX_WIDTH, drawing
from roofline.view.listing.fold import Folder, Span, stands_for, tree
from roofline.view.listing.rows import Block, Item, KernelRow, Listed, Row
from roofline.view.listing.wording import sentence
from roofline.view.pages.render import render

#: Options that say no more than the shape of the output, or are named already.
_SHOWN_ELSEWHERE = frozenset({"shape"})


class Listing(Listed):
    """A program, node by node; prints as text, shows as HTML in a notebook.

    From :func:`roofline.listing`.
    """

    def __str__(self) -> str:
        return text.text(self)

    def _repr_html_(self) -> str:
        return render("fragment", **self._shown())

    def dot(self) -> str:
        """Return the graph for Graphviz."""
        return dot.dot(self)

    def html(self) -> str:
        """Return a page that needs nothing but itself."""
        size = {"box_width": BOX_WIDTH, "box_height": BOX_HEIGHT}
        return render("listing", drawing=drawing(self), **size, **self._shown())

    def _shown(self) -> dict[str, Any]:
        """Return what templates show of a listing."""
        return {
            "listing": self, "title": text.heading(self), "subtitle": text.subheading(self), "sums": text.sums(self),
            "faults": list(text.faults(self)), "notes": list(text.notes(self)),
        }  # fmt: skip


def listing(
    program: Program, *, fold: bool = True, phase: str | None = None, dtype: str | None = None, **sizes: int
) -> Listing:
    """List a program node by node: operation, shapes, options, FLOPs, bytes and kernel.

    Sizes that are given become numbers; the others stay symbols. Bytes are those that cross the boundaries of kernels,
    each laid to the node that first reads or that writes them, so the rows sum to what :func:`roofline.count` counts.

    Args:
        program: A graph (pass it through :func:`roofline.passes.fuse` to see compiled kernels), a shipped name, or the
            path of a model file, workload, config or script.
        fold: Show equal neighbours, such as the layers of a decoder, once.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``batch``, ``seq``, ``context`` and any other size of the program; those that are absent stay symbols.

    Returns:
        The listing: text, HTML, Graphviz or plain data.

    Raises:
        UsageError: A size that is no whole number, or that the graph does not know.
        UnknownOp: A node's operator is not registered.

    Example:
        >>> import roofline as rl
        >>> nodes = listing("gpt2", phase="forward", batch=1, seq=1024)
        >>> nodes.folds[0].title, nodes.folds[0].times, nodes.rows[-1].name, nodes.rows[-1].count
        ('0 ... 11', 12, 'head', 1)
        >>> nodes.counts.flops == rl.count(nodes.graph, batch=1, seq=1024).flops
        True
    """
    graph = as_graph(program, phase, dtype)
    return _Lister(graph, _checked(graph, sizes), fold).listing()


def _checked(graph: Graph, sizes: Mapping[str, Any]) -> dict[str, int]:
    """Return sizes as whole numbers under the graph's own names."""
    numbers = sizes_of(graph, sizes)
    for name, value in numbers.items():
        if hasattr(value, "__len__") and not isinstance(value, str):
            raise UsageError(f"{name}={str(value)[:60]}: a listing shows one point; give one number")
    return {name: int(value) for name, value in grid(frozenset(numbers), numbers).values.items()}


@dataclass(frozen=True, slots=True)
class _Place:
    """The place where a node runs: the number of its kernel (0 for none), its step of how many, and how often."""

    number: int
    step: int
    steps: int
    launches: int


_NOWHERE = _Place(0, 1, 1, 1)


class _Lister:
    """Works out the rows of one graph; every distinct kernel, shape and form once."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int], fold: bool) -> None:
        self.graph, self.sizes, self.is_folding = graph, sizes, fold
        self.scope = kernel_boundaries(graph)
        self.kernels = kernels(graph)
        self._values: dict[Any, Any] = {}
        self._tensors: dict[str, Tensor] = {}
        self._shares = [tuple(map(self._share, shares(self.scope, kernel.nodes))) for kernel in self.kernels]
        self._alone = {
            name: self.at(kernel.read) + self.at(kernel.write)
            for kernel in kernels(unfuse(graph))
            for name in kernel.names
        }

    @cached_property
    def places(self) -> tuple[_Place, ...]:
        """The place of each node."""
        running: dict[str, _Place] = {}
        for number, kernel in enumerate(self.kernels, 1):
            steps, launches = len(kernel.nodes), kernel.main.count
            for label in kernel.names:
                for step, node in enumerate(self.scope.graph.kernels[label], 1):
                    running[node.name] = _Place(number, step, steps, launches)
        return tuple(running.get(node.name, _NOWHERE) for node in self.graph.nodes)

    def listing(self) -> Listing:
        spans = tree([node.name for node in self.graph.nodes])
        if self.is_folding:
            spans = Folder(self.graph, self.places).fold(spans)
        counts = Counts(tuple(map(self._counted, self.kernels)))
        distinct = tuple(
            KernelRow(number, row.kernel.name, tuple(node.op for node in row.kernel.nodes), row.kernel.count,
                      row.flops, row.vector, row.bytes)
            for number, row in enumerate(counts.rows, 1)
        )  # fmt: skip
        return Listing(
            graph=self.graph,
            sizes=dict(self.sizes),
            items=tuple(self._item(span, 1) for span in spans),
            kernels=distinct,
            counts=counts,
            shown=stands_for(spans, len(self.graph.nodes)),
            unknown=unknown_operations(self.graph),
        )

    # --- values -------------------------------------------------------------------------------------------------------

    def at(self, value: Any) -> Any:
        """Put the sizes into a count: exact where all are known, else what remains of the polynomial."""
        if not isinstance(value, Dim):
            return evaluate(value, {})
        if value not in self._values:
            known = symbols(value) <= self.sizes.keys()
            self._values[value] = evaluate(value, self.sizes) if known else substitute(value, self.sizes)
        return self._values[value]

    def _share(self, share: Share) -> Share:
        return Share(self.at(share.flops), self.at(share.vector), self.at(share.read), self.at(share.write))

    def _counted(self, kernel: Kernel) -> KernelCount:
        by = [{dtype: self.at(value) for dtype, value in part.items()} for part in (kernel.flops, kernel.vector)]
        return KernelCount(kernel, by[0], by[1], self.at(kernel.read), self.at(kernel.write))

    def tensor(self, name: str) -> Tensor:
        if name not in self._tensors:
            tensor = self.graph.tensors[name]
            self._tensors[name] = replace(tensor, shape=tuple(self.at(size) for size in tensor.shape))
        return self._tensors[name]

    def _option(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._option, value))
        return self.at(value) if isinstance(value, Dim) else value

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _item(self, span: Span, outer: int) -> Item:
        times = outer * span.times
        if span.items is None:
            row = self._row(span.start, times)
            return row if span.times == 1 else self._block(span, (row,))
        return self._block(span, tuple(self._item(inner, times) for inner in span.items))

    def _block(self, span: Span, items: tuple[Item, ...]) -> Block:
        factors = [item.launches if isinstance(item, Row) else item.times for item in items]
        sums = [
            sum(factor * getattr(item, part) for factor, item in zip(factors, items, strict=True))
            for part in ("flops", "vector", "bytes")
        ]
        return Block(span.name, span.last, span.path, span.times, items, *sums)

    def _row(self, index: int, times: int) -> Row:
        node, place = self.graph.nodes[index], self.places[index]
        share = self._shares[place.number - 1][place.step - 1] if place.number else Share()
        return Row(
            index=index,
            name=node.name,
            op=node.op,
            meaning=sentence(OPS[node.op].doc),
            inputs=tuple(map(self.tensor, node.inputs)),
            outputs=tuple(map(self.tensor, node.outputs)),
            options=tuple((key, self._option(value)) for key, value in node.attrs if key not in _SHOWN_ELSEWHERE),
            flops=share.flops,
            vector=share.vector,
            read=share.read,
            write=share.write,
            bytes_alone=self._alone.get(node.name, 0),
            kernel=node.label if place.number else "",
            number=place.number,
            step=place.step,
            steps=place.steps,
            launches=place.launches,
            count=place.launches * times,
        )
