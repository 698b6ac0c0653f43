"""Replace parts of a program: an operator by another, a pattern by a replacement.

A pattern and its replacement are plain functions that build a few operators from open inputs:

    rewrite(graph, pattern=lambda p, x, y: p.op("mul", p.op("silu", x), y),
            replacement=lambda p, x, y: p.op("elementwise", x, y, what="swiglu", flops=5))

Shapes of what is put in come from the registry. Whether the program still computes the same is asked with ``verify``,
which runs both in numpy (:func:`roofline.ops.reference.same`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from roofline.ir.errors import ShapeError, UsageError, did_you_mean
from roofline.ir.graph import Applied, Graph, Node, check_graph
from roofline.ops.aliases import in_place
from roofline.ops.builder import Builder
from roofline.ops.reference import same
from roofline.ops.registry import get_op
from roofline.passes.history import graph_pass
from roofline.passes.rewriting.clean import rewritten

#: Operators whose operands may change places.
_COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum"})

#: Size of every symbol where a rewriting is verified and none are given.
_SMALL = 4


# --- patterns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """An operator of a pattern, or one of its open inputs (then ``op`` is empty)."""

    op: str
    inputs: tuple[Term, ...] = ()
    attrs: tuple[tuple[str, Any], ...] = ()
    name: str = ""

    def nodes(self) -> Iterator[Term]:
        """The operators below and at this one, each once, inputs before what reads them."""
        seen: dict[int, Term] = {}
        for term in self.inputs:
            seen.update((id(below), below) for below in term.nodes())
        yield from seen.values()
        if self.op:
            yield self

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.inputs))})" if self.op else self.name


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


class Pattern:
    """What a pattern's function builds with: :meth:`op` as the builder's."""

    def op(self, op: str, *inputs: Term, **attrs: Any) -> Term:
        """An operator; of its options only those that are given must agree."""
        get_op(op, "pattern")
        return Term(op, inputs, tuple(sorted((key, _frozen(value)) for key, value in attrs.items())))


class Replacement(Pattern):
    """What a replacement's function builds with; it may ask for the options of what was found."""

    def __init__(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        self._found = options

    def attrs(self, op: str) -> dict[str, Any]:
        """The options of the first operator of this name that the pattern found.

        Raises:
            UsageError: The pattern has none.
        """
        if op not in self._found:
            raise UsageError(f"replacement: the pattern has no {op}{did_you_mean(op, self._found)}")
        return dict(self._found[op])


def _open_inputs(function: Callable[..., Any], what: str) -> tuple[Term, ...]:
    names = tuple(inspect.signature(function).parameters)[1:]
    if not names:
        raise UsageError(f"{what}: expected a function of the builder and at least one input, such as lambda p, x: ...")
    return tuple(Term("", name=name) for name in names)


def _built(function: Callable[..., Any], builder: Pattern, inputs: Sequence[Term], what: str) -> Term:
    result = function(builder, *inputs)
    if not isinstance(result, Term):
        raise UsageError(f"{what}: expected what p.op(...) returns, given {type(result).__name__}")
    return result


def _pattern(function: Callable[..., Any]) -> tuple[Term, tuple[Term, ...]]:
    inputs = _open_inputs(function, "pattern")
    root = _built(function, Pattern(), inputs, "pattern")
    if not root.op:
        raise UsageError("pattern: it returns an input; expected at least one operator")
    used = {id(term) for node in root.nodes() for term in node.inputs}
    idle = [term.name for term in inputs if id(term) not in used]
    if idle:
        raise UsageError(f"pattern: nothing reads the input {idle[0]!r}")
    return root, inputs


@dataclass(frozen=True, slots=True)
class Match:
    """Where a pattern was found: the node of each operator and the tensor of each input, by identity of the term."""

    root: Node
    nodes: Mapping[int, Node] = field(default_factory=dict)
    tensors: Mapping[int, str] = field(default_factory=dict)


class _Matcher:
    def __init__(self, graph: Graph, root: Term, where: str) -> None:
        self.graph, self.root, self.where = graph, root, where
        self.producer = graph.producer

    def find(self) -> Iterator[Match]:
        """All places that do not overlap, in order."""
        used: set[str] = set()
        for node in self.graph.nodes:
            if not fnmatchcase(node.name, self.where):
                continue
            for match in self._operator(self.root, node, Match(node)):
                names = {each.name for each in match.nodes.values()}
                if used.isdisjoint(names) and self._closed(match):
                    used |= names
                    yield match
                    break

    def _operator(self, term: Term, node: Node, so_far: Match) -> Iterator[Match]:
        known = so_far.nodes.get(id(term))
        if known is not None:
            yield from [so_far] if known is node else []
            return
        attrs = dict(node.attrs)
        fits = node.op == term.op and len(node.inputs) == len(term.inputs) and node.count == so_far.root.count
        if not fits or any(key not in attrs or attrs[key] != value for key, value in term.attrs):
            return
        here = replace(so_far, nodes={**so_far.nodes, id(term): node})
        orders = [node.inputs]
        if node.op in _COMMUTATIVE and len(node.inputs) == 2:
            orders.append(node.inputs[::-1])
        for names in orders:
            yield from self._inputs(term.inputs, names, here)

    def _inputs(self, terms: Sequence[Term], names: Sequence[str], so_far: Match) -> Iterator[Match]:
        if not terms:
            yield so_far
            return
        for match in self._input(terms[0], names[0], so_far):
            yield from self._inputs(terms[1:], names[1:], match)

    def _input(self, term: Term, name: str, so_far: Match) -> Iterator[Match]:
        if term.op:
            if name in self.producer:
                yield from self._operator(term, self.producer[name], so_far)
        elif so_far.tensors.get(id(term), name) == name:
            yield replace(so_far, tensors={**so_far.tensors, id(term): name})

    def _closed(self, match: Match) -> bool:
        """Tell whether nobody else reads what is inside, and nothing is written in place."""
        inside = {node.name for node in match.nodes.values()}
        results = {name for node in match.nodes.values() for name in node.outputs}
        if not results.isdisjoint(match.tensors.values()) or any(map(in_place, match.nodes.values())):
            return False
        return all(
            name not in self.graph.outputs
            and all(reader.name in inside for reader in self.graph.consumers.get(name, ()))
            for name in results - set(match.root.outputs)
        )


# --- replacements -----------------------------------------------------------------------------------------------------


def _gelu_new(p: Pattern, x: Term) -> Term:
    """``0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))``, as GPT-2's code writes it out."""
    inner = p.op("mul_scalar", p.op("add", x, p.op("mul_scalar", p.op("pow", x))))
    return p.op("mul", p.op("mul_scalar", x), p.op("add_scalar", p.op("tanh", inner)))


#: Rewritings by name: what is written out, and the operator that it is. A number that the graph does not carry is taken
#: to be the one of the formula.
REWRITES: dict[str, tuple[Callable[..., Term], Callable[..., Term]]] = {
    "gelu_tanh": (_gelu_new, lambda p, x: p.op("gelu_tanh", x)),
    "silu": (lambda p, x: p.op("mul", x, p.op("sigmoid", x)), lambda p, x: p.op("silu", x)),
    "square": (lambda p, x: p.op("mul", x, x), lambda p, x: p.op("square", x)),
    "swiglu": (
        lambda p, gate, up: p.op("mul", p.op("silu", gate), up),
        lambda p, gate, up: p.op("elementwise", gate, up, what="swiglu", flops=5),
    ),
}


def _functions(pattern: str | Callable[..., Any], replacement: Callable[..., Any] | None) -> tuple[Any, Any]:
    if isinstance(pattern, str):
        if pattern not in REWRITES:
            near = did_you_mean(pattern, REWRITES)
            raise UsageError(f"rewriting {pattern!r} is not known; there are {', '.join(REWRITES)}{near}")
        return REWRITES[pattern][0], replacement or REWRITES[pattern][1]
    if replacement is None:
        raise UsageError("rewrite: a pattern of your own needs a replacement, a function of the same inputs")
    return pattern, replacement


def rewrite(
    graph: Graph,
    pattern: str | Callable[..., Any],
    replacement: Callable[..., Any] | None = None,
    *,
    where: str = "*",
    verify: bool | Mapping[str, int] = False,
) -> Graph:
    """Replace every place where a pattern is found; places do not overlap, the first one in the program comes first.

    The pattern's inputs match any tensor, one named twice the same one. Options match where the pattern gives them,
    operands of ``add``, ``mul``, ``maximum`` and ``minimum`` in either order. Nothing else may read what is inside.
    The replacement takes the pattern's inputs, asks ``p.attrs("conv2d")`` for the options of what was found, and
    gives a tensor of the same shape, which keeps the name of the one that it stands for.

    Args:
        graph: The program.
        pattern: Function of a builder and open inputs that returns what ``p.op(...)`` gave, or a name of
            :data:`REWRITES`: ``gelu_tanh``, ``silu``, ``square``, ``swiglu``.
        replacement: Function of a builder and the same inputs, by order.
        where: Names that the pattern's last node may have, with ``*`` and ``?`` as in file names.
        verify: Whether to run both programs in numpy and compare them; a value for each symbol of the graph, or
            ``True`` for 4 each.

    Returns:
        The program with the replacements.

    Raises:
        UsageError: The pattern is nowhere in the graph, or the programs do not compute the same.
        UnknownOp: An operator that the registry has not.
        ShapeError: The replacement does not fit.

    Example:
        >>> import roofline as rl
        >>> graph = rl.model("llama-3-8b", phase="prefill", layers=2)
        >>> after = rewrite(graph, lambda p, x, y: p.op("mul", p.op("silu", x), y),
        ...                 lambda p, x, y: p.op("elementwise", x, y, what="swiglu", flops=5))
        >>> after.history
        (rewrite(pattern='mul(silu(x), y)', replacement='elementwise(x, y)'),)
        >>> rl.count(graph, B=1, S=8).launches - rl.count(after, B=1, S=8).launches
        2
    """
    check_graph(graph, "rewrite")
    find, make = _functions(pattern, replacement)
    root, inputs = _pattern(find)
    matches = list(_Matcher(graph, root, where).find())
    if not matches:
        raise UsageError(f"{graph.name}: {_nowhere(graph, root, where)}")
    b = Builder.of(graph)
    for place in matches:
        new = _replacement(make, place, root, inputs)
        shared = len(graph.kernels[place.root.label]) > 1
        with b.before(place.root), b.inside(place.root.label if shared else ""):
            _replaced(b, place, new, {id(term): place.tensors[id(term)] for term in inputs})
    note = f"rewritten: {root} to {new} in {len(matches)} place{'s' * (len(matches) > 1)}"
    after = rewritten(b.graph(), note)
    if verify is not False:
        _verify(graph, after, verify)
    options = {"pattern": str(root), "replacement": str(new)} | ({} if where == "*" else {"where": where})
    return replace(after, history=(*graph.history, Applied("rewrite", tuple(options.items()), graph, (note,))))


def _replacement(make: Callable[..., Any], place: Match, root: Term, inputs: Sequence[Term]) -> Term:
    new = _built(make, Replacement(_options(place, root)), inputs, "replacement")
    if not new.op:
        raise UsageError("replacement: it returns an input; expected at least one operator, such as identity")
    return new


def _nowhere(graph: Graph, root: Term, where: str) -> str:
    """Why a pattern is not found: an operator that the program has not, or how often it has each."""
    counts: dict[str, int] = {}
    for node in graph.nodes:
        counts[node.op] = counts.get(node.op, 0) + 1
    ops = list(dict.fromkeys(term.op for term in root.nodes()))
    absent = [op for op in ops if op not in counts]
    if absent:
        near = did_you_mean(absent[0], counts) or f"; it has {', '.join(sorted(counts))}"
        return f"the pattern {root} does not occur: the program has no {absent[0]}{near}"
    have = ", ".join(f"{counts[op]} {op}" for op in ops)
    place = "" if where == "*" else f" called {where!r}"
    return f"the pattern {root}{place} is nowhere; the program has {have}, connected differently or with other readers"


def _verify(graph: Graph, after: Graph, verify: bool | Mapping[str, int]) -> None:
    sizes: dict[str, Any] = dict(verify) if isinstance(verify, Mapping) else dict.fromkeys(graph.symbols, _SMALL)
    comparison = same(graph, after, **sizes)
    if not comparison:
        raise UsageError(f"{graph.name}: the replacement computes something else: {comparison}")


def _replaced(b: Builder, place: Match, replacement: Term, names: dict[int, str]) -> None:
    """Build the replacement; its result keeps the name of what the last node of the pattern wrote."""
    target = place.root
    dtype = b.tensor(target.outputs[0]).dtype
    for term in replacement.nodes():
        last = term is replacement
        view = get_op(term.op).alias is not None and not last
        names[id(term)] = b.op(
            term.op, *(names[id(below)] for below in term.inputs), name=f"{target.name}.{term.op}",
            dtype=None if view else dtype, count=target.count, replacing=target if last else None, **dict(term.attrs),
        )  # fmt: skip
    b.drop(*(node for node in place.nodes.values() if node is not target))


def _options(place: Match, pattern: Term) -> dict[str, Mapping[str, Any]]:
    """Options of what was found, by operator; of several the first."""
    options: dict[str, Mapping[str, Any]] = {}
    for term in pattern.nodes():
        options.setdefault(term.op, dict(place.nodes[id(term)].attrs))
    return options


@graph_pass
def replace_op(graph: Graph, old: str, new: str, where: str = "*") -> Graph:
    """Let another operator do the work of one, everywhere or in the nodes whose names fit: GELU instead of ReLU.

    Args:
        graph: The program.
        old: The operator to replace.
        new: The operator that takes its inputs and gives a tensor of the same shape.
        where: Names of nodes, with ``*`` and ``?`` as in file names.

    Returns:
        The program with the other operator.

    Raises:
        UnknownOp: The registry has no such operator.
        UsageError: The program has no such node.
        ShapeError: The new operator does not take these inputs, or gives another shape.

    Example:
        >>> import roofline as rl
        >>> after = replace_op(rl.model("resnet18"), "relu", "gelu", where="stage1.*")
        >>> [sum(node.op == op for node in after.nodes) for op in ("relu", "gelu")]
        [13, 4]
    """
    get_op(old, "replace_op")
    get_op(new, "replace_op")
    having = [node for node in graph.nodes if node.op == old]
    if not having:
        ops = sorted({node.op for node in graph.nodes})
        raise UsageError(f"{graph.name} has no {old}{did_you_mean(old, ops) or '; it has ' + ', '.join(ops)}")
    chosen = {node.name for node in having if fnmatchcase(node.name, where)}
    if not chosen:
        names = [node.name for node in having]
        near = did_you_mean(where, names) or f"; there are {', '.join(names[:4])} ..."
        raise UsageError(f"{graph.name}: no {old} is called {where!r}{near}")
    if old == new:
        return graph
    return graph.with_nodes(_other_op(graph, node, new) if node.name in chosen else node for node in graph.nodes)


def _other_op(graph: Graph, node: Node, new: str) -> Node:
    other = replace(node, op=new)
    expected = graph.tensors[node.outputs[0]].shape
    try:
        shape = get_op(new, node.name).output([graph.tensors[name].shape for name in node.inputs], dict(node.attrs))
    except ShapeError as error:
        raise ShapeError(f"{node.name}: {new} cannot stand for {node.op}: it {error}") from None
    if shape != expected:
        raise ShapeError(f"{node.name}: {new} gives {list(shape)} where {node.op} gave {list(expected)}")
    return other
