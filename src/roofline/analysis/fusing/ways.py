"""Who waits for whom among the kernels of a program."""

from __future__ import annotations

from roofline.counting.counts import Boundaries
from roofline.ops.registry import OPS


def reach(scope: Boundaries, start: str, forwards: bool) -> set[str]:
    """Kernels that wait for one, or that it waits for."""
    seen: set[str] = set()
    stack = [start]
    while stack:
        for label in _next(scope, stack.pop(), forwards) - seen - {start}:
            seen.add(label)
            stack.append(label)
    return seen


def _next(scope: Boundaries, label: str, forwards: bool) -> set[str]:
    nodes = scope.graph.kernels[label]
    if forwards:
        return {reader for node in nodes for name in node.outputs for reader in readers(scope, name)}
    bases = {scope.base(name) for node in nodes for name in node.inputs}
    return {scope.graph.producer[base].label for base in bases if base in scope.graph.producer} - {label}


def readers(scope: Boundaries, name: str) -> set[str]:
    """Kernels that read a tensor, through views."""
    labels: set[str] = set()
    for reader in scope.graph.consumers.get(name, ()):
        if OPS[reader.op].kind == "view":
            labels |= {label for made in reader.outputs for label in readers(scope, made)}
        else:
            labels.add(reader.label)
    return labels
