"""A listing as plain dictionaries and lists, for programs."""

from __future__ import annotations

from typing import Any

from roofline.ir.graph import Tensor
from roofline.ir.sizes import Dim
from roofline.view.listing.rows import Block, KernelRow, Listed, Row


def summary(listed: Listed) -> dict[str, Any]:
    """Return the totals of a listing, its folded blocks and its kernels; a polynomial as text."""
    graph, counts = listed.graph, listed.counts
    return {
        "name": graph.name,
        "symbols": list(listed.symbols),
        "totals": {
            "nodes": len(graph.nodes),
            "kernels": counts.launches,
            "parameters": _plain(graph.parameters),
            "flops": _plain(counts.flops),
            "vector_flops": _plain(counts.vector_flops),
            "bytes": _plain(counts.bytes),
            "intensity": listed.intensity,
        },
        "blocks": [_block(block) for block in listed.folds],
        "kernels": [_kernel(row) for row in listed.kernels],
        "unknown": dict(listed.unknown),
    }


def nodes(listed: Listed) -> list[dict[str, Any]]:
    """Return the nodes that a listing shows, a dictionary each."""
    return [_node(row) for row in listed.rows]


def _plain(value: Any) -> Any:
    """What JSON has; everything else as text."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Dim) else value


def _node(row: Row) -> dict[str, Any]:
    return {
        "index": row.index, "name": row.name, "op": row.op, "meaning": row.meaning,
        "inputs": [_tensor(tensor) for tensor in row.inputs], "outputs": [_tensor(tensor) for tensor in row.outputs],
        "options": {str(key): _plain(value) for key, value in row.options}, "count": row.count,
        "flops": _plain(row.flops), "vector_flops": _plain(row.vector), "bytes": _plain(row.bytes),
        "read_bytes": _plain(row.read), "write_bytes": _plain(row.write), "bytes_alone": _plain(row.bytes_alone),
        "kernel": row.kernel or None, "kernel_number": row.number or None, "step": row.step, "steps": row.steps,
    }  # fmt: skip


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "shape": _plain(tensor.shape), "dtype": tensor.dtype, "kind": tensor.kind}


def _block(block: Block) -> dict[str, Any]:
    rows = list(block.rows())
    return {
        "path": block.path, "first": block.name, "last": block.last, "times": block.times,
        "nodes": [row.index for row in rows],
        "flops": _plain(block.flops), "vector_flops": _plain(block.vector), "bytes": _plain(block.bytes),
    }  # fmt: skip


def _kernel(row: KernelRow) -> dict[str, Any]:
    return {
        "number": row.number, "name": row.name, "ops": list(row.ops), "count": row.count,
        "flops": _plain(row.flops), "vector_flops": _plain(row.vector), "bytes": _plain(row.bytes),
        "intensity": row.intensity,
    }  # fmt: skip
