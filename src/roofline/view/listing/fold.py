"""Nodes to a tree of modules, and equal neighbours in it to one: layer after layer, or period after period."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from roofline.ir.graph import Graph

#: The longest pattern of unlike neighbours that is looked for (five local layers and a global one are six).
LONGEST_PERIOD = 16

#: Single nodes are folded from so many on; modules from two.
LEAST_COPIES = 4

_NUMBER = re.compile(r"\d+")
_FLOWS = {"input": "activation"}
_COPY = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True)
class Span:
    """Nodes ``start`` to ``end`` of a graph under one path; a leaf has no ``items``.

    ``times`` equal ones follow each other, of which ``start`` to ``end`` is the first and ``last`` names the last.
    """

    path: str
    name: str
    last: str
    start: int
    end: int
    times: int = 1
    items: tuple[Span, ...] | None = None


def tree(names: Sequence[str]) -> tuple[Span, ...]:
    """Group nodes by the parts of their dotted names, in execution order.

    Example:
        >>> [(span.path, span.end - span.start) for span in tree(["embed", "layers.0.up", "layers.0.down"])]
        [('embed', 1), ('layers', 2)]
    """
    parts = [tuple(name.split(".")) for name in names]
    return _level(names, parts, 0, len(names), 0)


def _level(
    names: Sequence[str], parts: Sequence[tuple[str, ...]], start: int, end: int, depth: int
) -> tuple[Span, ...]:
    def scope(at: int) -> Any:
        return parts[at][depth] if len(parts[at]) > depth + 1 else at

    spans: list[Span] = []
    for key, group in groupby(range(start, end), key=scope):
        run = list(group)
        if isinstance(key, int):
            name = ".".join(parts[key][depth:])
            spans.append(Span(names[key], name, name, key, key + 1))
        else:
            path, stop = ".".join(parts[run[0]][: depth + 1]), run[-1] + 1
            spans.append(Span(path, key, key, run[0], stop, 1, _level(names, parts, run[0], stop, depth + 1)))
    return tuple(spans)


class Folder:
    """Finds equal neighbours in the tree of one graph."""

    def __init__(self, graph: Graph, places: Sequence[Hashable]) -> None:
        """Take a graph and, for each of its nodes, what is equal only for nodes in equal places of equal kernels."""
        self.graph, self.places = graph, places
        self.producer = {name: at for at, node in enumerate(graph.nodes) for name in node.outputs}
        known: dict[Any, int] = {}
        # The first of equal layers may read what the caller hands in, and the others what the one before wrote.
        self._form = {
            t.name: known.setdefault((t.shape, t.dtype, _FLOWS.get(t.kind, t.kind)), len(known))
            for t in graph.tensors.values()
        }

    def fold(self, spans: tuple[Span, ...]) -> tuple[Span, ...]:
        """Replace equal neighbours by the first of them, at every depth."""
        folded: list[Span] = []
        for first, period, times in repeats(self._keys(spans)):
            body, last = spans[first : first + period], spans[first + period * times - 1]
            if times < LEAST_COPIES and any(span.items is None for span in body):
                folded += map(self._inside, spans[first : first + period * times])
            elif times == 1:
                folded += map(self._inside, body)
            elif period == 1:
                folded.append(replace(self._inside(body[0]), last=last.name, times=times))
            else:
                items = self.fold(tuple(map(self._inside, body)))
                head = body[0]
                folded.append(Span(head.path, head.name, last.name, head.start, body[-1].end, times, items))
        return tuple(folded)

    def _inside(self, span: Span) -> Span:
        if span.items is None or span.times > 1:
            return span
        return replace(span, items=self.fold(span.items))

    def _keys(self, spans: tuple[Span, ...]) -> list[Hashable]:
        """Return keys that are equal for spans that may stand for each other."""
        kinds = [(pattern(span.name), span.items is None, span.end - span.start) for span in spans]
        often = Counter(kinds)
        return [
            (kind, self._content(span)) if often[kind] > 1 and span.times == 1 else (kind, span.start)
            for kind, span in zip(kinds, spans, strict=True)
        ]

    def _content(self, span: Span) -> Hashable:
        """Return the nodes of a span, with references inside it by distance, and to the outside by shape."""
        skip = len(span.path) + 1
        content = []
        for at in range(span.start, span.end):
            node = self.graph.nodes[at]
            inner = "" if span.items is None else node.name[skip:]
            read = []
            for name in node.inputs:
                writer = self.producer.get(name, at)
                read.append((self._form[name], at - writer if span.start <= writer < at else 0))
            written = tuple(self._form[name] for name in node.outputs)
            content.append((inner, node.op, node.attrs, node.count, self.places[at], tuple(read), written))
        return tuple(content)


def pattern(name: str) -> str:
    """Return a name without its numbers.

    Example:
        >>> pattern("relu") == pattern("relu_2"), pattern("stage1"), pattern("q_norm") == pattern("k_norm")
        (True, 'stage#', False)
    """
    return _NUMBER.sub("#", _COPY.sub("", name))


def repeats(keys: Sequence[Hashable]) -> Iterator[tuple[int, int, int]]:
    """Cut a sequence into ``(first, period, times)``; at each place the repetition that covers most.

    Example:
        >>> list(repeats("embed" "LLGLLGLLG" "h"))[5:]
        [(5, 3, 3), (14, 1, 1)]
    """
    known: dict[Hashable, int] = {}
    numbers = [known.setdefault(key, len(known)) for key in keys]
    at, n = 0, len(numbers)
    while at < n:
        best = (at, 1, 1)
        for period in range(1, min(LONGEST_PERIOD, (n - at) // 2) + 1):
            end = at + period
            while end < n and numbers[end] == numbers[end - period]:
                end += 1
            times = (end - at) // period
            if times > 1 and times * period > best[1] * best[2]:
                best = (at, period, times)
        yield best
        at += best[1] * best[2]


def stands_for(spans: tuple[Span, ...], count: int) -> tuple[int, ...]:
    """Return, for each of ``count`` nodes, the one that is shown in its place."""
    shown = list(range(count))
    for span in _folded(spans):
        length = span.end - span.start
        for at in range(span.end, span.start + span.times * length):
            shown[at] = span.start + (at - span.start) % length
    for at in range(count):
        while shown[shown[at]] != shown[at]:
            shown[at] = shown[shown[at]]
    return tuple(shown)


def _folded(spans: tuple[Span, ...]) -> Iterator[Span]:
    for span in spans:
        if span.times > 1:
            yield span
        yield from _folded(span.items or ())
