"""ONNX files to graphs: parsed, never run, and without the data beside them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from roofline.frontends.call import MALFORMED, UNKNOWN, one_line
from roofline.frontends.onnx.known import Value
from roofline.frontends.onnx.names import Names
from roofline.frontends.onnx.read import ELEMENTS, elements, read_model
from roofline.frontends.onnx.translate import translate
from roofline.frontends.onnx.walk import Walk
from roofline.ir.errors import ModelDataError, RooflineError, UsageError
from roofline.ir.graph import Graph, Info, Lifetimes
from roofline.ir.sizes import Size, one_of, symbol
from roofline.ops.builder import Builder
from roofline.passes.formats.cast import cast

__all__ = ["from_onnx"]


def from_onnx(
    source: str | os.PathLike[str] | bytes,
    sizes: Mapping[str, int | str] | None = None,
    *,
    dtype: str | None = None,
    unknown: str = "error",
    name: str | None = None,
) -> Graph:
    """Read an ONNX model: its FLOPs, bytes and parameters, without its weights.

    Args:
        source: A path, or the bytes of a model. Data beside the file is never opened: shapes are enough.
        sizes: A number, or the name of a symbol, for symbolic sizes by their names in the file. Others stay symbolic
            and are given to :func:`roofline.estimate`; what exporters call the batch and the sequence become B and S.
            ``trip`` says how often a loop runs whose length the file does not say.
        dtype: Number format instead of the file's.
        unknown: What to do with an operator without a rule: ``error``, or ``report`` to count its bytes and say so.
        name: What to call the program; by default the file's name or the graph's.

    Returns:
        The program, its symbolic dimensions as sizes.

    Raises:
        MissingExtra: The package onnx is not installed.
        UnknownModel: No such file.
        UnknownOp: An operator without a rule.
        ModelDataError: Not an ONNX model, cut short, or with shapes that nobody knows.
        ShapeError: Shapes that contradict each other.
        UsageError: Sizes that the file has not, or an unknown policy.

    Example:
        >>> from onnx import TensorProto, helper  # doctest: +SKIP
        >>> import roofline as rl  # doctest: +SKIP
        >>> x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 64]) for n in "xy")  # doctest: +SKIP
        >>> w = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], [0.0] * 4096)  # doctest: +SKIP
        >>> nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]  # doctest: +SKIP
        >>> model = helper.make_model(helper.make_graph(nodes, "tiny", [x], [y], [w]))  # doctest: +SKIP
        >>> graph = rl.from_onnx(model.SerializeToString())  # doctest: +SKIP
        >>> graph, rl.count(graph, B=32).flops  # doctest: +SKIP
        (<Graph tiny: 1 nodes, 4,096 parameters, sizes B>, 262144)
    """
    one_of("unknown", unknown, UNKNOWN)
    if not isinstance(source, str | os.PathLike | bytes) or not source:
        raise UsageError(f"source: expected a path or the bytes of a model, given {str(source)[:60]!r}")
    model, where = read_model(source)
    names = Names(sizes or {})
    label = name or (model.graph.name if isinstance(source, bytes) else Path(source).stem) or "onnx"
    walk = Walk(model, Builder(label, _main_format(model)), names, unknown, where, translate)
    outputs = [walk.tensor(value) for value in _outputs(walk, model)]
    names.finish(where)
    graph = walk.b.graph(list(dict.fromkeys(outputs)), *_items(names), _info(walk, model, label))
    graph = _used(graph.live(follows=walk.together))
    return cast(graph, dtype) if dtype else graph


def _outputs(walk: Walk, model: Any) -> list[Value]:
    try:
        return walk.graph(model.graph)
    except RecursionError:
        raise ModelDataError(f"{walk.where}: nested too deeply") from None
    except MALFORMED as error:  # not of one node, such as names that are no text
        if isinstance(error, RooflineError):
            raise
        raise ModelDataError(f"{walk.where}: malformed: {one_line(error)}") from None


def _used(graph: Graph) -> Graph:
    """Leave out the weights that nobody reads; inputs stay, since they are handed in."""
    read = {name for node in graph.nodes for name in (*node.inputs, *node.outputs)}.union(graph.outputs)
    tensors = {name: t for name, t in graph.tensors.items() if name in read or t.kind in ("input", "cache")}
    return replace(graph, tensors=tensors)


def _main_format(model: Any) -> str:
    """Return the format that most of the weights are in."""
    totals = Counter({"fp32": 0})
    for tensor in model.graph.initializer:
        form = ELEMENTS.get(tensor.data_type, "")
        if form in ("fp64", "fp32", "fp16", "bf16"):
            totals[form] += elements(tensor)
    return max(totals, key=lambda form: totals[form])


def _items(names: Names) -> tuple[Size, str]:
    """Return what one run counts for throughput: tokens or samples, where the file says what a batch is."""
    batch, length = symbol("B"), symbol("S")
    known = names.known.values()
    if batch in known and length in known:
        return batch * length, "token"
    return (batch, "sample") if batch in known else (1, "run")


def _info(walk: Walk, model: Any, label: str) -> Info:
    return Info(
        model=label,
        source=", ".join(filter(None, ("onnx", model.producer_name))),
        opset={domain or "ai.onnx": version for domain, version in walk.versions.items()},
        notes=(*walk.file.names.notes, *walk.notes),
        ignored=dict(sorted((+walk.folded).items())),
        lifetimes=Lifetimes(planned=True),  # by the runtime: ONNX Runtime reuses a buffer after its last use
    )
