"""Reads which axes of a graph's tensors belong together from what its operators declare.

Operators with a signature say it by the names of their axes: the same name is the same size, and an axis that is
written as a product is one. What they say beyond that, and those without a signature, is a rule of their declaration;
an operator without either freezes its axes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from roofline.ir.graph import Graph
from roofline.ir.signature import Signature, Term
from roofline.ir.sizes import prod, quotient
from roofline.ir.unify import ONE, SUM, Cell, cell, freeze, joined, product, unify
from roofline.ops.axes import Cells, Site, frozen
from roofline.ops.registry import Op, get_op

#: Parts that are cut out of one axis, each with the node that cuts it.
Cuts = Sequence[tuple[str, Cells]]


def read(graph: Graph) -> tuple[dict[str, Cells], dict[str, dict[str, Any]]]:
    """Read a graph's nodes one after another into cells.

    Returns:
        For each tensor the cells of its axes, and for each node the options that are sizes, as cells.

    Raises:
        UnknownOp: A node's operator is not registered.
    """
    cells: dict[str, Cells] = {name: tuple(map(cell, tensor.shape)) for name, tensor in graph.tensors.items()}
    options: dict[str, dict[str, Any]] = {}
    cuts: dict[tuple[str, int, int], list[tuple[str, Cells]]] = defaultdict(list)
    for node in graph.nodes:
        inputs, output = [cells[name] for name in node.inputs], cells[node.outputs[0]]
        site = Site(node.name, node.op, dict(node.attrs), inputs, output, graph.info.family is not None)
        _read_node(site, get_op(node.op, node.name))
        if site.options:
            options[node.name] = site.options
        for axis, parts in site.cuts:
            cuts[node.inputs[0], axis, len(parts)].append((node.name, parts))
    _read_cuts(cells, cuts)
    _read_statistics(graph, cells)
    return cells, options


def _read_node(site: Site, op: Op) -> None:
    if op.signature is not None:
        _read_signature(site, op.signature, op)
    if op.rule is not None or op.signature is None:
        (op.rule or frozen)(site)
    if op.fixed:
        site.freeze(site.axes[axis] for axis in op.fixed.split() if axis in site.axes)


def _read_signature(site: Site, signature: Signature, op: Op) -> None:
    """Unify axes of the same name, then products with their factors; note options that are sizes."""
    operands = [*zip(signature.inputs, site.inputs, strict=False), (signature.outputs[0], site.output)]
    for axes, cells in operands:
        for axis, own in _named(axes, cells):
            unify(site.axes.setdefault(axis, own), own, site.name)
    for axis, size in op.given(site.attrs).items():
        site.axes.setdefault(axis, cell(size))
    for whole, factors in signature.composites.items():
        _read_product(site, whole, factors)
    for option, names in op.options.items():
        sized = tuple(site.axes[axis] for axis in names.split() if option in site.attrs)
        if any(each is not ONE for each in sized):
            site.options[option] = sized if len(sized) > 1 else sized[0]


def _read_product(site: Site, whole: str, factors: Term) -> None:
    size = site.axes[whole].size
    missing = [factor for factor in factors if factor not in site.axes]
    if len(missing) > 1:
        return
    share = quotient(size, prod(site.axes[factor].size for factor in factors if factor in site.axes))
    if share is not None:
        site.axes.update((factor, cell(share)) for factor in missing)
        unify(site.axes[whole], product(site.axes[factor] for factor in factors), site.name)


def _named(axes: Term, cells: Cells) -> list[tuple[str, Cell]]:
    """Put names beside cells; the axes under ``...`` are numbered."""
    if "..." not in axes:
        return list(zip(axes, cells, strict=False))
    at, extra = axes.index("..."), len(cells) - len(axes) + 1
    names = [*axes[:at], *(f"...{number}" for number in range(extra)), *axes[at + 1 :]]
    return list(zip(names, cells, strict=False))


# --- what several nodes say together ----------------------------------------------------------------------------------


def _read_statistics(graph: Graph, cells: Mapping[str, Cells]) -> None:
    """Make running statistics that nothing reads, as in training, as long as the scale beside them."""
    for name, tensor in graph.tensors.items():
        scale = f"{name.rpartition('.')[0]}.weight"
        unread = tensor.kind == "buffer" and name not in graph.consumers and len(tensor.shape) == 1
        if unread and scale in cells and graph.tensors[scale].shape == tensor.shape:
            unify(cells[name][0], cells[scale][0], name)


def _read_cuts(cells: Mapping[str, Cells], cuts: Mapping[tuple[str, int, int], Cuts]) -> None:
    """Read what several slices take of an axis together: first those that also take it apart."""
    for (name, at, factors), parts in cuts.items():
        if factors > 1:
            _read_regrouped(cells[name][at], parts)
    shared = [(cells[name][at], parts) for (name, at, factors), parts in cuts.items() if factors == 1]
    for axis, parts in [pair for pair in shared if not _shared_out(*pair)]:
        _find_segments(axis, parts)


def _read_regrouped(whole: Cell, cuts: Cuts) -> None:
    """Read slices that take an axis apart into the same outer axis and segments of an inner one."""
    why, (outer, _) = cuts[0]
    same = all(parts[0].size == outer.size for _, parts in cuts)
    if not same or sum(prod(part.size for part in parts) for _, parts in cuts) != whole.size:
        freeze((whole, *(part for _, parts in cuts for part in parts)), why)
        return
    for name, parts in cuts[1:]:
        unify(outer, parts[0], name)
    unify(whole, product([outer, joined([parts[1] for _, parts in cuts])]), why)


def _shared_out(whole: Cell, cuts: Cuts) -> bool:
    """Tell whether slices, in their order, take all of an axis (once or several times); then it is their sum."""
    runs: list[list[Cell]] = [[]]
    total: Any = 0
    for _, (part,) in cuts:
        runs[-1].append(part)
        total = total + part.size
        if total == whole.size:
            runs.append([])
            total = 0
    for run in runs[:-1]:
        unify(whole, joined(run), cuts[0][0])
    return not runs[-1]


def _find_segments(whole: Cell, cuts: Cuts) -> None:
    """Find each slice that takes one segment of what is known to be a sum; anything else is frozen."""
    segments = _segments(whole)
    for name, (part,) in cuts:
        fitting = [each for each in segments if each.size == part.size] if len(segments) > 1 else []
        if fitting:
            unify(fitting[0], part, name)
        else:
            freeze((whole, part), f"slice {name}")


def _segments(whole: Cell) -> list[Cell]:
    root = whole.root
    return [each for part in root.parts for each in _segments(part)] if root.kind == SUM else [root]
