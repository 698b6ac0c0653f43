"""Whether two kernels can be one: rules by what they are, what lies between them and how their loops run.

A rule looks at a pair and says why it cannot be one kernel, or how it can. The rules are those of fusing compilers
(torch.compile's: :mod:`roofline.passes.fusion.inductor`) and of the libraries' epilogues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from roofline.counting.counts import Boundaries
from roofline.ir.graph import Graph, Node
from roofline.ir.sizes import ceil_div, evaluate
from roofline.ops.registry import OPS, node_work
from roofline.passes.fusion.flash import attentions
from roofline.passes.fusion.inlining import kept_of

#: Epilogues that libraries of matmuls have: BIAS, RELU, GELU and their pairs (cuBLAS documentation,
#: cublasLtEpilogue_t; hipBLASLt documentation, hipblasLtEpilogue_t).
LIBRARY_EPILOGUES = frozenset({"bias_add", "relu", "gelu", "gelu_tanh"})


@dataclass(frozen=True, slots=True)
class Libraries:
    """Whose kernels matmuls and convolutions are on a vendor's chips, and who makes more of them.

    Attributes:
        matmul: The library of matmuls.
        epilogues: Its extension with epilogues; empty where there is none.
        conv: The library of convolutions.
        tiles: Who computes elementwise work on the tiles of a matmul.
        windows: Who does it on those of a convolution.
    """

    matmul: str
    epilogues: str
    conv: str
    tiles: str
    windows: str


_COMPILED = "a compiled epilogue"
LIBRARIES: Mapping[str, Libraries] = {
    "NVIDIA": Libraries("cuBLAS", "cuBLASLt", "cuDNN", "a CUTLASS or Triton epilogue", "cuDNN's runtime fusion"),
    "AMD": Libraries("rocBLAS", "hipBLASLt", "MIOpen", "a Composable Kernel or Triton epilogue", "MIOpen's fusion"),
    "": Libraries("library", "", "library", _COMPILED, _COMPILED),
}
#: Columns of the widest tile of a matmul: whole rows up to here are in one tile (CUTLASS, efficient_gemm.md).
TILE = 256
_CONTRACTIONS = ("matmul", "conv", "moe")
_LOOPS = ("pointwise", "rowwise", "reduction")
_WIRES = ("network", "transfer")


@dataclass(frozen=True, slots=True)
class Reason:
    """One line.

    Attributes:
        text: What it says, with the numbers.
        blocks: Whether the pair cannot be one kernel for it.
    """

    text: str
    blocks: bool = False


@dataclass(frozen=True)
class Side:
    """One kernel of a pair.

    Attributes:
        scope: Of the program.
        label: Of the kernel.
        nodes: Its operators, views left out.
        sizes: A number for each symbol.
    """

    scope: Boundaries
    label: str
    nodes: tuple[Node, ...]
    sizes: Mapping[str, Any]

    def elements(self, name: str) -> Any:
        """Elements of a tensor."""
        return evaluate(self.scope.tensors[name].numel, self.sizes)

    @cached_property
    def main(self) -> Node:
        """The contraction, or what reduces, or the last operator."""
        for kinds in ((*_CONTRACTIONS, "attention", *_WIRES), ("rowwise", "reduction"), ("move",)):
            for node in self.nodes:
                if OPS[node.op].kind in kinds or (kinds[0] == "matmul" and self._works(node)):
                    return node
        return self.nodes[-1]

    def _works(self, node: Node) -> bool:
        return bool(node_work(node, self.scope.shapes(node)).flops != 0)

    @property
    def kind(self) -> str:
        """``matmul``, ``attention``, ``wire``, ``loop`` or ``other``."""
        kind = OPS[self.main.op].kind
        if kind in _WIRES:
            return "wire"
        if kind == "attention":
            return "attention" if len(self.nodes) > 1 else "matmul"
        if kind in _CONTRACTIONS or self._works(self.main):
            return "matmul"
        return "loop" if kind in _LOOPS else "other"

    @property
    def made(self) -> set[str]:
        """Tensors that it writes."""
        return {name for node in self.nodes for name in node.outputs}

    @property
    def read(self) -> dict[str, str]:
        """Tensors in memory that it reads from outside, and the name that it reads them by."""
        by_base = {self.scope.base(name): name for node in self.nodes for name in node.inputs}
        return {base: name for base, name in by_base.items() if base not in self.made}

    @property
    def sweep(self) -> Any:
        """Elements that its loop walks."""
        walked = [*self.main.outputs, *(self.main.inputs[:1] if self.reduces else ())]
        return max(self.elements(name) for name in walked)

    @property
    def reduces(self) -> bool:
        """True where it works along rows."""
        return OPS[self.main.op].kind in ("rowwise", "reduction")

    @property
    def axes(self) -> tuple[Any, ...]:
        """Axes that it keeps and reduces of its main input, outermost first."""
        parts = kept_of(self.main, self.scope.tensors[self.main.inputs[0]].shape)
        return tuple((what, evaluate(size, self.sizes)) for what, size in parts)


@dataclass(frozen=True)
class Pair:
    """Two kernels, in the order in which they run.

    Attributes:
        graph: The program.
        first: The earlier one.
        second: The later one.
        between: Labels of the kernels that lie on a way from the first to the second.
        vendor: Of the chip, for the names of its libraries.
    """

    graph: Graph
    first: Side
    second: Side
    between: tuple[str, ...]
    vendor: str = "NVIDIA"

    @property
    def handed(self) -> list[str]:
        """Tensors that the second reads of the first's."""
        return [base for base in self.second.read if base in self.first.made]

    @property
    def libraries(self) -> Libraries:
        """Vendor's libraries, whose kernels matmuls are."""
        return LIBRARIES.get(self.vendor, LIBRARIES[""])

    @property
    def shared(self) -> list[str]:
        """Tensors that both read."""
        return [base for base in self.second.read if base in self.first.read]


