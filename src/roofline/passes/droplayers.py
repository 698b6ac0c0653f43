"""Take whole layers out of a program: what enters one leaves it unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil

from roofline.errors import UsageError
from roofline.graph import Graph, Node
from roofline.passes.amounts import check, kept, matches

#: ``layers.3.attn.q``, ``encoder.layer.3.output``, ``stage1.2.conv1``, ``3.linear``: a path, a number, the rest.
_NUMBERED = re.compile(r"(?:(.+?)\.)?(\d+)\.")


def drop_layers(graph: Graph, layers: float | Sequence[int], where: Sequence[str]) -> Graph:
    """Keep some layers of each numbered scope that ``where`` matches.

    Args:
        graph: The program.
        layers: The share to remove, the number to keep, or the numbers of the layers to keep.
        where: Patterns over node names.

    Raises:
        UsageError: No such layers, a number that does not come out even, or a layer that others depend on.
    """
    found = {
        prefix: numbers
        for prefix, numbers in _scopes(graph, where).items()
        if any(_passes_through(graph, nodes, numbers) for nodes in numbers.values())
    }
    if not found:
        raise UsageError(
            f"{graph.name}: where={'|'.join(where)!r} has no numbered layers whose output could be their input"
        )
    stay = {prefix: _kept(prefix, sorted(numbers), layers, found) for prefix, numbers in found.items()}
    if all(len(stay[prefix]) == len(found[prefix]) for prefix in found):
        raise UsageError(f"{graph.name}: layers={layers!r} removes none of {_listed(found)}")
    for prefix, numbers in found.items():
        for number in sorted(numbers):
            if number not in stay[prefix]:
                graph = _without(graph, prefix, number)
    total = sum(map(len, found.values()))
    if graph.info.get("layers") == total:
        graph = replace(graph, info={**graph.info, "layers": sum(map(len, stay.values()))})
    return graph


def _listed(found: Mapping[str, Mapping[int, object]]) -> str:
    return ", ".join(f"{len(numbers)} in {prefix or 'the top scope'}" for prefix, numbers in found.items())


def _scopes(graph: Graph, where: Sequence[str]) -> dict[str, dict[int, list[Node]]]:
    """Nodes by numbered scope; scopes of which nothing matches are left out."""
    every: dict[str, dict[int, list[Node]]] = {}
    for node in graph.nodes:
        if match := _NUMBERED.match(node.name):
            every.setdefault(match[1] or "", {}).setdefault(int(match[2]), []).append(node)
    chosen = {
        prefix: {number: nodes for number, nodes in numbers.items() if any(matches(n.name, where) for n in nodes)}
        for prefix, numbers in every.items()
    }
    return {prefix: numbers for prefix, numbers in chosen.items() if len(numbers) > 1}


def _kept(
    prefix: str, numbers: Sequence[int], layers: float | Sequence[int], found: Mapping[str, Mapping[int, object]]
) -> frozenset[int]:
    """The layers of one scope that stay: as listed, or spread evenly from the first to the last.

    A share never removes more than it says.
    """
    if not isinstance(layers, int | float):
        return _as_listed(prefix, numbers, layers, found)
    check(layers, "layers")
    size, place = len(numbers), prefix or "the top scope"
    if isinstance(layers, int) and layers >= size and len(found) > 1:
        return frozenset(numbers)
    left = ceil(kept(layers, size, "layers", place))
    return frozenset(numbers[round(at * (size - 1) / max(left - 1, 1))] for at in range(left))


def _as_listed(
    prefix: str, numbers: Sequence[int], listed: Iterable[int], found: Mapping[str, Mapping[int, object]]
) -> frozenset[int]:
    stay = frozenset(listed)
    if len(found) > 1:
        raise UsageError(f"layers: a list is for one scope, and there are {_listed(found)}; pick one with where")
    if not stay:
        raise UsageError(f"layers: an empty list keeps nothing of {_listed(found)}")
    unknown = sorted(stay - set(numbers), key=str)
    if unknown:
        raise UsageError(f"{prefix}: no layer {unknown[0]!r} to keep; there are {numbers[0]} to {numbers[-1]}")
    return stay


def _reads(nodes: Iterable[Node]) -> set[str]:
    return {name for node in nodes for name in node.inputs}


def _writes(nodes: Iterable[Node]) -> set[str]:
    return {name for node in nodes for name in node.outputs}


def _passes_through(
    graph: Graph, nodes: Sequence[Node], siblings: Mapping[int, Sequence[Node]]
) -> tuple[str, str, frozenset[str]] | None:
    """What enters a layer and could leave it instead of its result; the result; and what else it only puts out.

    ``None`` where another layer reads something else of it, or nothing of the result's shape enters.
    """
    written, inside = _writes(nodes), {node.name for node in nodes}
    read_later = {name for name in written for node in graph.consumers.get(name, ()) if node.name not in inside}
    put_out = written.intersection(graph.outputs)
    entering = [name for name in dict.fromkeys(n for node in nodes for n in node.inputs)
                if name not in written and graph.tensors[name].kind in ("activation", "input")]  # fmt: skip

    def alike(result: str) -> list[str]:
        want = graph.tensors[result]
        return [name for name in entering if graph.tensors[name].shape == want.shape
                and graph.tensors[name].dtype == want.dtype]  # fmt: skip

    results = sorted(read_later) or [name for name in graph.outputs if name in put_out and alike(name)]
    if len(results) != 1 or not alike(results[0]):
        return None
    # What every layer reads (an encoder's output, a mask) is not what runs through them.
    often = {name: sum(name in _reads(others) for others in siblings.values()) for name in alike(results[0])}
    source = min(often, key=lambda name: often[name])
    return source, results[0], frozenset(put_out - {results[0]})


def _without(graph: Graph, prefix: str, number: int) -> Graph:
    """The program without one layer."""
    siblings = _scopes(graph, ("*",)).get(prefix, {}) or _all_of(graph, prefix)
    nodes = siblings[number]
    found = _passes_through(graph, nodes, siblings)
    if found is None:
        inside = {node.name for node in nodes}
        shared = sorted(
            name for name in _writes(nodes) if any(node.name not in inside for node in graph.consumers.get(name, ()))
        )
        why = f"others need its {shared[0]}" if len(shared) > 1 else "its input has another shape than its output"
        raise UsageError(f"{prefix}.{number} cannot be removed: {why}; keep it by listing the layers to keep")
    source, result, extra = found
    left = tuple(
        replace(node, inputs=tuple(source if name == result else name for name in node.inputs))
        for node in graph.nodes
        if node not in nodes
    )
    outputs = tuple(source if name == result else name for name in graph.outputs if name not in extra)
    touched = _reads(nodes) | _writes(nodes)
    used = _reads(left) | _writes(left) | set(outputs)
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name not in touched or name in used}
    return replace(graph, nodes=left, outputs=outputs, tensors=tensors).validate()


def _all_of(graph: Graph, prefix: str) -> dict[int, list[Node]]:
    """The layers of a scope that has only one left."""
    found: dict[int, list[Node]] = {}
    for node in graph.nodes:
        match = _NUMBERED.match(node.name)
        if match and (match[1] or "") == prefix:
            found.setdefault(int(match[2]), []).append(node)
    return found
