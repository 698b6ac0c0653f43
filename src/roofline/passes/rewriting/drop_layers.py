"""Take whole layers out of a program: what enters one leaves it unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Lifetimes, Node
from roofline.ops.aliases import aliases
from roofline.passes.rewriting.amounts import check, matches, remaining


def drop_layers(graph: Graph, layers: float | Sequence[int], where: Sequence[str]) -> Graph:
    """Keep some layers of each numbered scope that ``where`` matches.

    Args:
        graph: The program.
        layers: The share to remove, the number to keep, or the numbers of the layers to keep.
        where: Patterns over node names.

    Raises:
        UsageError: No such layers, a number that does not come out even, or a layer that others depend on.
    """
    scopes = {prefix: _analysed(graph, numbers) for prefix, numbers in _scopes(graph, where).items()}
    removable = {prefix: each for prefix, each in scopes.items() if any(one.removable for one in each.values())}
    if not removable:
        raise UsageError(
            f"{graph.name}: where={'|'.join(where)!r} has no numbered layers that give what they are given"
        )
    stay = {prefix: _kept(prefix, sorted(numbers), layers, removable) for prefix, numbers in removable.items()}
    if all(len(stay[prefix]) == len(removable[prefix]) for prefix in removable):
        raise UsageError(f"{graph.name}: layers={layers!r} removes none of {_listed(removable)}")
    gone = [_checked(one, f"{prefix}.{number}".strip(".")) for prefix, numbers in removable.items()
            for number, one in sorted(numbers.items()) if number not in stay[prefix]]  # fmt: skip
    smaller = _without(graph, gone)
    if graph.info.layers != sum(map(len, removable.values())):
        return smaller
    return smaller.with_info(layers=sum(map(len, stay.values())))


def _listed(removable: Mapping[str, Mapping[int, object]]) -> str:
    return ", ".join(f"{len(numbers)} in {prefix or 'the top scope'}" for prefix, numbers in removable.items())


def _scopes(graph: Graph, where: Sequence[str]) -> dict[str, dict[int, list[Node]]]:
    """Nodes by numbered scope; scopes of which nothing matches are left out."""
    every: dict[str, dict[int, list[Node]]] = {}
    for node in graph.nodes:
        if node.layer:
            prefix, _, number = node.layer.rpartition(".")
            every.setdefault(prefix, {}).setdefault(int(number), []).append(node)
    chosen = {
        prefix: {number: nodes for number, nodes in numbers.items() if any(matches(n.name, where) for n in nodes)}
        for prefix, numbers in every.items()
    }
    return {prefix: numbers for prefix, numbers in chosen.items() if len(numbers) > 1}


def _kept(
    prefix: str, numbers: Sequence[int], layers: float | Sequence[int], removable: Mapping[str, Mapping[int, object]]
) -> frozenset[int]:
    """The layers of one scope that stay: as listed, or spread evenly from the first to the last.

    A share never removes more than it says.
    """
    if not isinstance(layers, int | float):
        return _as_listed(prefix, numbers, layers, removable)
    check(layers, "layers")
    size, place = len(numbers), prefix or "the top scope"
    if isinstance(layers, int) and layers >= size and len(removable) > 1:
        return frozenset(numbers)
    left = ceil(remaining(layers, size, "layers", place))
    return frozenset(numbers[round(at * (size - 1) / max(left - 1, 1))] for at in range(left))


def _as_listed(
    prefix: str, numbers: Sequence[int], listed: Iterable[int], removable: Mapping[str, Mapping[int, object]]
) -> frozenset[int]:
    if isinstance(listed, str):
        raise UsageError(f"layers={listed!r}; allowed: a share to remove, a number to keep, or a list of those to keep")
    listed = tuple(listed)
    stay = frozenset(listed)
    if len(stay) < len(listed):
        raise UsageError(f"layers={list(listed)}: a layer can be kept once; nearest: {sorted(stay, key=str)}")
    if len(removable) > 1:
        raise UsageError(f"layers: a list is for one scope, and there are {_listed(removable)}; pick one with where")
    if not stay:
        raise UsageError(f"layers: an empty list keeps nothing of {_listed(removable)}")
    unknown = sorted(stay - set(numbers), key=str)
    if unknown:
        raise UsageError(f"{prefix}: no layer {unknown[0]!r} to keep; there are {numbers[0]} to {numbers[-1]}")
    return stay


def _reads(nodes: Iterable[Node]) -> set[str]:
    return {name for node in nodes for name in node.inputs}


def _writes(nodes: Iterable[Node]) -> set[str]:
    return {name for node in nodes for name in node.outputs}


@dataclass(frozen=True)
class _Layer:
    """A layer and what would stand for it.

    Attributes:
        nodes: Its nodes.
        source: What enters it and could leave it instead of its result; empty where nothing could.
        result: What others read of it.
        extra: What else it only puts out, such as its part of the cache.
        needed: All that others read of it.
    """

    nodes: tuple[Node, ...]
    source: str
    result: str
    extra: frozenset[str]
    needed: tuple[str, ...]

    @property
    def removable(self) -> bool:
        return bool(self.source)


def _analysed(graph: Graph, numbers: Mapping[int, Sequence[Node]]) -> dict[int, _Layer]:
    """The layers of one scope."""
    often = Counter(name for nodes in numbers.values() for name in _reads(nodes))
    return {number: _layer(graph, tuple(nodes), often) for number, nodes in numbers.items()}


def _layer(graph: Graph, nodes: tuple[Node, ...], often: Mapping[str, int]) -> _Layer:
    written, inside = _writes(nodes), {node.name for node in nodes}
    needed = tuple(sorted(
        name for name in written if any(node.name not in inside for node in graph.consumers.get(name, ()))
    ))  # fmt: skip
    put_out = written.intersection(graph.outputs)
    entering = [name for name in dict.fromkeys(n for node in nodes for n in node.inputs)
                if name not in written and graph.tensors[name].kind in ("activation", "input")]  # fmt: skip
    results = needed or [name for name in graph.outputs if name in put_out and _alike(graph, entering, name)]
    alike = _alike(graph, entering, results[0]) if len(results) == 1 else []
    if not alike:
        return _Layer(nodes, "", "", frozenset(), needed)
    # What every layer reads (an encoder's output, a mask) is not what runs through them.
    source = min(alike, key=lambda name: often[name])
    return _Layer(nodes, source, results[0], frozenset(put_out - {results[0]}), needed)


def _alike(graph: Graph, names: Iterable[str], result: str) -> list[str]:
    want = graph.tensors[result]
    return [
        name for name in names if (graph.tensors[name].shape, graph.tensors[name].dtype) == (want.shape, want.dtype)
    ]


def _checked(layer: _Layer, path: str) -> _Layer:
    if layer.removable:
        return layer
    several = len(layer.needed) > 1
    why = f"others need its {layer.needed[0]}" if several else "its output has another shape than its input"
    raise UsageError(f"{path} cannot be removed: {why}; list the layers to keep, this one among them")


def _without(graph: Graph, gone: Sequence[_Layer]) -> Graph:
    """The program without some layers; what entered one goes where its result went."""
    instead = {layer.result: layer.source for layer in gone}
    dropped = {node.name for layer in gone for node in layer.nodes}
    extra = frozenset().union(*(layer.extra for layer in gone))

    def current(name: str) -> str:
        while name in instead:
            name = instead[name]
        return name

    left = tuple(
        replace(node, inputs=tuple(map(current, node.inputs))) if not instead.keys().isdisjoint(node.inputs) else node
        for node in graph.nodes
        if node.name not in dropped
    )
    outputs = tuple(current(name) for name in graph.outputs if name not in extra)
    touched = {name for layer in gone for name in _reads(layer.nodes) | _writes(layer.nodes)}
    used = _reads(left) | _writes(left) | set(outputs)
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name not in touched or name in used}
    smaller = replace(graph, nodes=left, outputs=outputs, tensors=tensors).validate()
    return smaller.with_info(lifetimes=_lifetimes(graph, smaller, {result: current(result) for result in instead}))


def _lifetimes(graph: Graph, smaller: Graph, instead: Mapping[str, str]) -> Lifetimes:
    """Return when tensors are freed: what stands for a layer's result as that was, and nothing after a node that went.

    What was freed after a node that has gone is freed after the one that is left before it.

    Args:
        graph: The program with all its layers.
        smaller: What is left of it.
        instead: What stands for the result of each layer that has gone, in their order.
    """
    known, root = graph.info.lifetimes, aliases(graph).root
    stays, latest, after = {node.name for node in smaller.nodes}, "", {"": ""}
    for node in graph.nodes:
        latest = after[node.name] = node.name if node.name in stays else latest

    def owner(name: str) -> str:
        return known.within.get(root(name), root(name))

    freed = dict(known.freed)
    for result, source in instead.items():
        if owner(source) in freed and owner(result) in freed:
            freed[owner(source)] = freed[owner(result)]
    freed = {name: after[node] for name, node in freed.items()
             if name in smaller.tensors and (after.get(node) or not node)}  # fmt: skip
    within = {name: other for name, other in known.within.items() if {name, other} <= smaller.tensors.keys()}
    unread = tuple((tensor, first, after.get(last, last)) for tensor, first, last in known.unread if first in stays)
    return replace(known, freed=freed, within=within, unread=unread)
