"""Several changes of a program in one call, in the order in which they make sense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.analysis.scale_out import with_topology
from roofline.frontends.source import Program, as_graph
from roofline.hardware.cluster import Cluster
from roofline.hardware.cluster import cluster as find_cluster
from roofline.hardware.library import AnyChip
from roofline.ir.graph import Graph
from roofline.ir.numbers import whole_number
from roofline.passes.formats.quantize import Weights, formats_by_name, quantize
from roofline.passes.fusion.fuse import fuse as fuse_kernels
from roofline.passes.parallel.pipelined import pipelined
from roofline.passes.parallel.shard import shard
from roofline.passes.rewriting.amounts import prune_options
from roofline.passes.rewriting.layouts import layout as lay_out
from roofline.passes.rewriting.prune import prune as take_away


def what_if(
    program: Program,
    *,
    prune: str | Mapping[str, Any] | None = None,
    weights: Weights | None = None,
    activations: str | None = None,
    cache: str | None = None,
    tp: int = 1,
    sp: bool = False,
    ep: int = 1,
    pp: int = 1,
    fuse: str | None = None,
    layout: str | None = None,
    cluster: AnyChip | Cluster | None = None,
    phase: str | None = None,
    dtype: str | None = None,
) -> Graph:
    """Apply several passes: pruning, sharding, number formats, layouts, stages, fusion, in this order.

    ``graph.history`` lists them and :func:`roofline.analysis.pass_history` says what each did.

    Args:
        program: A graph, a shipped name, or the path of a model file, workload, config or script.
        prune: Options of :func:`roofline.passes.prune`, or text such as ``"heads=0.25,channels=0.5"`` or ``"2:4"``.
        weights: Format of weights, as for :func:`roofline.passes.quantize`, or text with exceptions by pattern, such as
            ``"int4-g128,*.down*=int8"``.
        activations: Format that matmuls take their inputs in, likewise.
        cache: Format of the KV cache, likewise.
        tp: Devices that share every layer, as for :func:`roofline.passes.shard`.
        sp: Whether they share the positions too.
        ep: Groups of devices that share the experts.
        pp: Stages of a pipeline, as for :func:`roofline.passes.pipelined`.
        fuse: A policy of :func:`roofline.passes.fuse`.
        layout: Of images, ``channels_last`` or ``channels_first``, as for :func:`roofline.passes.layout`.
        cluster: Where the devices are; a chip stands for one node of eight.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.

    Returns:
        The changed program.

    Raises:
        UsageError: As the passes do, or more devices than the cluster has.

    Example:
        >>> small = what_if("llama-3-70b", phase="decode", weights="int4", cache="fp8", tp=2)
        >>> small.history
        (shard(tp=2), quantize(weights='int4', cache='fp8'))
    """
    tp, ep = whole_number("tp", tp), whole_number("ep", ep)
    graph, where = as_graph(program, phase, dtype), None if cluster is None else find_cluster(cluster)
    if prune is not None:
        graph = take_away(graph, **prune_options(prune))
    if tp != 1 or ep != 1 or sp:
        graph = _shared(graph, where, tp=tp, sp=sp or None, ep=ep if ep != 1 else None)
    if not (weights is activations is cache is None):
        stored = formats_by_name(weights) if isinstance(weights, str) else weights
        graph = _narrowed(graph, _told(weights=stored, activations=activations, cache=cache))
    graph = _staged(graph if layout is None else lay_out(graph, layout), pp, where, tp * ep)
    return graph if fuse is None else fuse_kernels(graph, policy=fuse)


def _told(**options: Any) -> dict[str, Any]:
    """Options that were given, so that history shows no others."""
    return {name: value for name, value in options.items() if value is not None}


def _narrowed(graph: Graph, formats: Mapping[str, Any]) -> Graph:
    """Return the program in other formats; where all is as narrow already, itself with a word about it."""
    after = quantize(graph, **formats)
    words = ", ".join(f"{name} {value}" for name, value in formats.items())
    return after if after is not graph else graph.with_notes(f"{words}: what is stored is as narrow already and stays")


def _shared(graph: Graph, where: Cluster | None, tp: int, **options: Any) -> Graph:
    graph = shard(graph, **_told(tp=tp, **options))
    return with_topology(graph, where, tp) if where else graph


def _staged(graph: Graph, pp: int, where: Cluster | None, stride: int) -> Graph:
    """Cut a program into stages, whose sends may span nodes; refuse more devices than the cluster has, and name it."""
    if pp != 1:
        spans = where.span(2, stride) if where else 1
        graph = pipelined(graph, pp, **_told(nodes=spans if spans > 1 else None))
    if where:
        where.span(stride * pp)
    return graph if where is None or where.implied else graph.with_info(cluster=where.name)
