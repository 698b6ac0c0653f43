"""Pruning: heads, channels, hidden width and layers that go, with everything that depends on them; zeros that stay.

Structured pruning (Li et al. 2016, arXiv 1608.08710; Michel et al. 2019, arXiv 1905.10650) leaves a smaller dense
program. Which sizes shrink together is worked out by ``passes.parallel.axes``: query heads with their key-value
head, a gate with its up-projection, all convolutions that a residual sum couples, the groups of a depthwise one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from roofline.counting.parameters import active_parameters
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Node
from roofline.ir.sizes import prod
from roofline.ops.registry import OPS
from roofline.passes.formats.sparsify import sparsify
from roofline.passes.history import graph_pass, order_hint
from roofline.passes.parallel.axes import Atom, Axes, Span
from roofline.passes.rewriting.amounts import check, matches, nearest, patterns, remaining
from roofline.passes.rewriting.drop_layers import drop_layers

#: Axes of the second operand of a contraction: what it gives and what it sums over.
_WEIGHT_AXES: Mapping[str, tuple[int, int]] = {
    "linear": (0, 1), "matmul": (1, 0), "expert_linear": (1, 2),
    "conv1d": (0, 1), "conv2d": (0, 1), "conv3d": (0, 1), "conv_transpose2d": (1, 0), "conv_transpose3d": (1, 0),
}  # fmt: skip
_CONVOLUTIONS = frozenset(op for op in _WEIGHT_AXES if op.startswith("conv"))
#: What a feed-forward does to its inner channels.
_ACTIVATIONS = frozenset({
    "relu", "relu6", "gelu", "gelu_tanh", "quick_gelu", "silu", "sigmoid", "tanh", "softplus", "mish", "hardswish",
    "hardsigmoid", "xielu", "square", "pow", "exp", "clamp", "elementwise", "mul", "dropout",
})  # fmt: skip
#: Rows of whole multiples of this many 16-bit elements are loaded 16 bytes at a time (efficiency/matmul.py, ALIGNMENT).
ALIGNED = 8


@graph_pass
def prune(
    graph: Graph,
    *,
    heads: float | None = None,
    channels: float | None = None,
    hidden: float | None = None,
    layers: float | Sequence[int] | None = None,
    sparsity: str | float | None = None,
    where: str | Sequence[str] = "*",
    unit: int = 1,
) -> Graph:
    """Take parts of a program away, with everything that depends on them.

    A number below 1 is the share that goes, a whole number is how many stay.

    Args:
        graph: The program, best before its batch and lengths are bound to numbers.
        heads: Query heads of each attention. Key-value heads go with all their queries; where that does not come out
            even, and with a single key-value head, each keeps fewer queries.
        channels: Inner channels of feed-forwards and experts, and channels of convolutions. What a residual sum or a
            depthwise convolution couples shrinks together; of a grouped convolution the channels of each group do, or
            the groups where that leaves more.
        hidden: Width of the residual stream.
        layers: Whole layers of each numbered scope, spread evenly, the first and the last kept; or the numbers of
            those to keep.
        sparsity: ``"2:4"`` stores the weights of matmuls two of four, which only chips with such units run
            faster; a share is unstructured: zeros that dense kernels multiply all the same.
        where: Patterns over node names, such as ``"layers.1?.attn*"``: only what they match.
        unit: Kept channels and widths are rounded down to a multiple of this.

    Returns:
        The smaller program. What a reader should know is in ``info.notes``.

    Raises:
        UsageError: Nothing is asked for, it is not there, all of it would go, or numbers that do not divide; names the
            nearest feasible choice.

    Example:
        >>> import roofline as rl
        >>> small = prune(rl.model("llama-3-8b"), heads=0.25)
        >>> small.parameters == rl.model("llama-3-8b", heads=24, kv_heads=6, head_dim=128).parameters
        True
    """
    amounts = {"heads": heads, "channels": channels, "hidden": hidden}
    if all(value is None for value in (*amounts.values(), layers, sparsity)):
        raise UsageError("prune: nothing to remove; give heads, channels, hidden, layers or sparsity")
    _check(amounts, unit)
    chosen = patterns(graph, where)
    plan = _Plan(graph, chosen, unit)
    if layers is not None:
        if graph.info.devices.pp > 1:
            raise UsageError(f"{graph.name} is cut into {graph.info.devices.pp} stages already; prune its layers first")
        plan.graph = drop_layers(graph, layers, chosen)
        plan.notes += _rounded(layers, graph.info.layers, plan.graph.info.layers)
    plan.shrink({what: amount for what, amount in amounts.items() if amount is not None})
    smaller = _described(plan.graph, graph, plan.notes)
    return smaller if sparsity is None else sparsify(smaller, sparsity, chosen)


def shrinking(
    graph: Graph, amounts: Mapping[str, float], where: str | Sequence[str] = "*", unit: int = 1
) -> tuple[Axes, dict[Atom, int]]:
    """Tell which sizes :func:`prune` would change, and to what.

    Args:
        graph: The program.
        amounts: ``heads``, ``channels``, ``hidden``, as :func:`prune` takes them.
        where: Patterns over node names.
        unit: Kept channels and widths are rounded down to a multiple of this.

    Returns:
        The axes of the program, and the new size of each atom that shrinks.

    Raises:
        UsageError: As :func:`prune`.
    """
    _check(amounts, unit)
    return _Plan(graph, patterns(graph, where), unit).sizes(amounts)


def _rounded(share: float | Sequence[int], layers: int | None, left: int | None) -> list[str]:
    """Note what a share of layers that does not come out even leaves."""
    if not isinstance(share, float) or layers in (None, left) or left == remaining(share, layers, "layers", "layers"):
        return []
    return [f"layers: {left} of {layers} stay, rounded up"]


def _check(amounts: Mapping[str, float | None], unit: int) -> None:
    for what, amount in amounts.items():
        if amount is not None:
            check(amount, what)
    if isinstance(unit, bool) or not isinstance(unit, int) or unit < 1:
        raise UsageError(f"prune: unit={unit!r}; allowed: a whole number from 1")


def _described(smaller: Graph, graph: Graph, notes: Iterable[str]) -> Graph:
    """The facts of the model that are no longer true, and what a reader should know."""
    if smaller is graph:
        return graph
    active = active_parameters(smaller) if smaller.info.active_parameters is not None else None
    known = smaller.with_info(parameters_published=None, parameters_source="", active_parameters=active)
    return known.with_notes(*notes)


@dataclass
class _Plan:
    """What shrinks to what."""

    graph: Graph
    where: tuple[str, ...]
    unit: int
    notes: list[str] = field(default_factory=list)

    def shrink(self, amounts: Mapping[str, float]) -> None:
        """Resize all that is asked for at once."""
        if not amounts:
            return
        axes, sizes = self.sizes(amounts)
        self.graph = axes.resize(sizes)

    def sizes(self, amounts: Mapping[str, float]) -> tuple[Axes, dict[Atom, int]]:
        """Return the axes of the program, and the size that each atom shrinks to."""
        axes = Axes(self.graph)
        roles = Roles(axes)
        sizes: dict[Atom, int] = {}
        for what, amount in amounts.items():
            sizes |= _FINDERS[what](self, roles, amount)
        return axes, sizes

    def selected(self, spans: Mapping[Span, list[str]], what: str, here: str) -> dict[Span, list[str]]:
        """Select those of which ``where`` matches a node, and note what shrinks along with them."""
        if not spans:
            late = order_hint(self.graph, "prune")
            raise UsageError(f"{self.graph.name} has no {here} to prune; {what} does not apply{late}")
        chosen = {span: names for span, names in spans.items() if any(matches(name, self.where) for name in names)}
        if not chosen:
            first = next(iter(spans.values()))[0]
            raise UsageError(f"where={'|'.join(self.where)!r} matches no {here} of {self.graph.name}; one is {first}")
        for names in chosen.values():
            others = [name for name in names if not matches(name, self.where)]
            if others:
                more = f" and {len(others) - 1} more" if len(others) > 1 else ""
                self.notes.append(f"{what}: {others[0]}{more} shrinks along, its size is the same one")
        return chosen

    def rounded(self, span: Span, amount: float, what: str, where: str) -> dict[Atom, int]:
        """The atom of an axis that leaves most of it, no more than asked, in multiples of the unit."""
        size = _number(span.size)
        target = remaining(amount, size, what, where)
        best: tuple[int, Atom, int] | None = None
        for atom in reversed([each for each in span.atoms if not each.frozen]):
            number = _largest(span, atom, target, self.unit)
            left = _number(span.at({atom: number}))
            if number and (best is None or left > best[0]):
                best = (left, atom, number)
        if best is None:
            smallest = min((_number(span.at({a: 1})) for a in span.atoms if not a.frozen), default=size)
            least = next((n for n in range(smallest, size) if n % self.unit == 0), None)
            hint = f"; the least that can stay is {least}" if least else "; nothing less can stay"
            raise UsageError(f"{where}: {what}={amount} of {size} in multiples of {self.unit} leaves nothing{hint}")
        self._remark(best[0], target, what)
        return {best[1]: best[2]}

    def _remark(self, left: int, target: Fraction, what: str) -> None:
        if self.unit > 1:
            self.notes.append(f"{what}: kept sizes are rounded down to multiples of {self.unit}")
        elif left != target:
            self.notes.append(f"{what}: kept sizes are rounded down to a divisor")
        if left % ALIGNED:
            self.notes.append(f"{what}: sizes such as {left} are not multiples of {ALIGNED}, so kernels load rows in "
                              f"narrow pieces; unit={ALIGNED} aligns them")  # fmt: skip


def _largest(span: Span, atom: Atom, target: Fraction, unit: int) -> int:
    """The largest size of an atom that leaves no more of an axis than asked for, in multiples of a unit; 0 for none."""
    one, two = (_number(span.at({atom: number})) for number in (1, 2))
    most = min(_number(atom.size), int((target - one) // (two - one)) + 1)
    numbers = (
        number for number in range(most, max(most - unit, 0), -1) if _number(span.at({atom: number})) % unit == 0
    )
    return next(numbers, 0)


def _heads(plan: _Plan, roles: Roles, amount: float) -> dict[Atom, int]:
    """Sizes that leave so many query heads everywhere."""
    sizes: dict[Atom, int] = {}
    for span, names in plan.selected(roles.heads, "heads", "attention").items():
        size = _number(span.size)
        target = remaining(amount, size, "heads", names[0])
        if target == size or not sizes.keys().isdisjoint(span.atoms):
            continue
        atoms = [atom for atom in span.atoms if not atom.frozen]
        ways = {_number(span.at({atom: number})): (atom, number)
                for atom in reversed(atoms) for number in range(1, _number(atom.size))}  # fmt: skip
        if target not in ways:
            raise UsageError(f"{names[0]}: heads={amount} leaves {float(target):g} of {_made(span)}, which "
                             f"cannot be{nearest(target, ways, size, 'heads')}")  # fmt: skip
        atom, number = ways[int(target)]
        sizes[atom] = number
    return sizes


def _made(span: Span) -> str:
    factors = " x ".join(str(atom.size) for atom in span.atoms)
    return f"{span.size} heads" + (f" ({factors})" if len(span.atoms) > 1 else "")


def _channels(plan: _Plan, roles: Roles, amount: float) -> dict[Atom, int]:
    """Sizes that leave so many channels everywhere."""
    sizes: dict[Atom, int] = {}
    for span, names in plan.selected(roles.channels, "channels", "inner channels").items():
        if sizes.keys().isdisjoint(span.atoms):
            sizes |= plan.rounded(span, amount, "channels", names[0])
    return sizes


def _hidden(plan: _Plan, roles: Roles, amount: float) -> dict[Atom, int]:
    """Sizes that leave a residual stream so wide."""
    sizes: dict[Atom, int] = {}
    for span, names in plan.selected(roles.hidden, "hidden", "residual stream").items():
        sizes |= plan.rounded(span, amount, "hidden", names[0])
    return sizes


def _number(size: object) -> int:
    assert isinstance(size, int)
    return size


class Roles:
    """What the axes of a program are for.

    Attributes:
        heads: The axis of query heads of each attention, with the nodes that have it.
        hidden: The width of each residual stream, with the sums that it runs through.
        channels: Inner channels, with the contractions that give them.
    """

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.graph = axes.graph
        self._results = frozenset(self.graph.outputs)
        self._weights = [node for node in self.graph.nodes if node.op in _WEIGHT_AXES and self._is_weight(node)]
        self.heads = self._collect(self._attention())
        self.hidden = self._collect(self._streams())
        self._taken = {atom for span in (*self.heads, *self.hidden) for atom in span.atoms} | self._attended()
        self._outer = set(self._given_and_put_out())
        self.channels = self._collect(self._inner())

    @staticmethod
    def _collect(spans: Iterable[tuple[Span, str]]) -> dict[Span, list[str]]:
        collected: dict[Span, list[str]] = {}
        for span, name in spans:
            collected.setdefault(span, []).append(name)
        return collected

    def _is_weight(self, node: Node) -> bool:
        return len(node.inputs) > 1 and self.graph.tensors[node.inputs[1]].kind == "weight"

    def _weight_spans(self, node: Node) -> tuple[Span, Span]:
        """Return the span that a contraction gives, and the one that it sums over."""
        spans = self.axes.spans(node.inputs[1])
        gives, sums = _WEIGHT_AXES[node.op]
        return spans[gives], spans[sums]

    def _given_and_put_out(self) -> Iterator[Atom]:
        """Sizes that the caller sees: of inputs, caches and results; a gradient is as large as its weight."""
        weights = {self._free_spans(name) for name, tensor in self.graph.tensors.items() if tensor.kind == "weight"}
        for name, tensor in self.graph.tensors.items():
            result = name in self._results and self._free_spans(name) not in weights
            if tensor.kind in ("input", "cache") or result:
                yield from (atom for span in self.axes.spans(name) for atom in span.atoms)

    def _free_spans(self, name: str) -> tuple[Span | object, ...]:
        """Return what the axes of a tensor are made of, where that may change, and their sizes where not."""
        return tuple(s if any(not a.frozen for a in s.atoms) else s.size for s in self.axes.spans(name))

    def _attention(self) -> Iterator[tuple[Span, str]]:
        attends = False
        for node in self.graph.nodes:
            if node.op == "attention_values":
                attends = True
                span = self.axes.spans(node.inputs[0])[1]
                if isinstance(span.size, int):
                    yield span, node.name
        if not attends:
            yield from self._written_out()

    def _written_out(self) -> Iterator[tuple[Span, str]]:
        """Attention as two batched matmuls around a softmax: heads are the batch axis that weights have, too."""
        stored = {atom for node in self._weights for span in self._weight_spans(node) for atom in span.atoms}
        for node in self.graph.nodes:
            if node.op == "bmm" and _follows(self.graph.producer, node, "softmax"):
                for span in self.axes.spans(node.outputs[0])[:-2]:
                    atoms = [atom for atom in span.atoms if atom in stored]
                    if atoms:
                        yield Span("product", tuple(atoms), prod(atom.size for atom in atoms)), node.name

    def _attended(self) -> set[Atom]:
        """Atoms of queries, keys and values."""
        atoms: set[Atom] = set()
        for node in self.graph.nodes:
            if node.op in ("attention_scores", "attention_values"):
                atoms.update(atom for name in node.inputs for at in (1, 3) for atom in self.axes.atoms(name, at))
        return atoms

    def _streams(self) -> Iterator[tuple[Span, str]]:
        """Last axes of residual sums: of two results of different matmuls, in an axis that matrices read and write."""
        ends = [{atom for node in self._weights if node.op not in _CONVOLUTIONS
                 for atom in self._weight_spans(node)[side].atoms} for side in (0, 1)]  # fmt: skip
        both = ends[0] & ends[1]
        for node in self._residuals():
            span = self.axes.spans(node.outputs[0])[-1]
            if span.kind == "atom" and both.issuperset(span.atoms) and not span.atoms[0].frozen:
                yield span, node.name

    def _residuals(self) -> Iterator[Node]:
        """Sums of two activations that come from different matmuls; ``x + x^3`` of an activation function is none."""
        origins: dict[str, frozenset[str]] = {}
        for node in self.graph.nodes:
            tensors = [self.graph.tensors[name] for name in node.inputs]
            sources = [origins.get(name, frozenset({name})) for name, tensor in zip(node.inputs, tensors, strict=True)
                       if tensor.kind in ("activation", "input")]  # fmt: skip
            residual = (
                node.op == "add"
                and len(tensors) == len(sources) == 2
                and tensors[0].shape == tensors[1].shape
                and len(tensors[0].shape) > 1
                and sources[0] != sources[1]
            )
            follows = OPS[node.op].kind in ("pointwise", "rowwise", "view") and sources and not residual
            if follows:
                origins.update(dict.fromkeys(node.outputs, frozenset().union(*sources)))
            if residual:
                yield node

    def _inner(self) -> Iterator[tuple[Span, str]]:
        active = {atom for node in self.graph.nodes if node.op in _ACTIVATIONS
                  for span in self.axes.spans(node.outputs[0]) for atom in span.atoms}  # fmt: skip
        for node in self._weights:
            for span in _leaves(self._weight_spans(node)[0]):
                atoms = set(span.atoms)
                free = atoms and self._taken.isdisjoint(atoms) and self._outer.isdisjoint(atoms)
                used = node.op in _CONVOLUTIONS or not active.isdisjoint(atoms)
                if free and used and any(not atom.frozen for atom in atoms):
                    yield span, node.name
        for node in self.graph.nodes:
            if node.op == "moe":
                yield self.axes.spans(node.inputs[2])[2], node.name


def _leaves(span: Span) -> Iterator[Span]:
    """The segments of a sum, each once; anything else itself."""
    if span.kind != "sum":
        yield span
        return
    for part in dict.fromkeys(span.parts):
        if isinstance(part, Atom):
            yield Span("atom", (part,), part.size)
        else:
            yield from _leaves(part)


def _follows(producer: Mapping[str, Node], node: Node, op: str, depth: int = 6) -> bool:
    """Tell whether the first operand comes from such an operator through a few views and copies."""
    before = producer.get(node.inputs[0]) if node.inputs else None
    while before is not None and depth:
        if before.op == op:
            return True
        if before.op not in ("view", "copy", "cast", "expand", "permute", "dropout"):
            return False
        before, depth = producer.get(before.inputs[0]), depth - 1
    return False


_FINDERS: Mapping[str, Callable[[_Plan, Roles, float], dict[Atom, int]]] = {
    "heads": _heads, "channels": _channels, "hidden": _hidden,
}  # fmt: skip
