"""What the body of a fused kernel asks of a core: live values, registers, rows, and what overflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roofline.cost import compiled as fusing
from roofline.counting.counts import Boundaries, kernel_boundaries
from roofline.hardware.chip import Chip
from roofline.hardware.library import chip as find_chip
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph, Node, sizes_of
from roofline.ir.sizes import evaluate, prod
from roofline.ops.registry import OPS, node_work
from roofline.passes.fusion.inlining import kept_of

_REDUCING = ("rowwise", "reduction")
_PRODUCTS = ("matmul", "conv", "moe")


@dataclass(frozen=True, slots=True)
class Pressure:
    """A kernel's body against the limits of a core.

    Attributes:
        kernel: Label of the kernel.
        registers: What a thread holds; ``None`` for a library kernel and on chips without published limits.
        narrower: Elements a thread for which nothing is spilled; 0 if there is no such number.
        rows: What a core keeps of a row; ``None`` where the body has no reduction or the chip says nothing.
    """

    kernel: str
    registers: fusing.Registers | None = None
    narrower: int = 0
    rows: fusing.Rows | None = None

    @property
    def spill_bytes(self) -> float:
        """Local memory that one launch writes and reads back [byte]."""
        return float(self.registers.spill_bytes) if self.registers else 0.0

    @property
    def again_bytes(self) -> float:
        """Rows that one launch reads a second time [byte]."""
        return float(self.rows.again) if self.rows else 0.0


class Body:
    """The operators of one kernel in order, and how long each value is needed."""

    def __init__(self, scope: Boundaries, nodes: Sequence[Node], sizes: Mapping[str, Any]) -> None:
        self.scope, self.sizes = scope, sizes
        self.nodes = tuple(node for node in nodes if OPS[node.op].kind != "view")
        self.inside = {name for node in self.nodes for name in node.outputs}
        self.last = {scope.base(name): at for at, node in enumerate(self.nodes) for name in node.inputs}
        self.first: dict[str, int] = {}  # where a value is computed, or first needed and so loaded
        for at, node in enumerate(self.nodes):
            for name in (*map(scope.base, node.inputs), *node.outputs):
                self.first.setdefault(name, at)

    def elements(self, name: str) -> Any:
        """Elements of a tensor."""
        return evaluate(self.scope.tensors[name].numel, self.sizes)

    @property
    def sweep(self) -> Any:
        """Elements of the largest array that the body works on, tables that are only looked up in left out."""
        return max(self.elements(name) for node in self.nodes for name in _walked(node))

    @property
    def external(self) -> set[str]:
        """Tensors that come from outside."""
        return {self.scope.base(name) for node in self.nodes for name in node.inputs} - self.inside

    def widest_element(self) -> float:
        """Bytes of the widest element that enters or leaves [byte]."""
        leaves = {name for node in self.nodes for name in node.outputs if self.scope.leaves(name, node.label)}
        return max(float(DTYPES[self.scope.tensors[name].dtype].bytes) for name in self.external | leaves)

    def live_at(self, at: int) -> int:
        """Values that are needed while an operator runs: its operands and what later ones need, or its results too."""
        node = self.nodes[at]
        held = {name for name, last in self.last.items() if self.first[name] < at <= last}
        operands = held | {self.scope.base(name) for name in node.inputs}
        after = {name for name in operands if self.last.get(name, -1) > at} | set(node.outputs)
        return max(len(operands), len(after))

    @property
    def live(self) -> int:
        """Values that are needed at once, at the fullest."""
        return max(self.live_at(at) for at in range(len(self.nodes)))

    @property
    def is_double(self) -> bool:
        """True where something is computed in fp64."""
        return any(self.scope.tensors[name].dtype == "fp64" for name in self.inside)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _columns(self, node: Node) -> Any:
        parts = kept_of(node, self.scope.tensors[node.inputs[0]].shape)
        return evaluate(prod(size for what, size in parts if what == "rep"), self.sizes)

    def kept(self, at: int) -> list[str]:
        """Arrays of whole rows that are needed again once an operator has reduced over them."""
        node = self.nodes[at]
        own = {self.scope.base(node.inputs[0])} if OPS[node.op].kind == "rowwise" else set()
        later = {name for name, last in self.last.items() if self.first[name] <= at < last}
        rows = self.elements(node.inputs[0])
        return [name for name in own | later if self.elements(name) >= rows and name not in node.outputs]

    def rows(self, room: float) -> fusing.Rows | None:
        """The fullest moment of the body's reductions against the shared memory of a core."""
        moments = [self._rows(at, room) for at, node in enumerate(self.nodes) if OPS[node.op].kind in _REDUCING]
        return max((rows for rows in moments if rows), key=lambda rows: float(rows.row_bytes), default=None)

    def _rows(self, at: int, room: float) -> fusing.Rows | None:
        arrays = self.kept(at)
        if not arrays:
            return None
        reread = sum(self.elements(name) * DTYPES[self.scope.tensors[name].dtype].bytes for name in arrays)
        return fusing.rows(self._columns(self.nodes[at]), len(arrays), float(reread), room, 8 if self.is_double else 4)