def reasons(pair: Pair) -> list[Reason]:
    """Apply the rules: first what stands in the way of any pair, then by what the two are."""
    remarks = [reason for rule in _ALWAYS if (reason := rule(pair))]
    if not remarks:
        remarks.append(_by_kind(pair))
    return remarks


# --- rules for any pair -----------------------------------------------------------------------------------------------


def _other_loops(pair: Pair) -> Reason | None:
    a, b = pair.first.main, pair.second.main
    if a.count == b.count:
        return None
    return Reason(
        f"{a.name} runs {_times(a.count)}, {b.name} {_times(b.count)}: only kernels that run equally often can fuse",
        True,
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _between(pair: Pair) -> Reason | None:
    if not pair.between:
        return None
    names = ", ".join(pair.between[:3]) + (f" and {len(pair.between) - 3} more" if len(pair.between) > 3 else "")
    first, second = pair.first.label, pair.second.label
    return Reason(
        f"{names} must run after {first} and before {second}: fusing them would create a dependency cycle", True
    )


def _nothing_shared(pair: Pair) -> Reason | None:
    if pair.handed or pair.shared or pair.between:
        return None
    return Reason("they have no tensor in common: fusing saves a launch but no bytes", True)


def _wires(pair: Pair) -> Reason | None:
    for side in (pair.first, pair.second):
        if side.kind == "wire":
            return Reason(f"{side.label} moves data between devices: the communication library's own kernel", True)
    return None


_ALWAYS: tuple[Callable[[Pair], Reason | None], ...] = (_other_loops, _between, _nothing_shared, _wires)


# --- rules by what the two are ----------------------------------------------------------------------------------------


def _by_kind(pair: Pair) -> Reason:
    rule = _RULES.get((pair.first.kind, pair.second.kind))
    if rule is not None:
        return rule(pair)
    side = next(side for side in (pair.first, pair.second) if side.kind in ("other", "attention"))
    return Reason(f"{side.label} ({side.main.op}) is a kernel of its own, which nothing fuses into", True)


def _loops(pair: Pair) -> Reason:
    """Two loops: they must walk the same elements in an order that suits both."""
    a, b = pair.first, pair.second
    if a.sweep != b.sweep:
        sizes = f"{int(a.sweep):,} elements and {b.label} {int(b.sweep):,}"
        return Reason(f"{a.label} walks {sizes}: no common loop nest", True)
    if a.reduces and b.reduces and a.axes != b.axes:
        return Reason(
            f"they reduce over different axes: {_axes(a)} and {_axes(b)}; the second needs whole results", True
        )
    turned = _turned(pair)
    if turned and (a.reduces or b.reduces):
        return Reason(f"{b.label} reads the result {turned}: its rows are not those of {a.label}", True)
    what = "pass on" if pair.handed else "both read"
    names = ", ".join((pair.handed or pair.shared)[:3])
    return Reason(f"one loop over {int(a.sweep):,} elements; they {what} {names}" + (f", {turned}" if turned else ""))


def _axes(side: Side) -> str:
    keeps = " x ".join(f"{int(size):,}" for what, size in side.axes if what == "keep") or "1"
    gone = " x ".join(f"{int(size):,}" for what, size in side.axes if what == "rep") or "1"
    return f"{side.main.name} keeps {keeps} and reduces {gone}"


def _turned(pair: Pair) -> str:
    """Say how the second sees what the first wrote, where its elements come in another order or in part."""
    for base in pair.handed:
        name = pair.second.read[base]
        while name != base:
            view = pair.first.scope.graph.producer[name]
            if view.op in ("permute", "slice", "expand"):
                return {"permute": "with its axes permuted", "slice": "in part", "expand": "repeated"}[view.op]
            name = view.inputs[0]
    return ""


def _epilogue(pair: Pair) -> Reason:
    """A matmul, then a loop over its result."""
    matmul, loop, names = pair.first, pair.second, pair.libraries
    is_conv = OPS[matmul.main.op].kind == "conv"
    closed = f"{matmul.label} is a {names.conv if is_conv else names.matmul} kernel"
    if not pair.handed:
        return Reason(f"{closed} and does not fuse work that only shares an input", True)
    if loop.reduces or loop.sweep != matmul.elements(matmul.main.outputs[0]):
        return _rows_of_matmul(pair, closed)
    ops = [node.op for node in loop.nodes]
    if not is_conv and ops == ["add"]:
        return Reason(f"{closed}, which takes no other code but can accumulate onto the other array (beta C)")
    if not is_conv and names.epilogues and all(op in LIBRARY_EPILOGUES for op in ops):
        return Reason(f"{closed}, which takes no other code; {names.epilogues} has {' and '.join(ops)} as an epilogue")
    how = names.windows if is_conv else names.tiles
    return Reason(f"{closed}, which takes no other code; {how} does {', '.join(dict.fromkeys(ops))} on its tiles")


def _columns(side: Side) -> int:
    """Elements of a row of a matmul's result: its columns, or the channels of a convolution."""
    shape = side.scope.tensors[side.main.outputs[0]].shape or (1,)
    is_conv = OPS[side.main.op].kind == "conv" and len(shape) > 1
    return int(evaluate(shape[1 if is_conv else -1], side.sizes))


def _rows_of_matmul(pair: Pair, closed: str) -> Reason:
    matmul, loop = pair.first, pair.second
    if not loop.reduces:
        made = int(matmul.elements(matmul.main.outputs[0]))
        return Reason(f"{closed}; {loop.label} walks {int(loop.sweep):,} elements, not its {made:,}", True)
    columns = _columns(matmul)
    if columns <= TILE:
        return Reason(f"{closed}; rows of {columns} are whole in one tile, so {pair.libraries.tiles} can")
    parts = ceil_div(columns, TILE)
    return Reason(f"{closed}; {loop.label} needs whole rows of {columns:,}, which lie in {parts} or more tiles", True)


def _prologue(pair: Pair) -> Reason:
    """A loop, then the matmul that reads its result."""
    loop, matmul = pair.first, pair.second
    tiles = ceil_div(_columns(matmul), TILE)
    which = "the" if tiles == 1 else f"each of {tiles} or more"
    return Reason(
        f"{matmul.label} is a library kernel that loads its operands as stored; {which} column "
        f"tile{'s' * (tiles > 1)} would compute {loop.label}{' again' * (tiles > 1)}",
        True,
    )


def _matmuls(pair: Pair) -> Reason:
    """Two matmuls: one kernel only as attention, with what lies between."""
    a, b = pair.first, pair.second
    if not pair.handed:
        return Reason(f"both read {pair.shared[0]}; only a grouped GEMM of equal shapes runs both", True)
    return Reason(
        f"{b.label} needs whole rows of {a.label} ({_columns(a):,} elements), which lie in several tiles", True
    )


_RULES: Mapping[tuple[str, str], Callable[[Pair], Reason]] = {
    ("loop", "loop"): _loops,
    ("matmul", "loop"): _epilogue,
    ("loop", "matmul"): _prologue,
    ("matmul", "matmul"): _matmuls,
}


def attention_of(pair: Pair) -> tuple[str, ...]:
    """Labels of the attention that both kernels are part of, in order; none where there is no such attention."""
    both = {pair.first.label, pair.second.label}
    for chain in attentions(pair.graph):
        if both <= {node.label for node in chain}:
            labels = {node.label for node in chain}
            return tuple(label for label in pair.first.scope.graph.kernels if label in labels)
    return ()
