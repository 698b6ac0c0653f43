"""Which program a plan was made for, and in what another one differs from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from roofline.hardware.chip import Chip
from roofline.ir.graph import Graph

#: Differences that an error names.
_MOST = 6


def identity(graph: Graph) -> dict[str, Any]:
    """Return what tells a program from others: a hash of all its tensors and nodes, and counts that people can read.

    Example:
        >>> import roofline as rl
        >>> a, b = (identity(rl.model("gpt2", layers=n)) for n in (1, 2))
        >>> a["hash"] == b["hash"], differences(a, b)[0]
        (False, '3 more add')
    """
    ops = Counter(node.op for node in graph.nodes)
    formats = Counter(f"{tensor.kind} {tensor.dtype}" for tensor in graph.tensors.values())
    return {
        "title": graph.title, "phase": graph.info.phase or "", "dtype": graph.info.dtype or "",
        "hash": graph_hash(graph), "parameters": int(graph.parameters), "sizes": sorted(graph.symbols),
        "kernels": len(graph.kernels),
        "ops": dict(sorted(ops.items())), "tensors": dict(sorted(formats.items())),
    }  # fmt: skip


def graph_hash(graph: Graph) -> str:
    """Return a hash of a program: its tensors, nodes with their kernels, and outputs; notes and history are none of it.

    Example:
        >>> import roofline as rl
        >>> graph = rl.model("gpt2")
        >>> graph_hash(graph) == graph_hash(rl.passes.fuse(graph, "chains"))
        False
    """
    digest = sha256(repr((graph.outputs, graph.items)).encode())
    for name in sorted(graph.tensors):
        tensor = graph.tensors[name]
        digest.update(repr((name, [str(size) for size in tensor.shape], tensor.dtype, tensor.kind)).encode())
    for node in graph.nodes:
        attrs = [(key, str(value)) for key, value in node.attrs]
        row = (node.name, node.op, node.inputs, node.outputs, attrs, node.label, node.count, node.phase)
        digest.update(repr(row).encode())
    return digest.hexdigest()


def chip_hash(chip: Chip) -> str:
    """Return a hash of a chip's figures, without where they come from.

    Example:
        >>> import roofline as rl
        >>> h100 = rl.chip("h100-sxm")
        >>> chip_hash(h100) == chip_hash(rl.chip("H100 SXM")), chip_hash(h100) == chip_hash(h100.replace(tdp=600))
        (True, False)
    """
    text = chip.model_dump_json(exclude={"notes", "source", "sources", "aliases"}, exclude_none=True)
    return sha256(text.encode()).hexdigest()


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Say in what a program differs from the one that a plan was made for."""
    said = list(_said(before, after))
    return said[:_MOST] + [f"{len(said) - _MOST} more"] * (len(said) > _MOST) or ["names, shapes or options of nodes"]


def _said(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for table, word in (("ops", ""), ("tensors", " tensors")):
        was, now = Counter(before.get(table, {})), Counter(after.get(table, {}))
        for name in sorted(was | now):
            if number := now[name] - was[name]:
                yield f"{abs(number):,} {'more' if number > 0 else 'fewer'} {name}{word}"
    for key in ("title", "phase", "dtype", "parameters", "sizes", "kernels"):
        if before.get(key) != after.get(key):
            yield f"{key}: {before.get(key)} then, {after.get(key)} now"