def _walked(node: Node) -> tuple[str, ...]:
    """Arrays whose elements a node iterates over: its results, and what a reduction reads."""
    return (*node.outputs, *(node.inputs[:1] if OPS[node.op].kind in _REDUCING else ()))


def pressure(graph: Graph, kernel: str, chip: str | Chip, **sizes: Any) -> Pressure:
    """Work out what a kernel asks of registers and shared memory.

    Live values: in the order of the program, an operand from its first use to its last. A thread works on as many
    elements as its widest load of 16 bytes brings. After a matmul, its sums come on top and what follows works on
    pieces of them.

    Raises:
        UsageError: No kernel of that name.
        UnboundSize: A symbol of the graph has no value.

    Example:
        >>> import roofline as rl
        >>> b = rl.ops.Builder("sum", "fp32")
        >>> parts = [b.op("exp", b.input("x", (4096, 4096))) for _ in range(70)]
        >>> total = parts[0]
        >>> for part in parts[1:]:
        ...     total = b.op("add", total, part)
        >>> wide = rl.passes.fuse(b.graph([b.op("div", parts[0], total)]), "ideal")
        >>> found = pressure(wide, wide.nodes[0].label, "h100-sxm")
        >>> found.registers.live, found.registers.needed, found.registers.spilled, found.narrower
        (70, 294, 39, 2)
    """
    scope = kernel_boundaries(graph)
    if kernel not in scope.graph.kernels:
        raise UsageError(f"{graph.name} has no kernel {kernel[:60]!r}{did_you_mean(kernel, scope.graph.kernels)}")
    return pressure_of(scope, kernel, scope.graph.kernels[kernel], find_chip(chip), sizes_of(graph, sizes))


def pressure_of(
    scope: Boundaries, kernel: str, nodes: Sequence[Node], chip: Chip, sizes: Mapping[str, Any]
) -> Pressure:
    """The same for some nodes, as if they were one kernel."""
    real = [node for node in nodes if OPS[node.op].kind != "view"]
    main = next((node for node in real if _contracts(scope, node)), None)
    following = [node for node in real if node is not main]
    if not following or (main is not None and not _is_epilogue(scope, main, following)):
        return Pressure(kernel)
    body = Body(scope, following, sizes)
    room = fusing.shared_memory(chip)
    rows = body.rows(room) if main is None and room else None
    if not fusing.has_registers(chip):
        return Pressure(kernel, rows=rows)
    held, words = (fusing.ACCUMULATORS if main is not None else 0), 2 if body.is_double else 1
    # The matmul's sums are counted already; a piece of them at a time is what the rest works on.
    live, element = body.live, body.widest_element()
    registers = fusing.registers(live, element, body.sweep, held=held, words=words)
    return Pressure(kernel, registers, fusing.widest(live, element, held, words), rows)


def _contracts(scope: Boundaries, node: Node) -> bool:
    kind = OPS[node.op].kind
    return kind in (*_PRODUCTS, "attention", "network", "transfer") or node_work(node, scope.shapes(node)).flops != 0


def _is_epilogue(scope: Boundaries, main: Node, following: Sequence[Node]) -> bool:
    """Tell whether all other work is elementwise and comes after one matmul."""
    made = set(main.outputs)
    before = any(name in main.inputs for node in following for name in node.outputs)
    elementwise = all(OPS[node.op].kind == "pointwise" for node in following)
    reads = any(scope.base(name) in made for node in following for name in node.inputs)
    return OPS[main.op].kind in _PRODUCTS and elementwise and reads and not before
