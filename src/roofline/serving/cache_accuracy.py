"""The error that a format of the cache causes in attention, measured on arrays of the model's shape.

Narrow formats hold more tokens, and cost accuracy (KIVI, Liu et al. 2024, arXiv:2402.02750, which also shows that keys
of real models have a few large channels: give your own keys to see what they do).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from roofline.frontends.source import Program, as_graph
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph
from roofline.ir.numbers import whole_number
from roofline.ops.builder import Builder
from roofline.ops.deviation import Deviation, deviation_of
from roofline.ops.reference import execute
from roofline.ops.rounding import number_format, quantized
from roofline.passes.formats.scales import cache_format

#: Positions and queries over which the error of a format is measured.
POSITIONS, QUERIES = 512, 8


def cache_error(
    program: Program, cache: str, *, queries: Any = None, keys: Any = None, values: Any = None,
    positions: int = POSITIONS, seed: int = 0,
) -> Deviation:  # fmt: skip
    """Measure the error that a format of the cache causes in the output of attention.

    Keys and values are rounded for each token and head, and attention is executed in double precision with them and
    without. Normal numbers are drawn where none are given; those of a real model have outliers, which cost more.

    Args:
        program: A model with a cache: its heads and their widths are taken.
        cache: Number format of the keys and values.
        queries: Of shape (heads, queries, width).
        keys: Of shape (key heads, positions, width).
        values: Of shape (key heads, positions, width); of a latent cache its first columns, and not given.
        positions: That are attended to, where keys are drawn.
        seed: Of what is drawn.

    Returns:
        SQNR [dB], cosine and largest error of the outputs.

    Raises:
        UsageError: A program without attention to a cache.
        ShapeError: Arrays that do not go together.

    Example:
        >>> wide, narrow = (cache_error("llama-3-8b", name).sqnr_db for name in ("int8", "int4"))
        >>> wide > narrow + 15
        True
    """
    for name, array in (("queries", queries), ("keys", keys), ("values", values)):
        if array is not None and np.ndim(array) != 3:
            raise UsageError(f"{name}: expected an array of three axes, heads, positions and width; given "
                             f"{np.ndim(array)}")  # fmt: skip
    program = as_graph(program, implied="decode")
    held = whole_number("positions", positions if keys is None else np.shape(keys)[-2], 1, 65536)
    graph, latent = _attention(program, held, QUERIES if queries is None else np.shape(queries)[-2])
    names = ("q", "k") if latent else ("q", "k", "v")
    own = dict(zip(("q", "k", "v"), (queries, keys, values), strict=True))
    draw = np.random.default_rng(seed)
    arrays = {
        name: draw.standard_normal(tuple(map(int, graph.tensors[name].shape)))  # type: ignore[arg-type]
        if own[name] is None else np.asarray(own[name], dtype=np.float64)[None] for name in names
    }  # fmt: skip
    form = number_format(cache_format(cache, arrays["k"].shape[-1], "dynamic"))
    rounded = {name: array if name == "q" else quantized(array, form).values for name, array in arrays.items()}
    before, after = (next(iter(execute(graph, each).values())) for each in (arrays, rounded))
    return deviation_of(before, after)


def _attention(graph: Graph, positions: int, queries: int) -> tuple[Graph, bool]:
    """Cut the first full attention out of a decode step, with several queries; tell whether keys hold the values."""
    nodes = {node.op: node for node in reversed(graph.nodes) if node.op in ("attention_scores", "attention_values")}
    if len(nodes) < 2 or not any(tensor.kind == "cache" for tensor in graph.tensors.values()):
        raise UsageError(f"{graph.name}: no attention to a cache, whose formats could be compared")
    shapes = [graph.tensors[name].shape for op in ("attention_scores", "attention_values") for name in nodes[op].inputs]
    (_, heads, _, width), (_, groups, *_), _, (*_, value) = shapes
    latent = groups == 1 and value != width
    b = Builder("attention", "fp32")
    q, k = b.input("q", (1, heads, queries, width)), b.input("k", (1, groups, positions, width))
    held = (1, groups, positions, value)
    v = b.op("slice", k, shape=held, start=0) if latent else b.input("v", held)
    weights = b.op("attention_softmax", b.op("attention_scores", q, k))
    return b.graph([b.op("attention_values", weights, v)]), latent
