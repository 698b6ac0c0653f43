"""Attention as its parts: scores, softmax, values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from roofline.ir.graph import Node
from roofline.ir.sizes import minimum
from roofline.ir.units import MAC
from roofline.ops.arrays import Call
from roofline.ops.einsum import contracted, contraction
from roofline.ops.gradients import Tape, options
from roofline.ops.registry import Array, Work, op
from roofline.ops.rowwise import SOFTMAX_FLOPS, SOFTMAX_GRAD_FLOPS

#: Of scores before the softmax where the node carries no ``scale``: that of heads of 64.
SCALE = 64**-0.5


def attended(q: Any, k: Any, causal: bool, window: int) -> Any:
    """Count the query-key pairs that a mask leaves, for ``q`` queries against the last of ``k`` keys.

    Causal: query ``i`` sees ``k - q + 1 + i`` keys, at most ``window`` of them; ``window`` 0 means no limit. Of more
    queries than keys, the first see none.

    Example:
        >>> attended(4, 4, True, 0), attended(4, 4, False, 0), attended(4, 4, True, 2), attended(1, 9, True, 4)
        (10, 16, 7, 4)
    """
    if causal:
        q = minimum(q, k)
    if not window:
        return q * k - (q * (q - 1) // 2 if isinstance(q, int) else q * (q - 1) / 2) if causal else q * k
    if not causal:
        return q * minimum(k, window)
    return _capped_sum(k, window) - _capped_sum(k - q, window)


def _capped_sum(count: Any, window: int) -> Any:
    ramp = minimum(count, window)
    triangle = ramp * (ramp + 1)
    return (triangle // 2 if isinstance(triangle, int) else triangle / 2) + (count - ramp) * window


def visible(call: Call, queries: int, keys: int) -> Array:
    """Return which keys each query sees.

    The last query stands at the last key; a window without a mask lies around it.
    """
    window = int(call.attrs.get("window", 0))
    place, key = call.arange(queries)[:, None] + (keys - queries), call.arange(keys)[None, :]
    if call.attrs.get("causal", False):
        return (key <= place) & (key > place - window if window else True)
    if not window:
        return np.ones((queries, keys), dtype=bool)
    start = np.clip(place - window // 2, 0, max(0, keys - window))
    return (key >= start) & (key < start + window)


# --- contractions: a mask leaves a share of the pairs, a window reads only its own keys -------------------------------


def _products(b: Any, h: Any, q: Any, k: Any, d: Any, causal: bool = False, window: int = 0) -> Work:
    return Work(flops=MAC * b * h * attended(q, k, causal, window) * d)


def _masked(b: Any, h: Any, g: Any, q: Any, k: Any, d: Any, causal: bool = False, window: int = 0) -> Work:
    reads = {1: b * g * minimum(k, q + window - 1) * d} if window else {}
    return replace(_products(b, h, q, k, d, causal, window), reads=reads)


#: The time model was fitted to a matmul per query head, where the signature makes one per key-value head.
_HEADS = {"h": "query heads", "g": "key-value heads"}
contraction(
    "attention_scores", "b h=(g r) q d, b g k d -> b h q k", "attention",
    "``Q K^T`` by query head; grouped key heads are read once each, and a window only reads its own keys.",
    "q k", formula=_masked, gemm="b h, q, k, d", nouns=_HEADS,
)  # fmt: skip
contraction(
    "attention_values", "b h=(g r) q k, b g k d -> b h q d", "attention", "Probabilities times values.",
    "weights v", formula=_masked, gemm="b h, q, d, k", nouns=_HEADS, gradient=contracted("weights", "v", reverse=True),
)  # fmt: skip
contraction(
    "attention_keys_grad", "b h=(g r) q k, b h q d -> b g k d", "attention",
    "``P^T X`` to ``g`` key-value heads: the gradient of keys (from the scores') or of values (from the output's).",
    "weights x", formula=_products, gemm="b h, k, d, q", nouns=_HEADS, options={"g": "g"}, gradient=None,
)  # fmt: skip


# --- softmax ----------------------------------------------------------------------------------------------------------


def _softmax_work(flops: int) -> Callable[..., Work]:
    return lambda b, h, q, k, causal=False, window=0: Work(vector=flops * b * h * attended(q, k, causal, window))


def _softmax_gradient(t: Tape, node: Node, dy: str) -> None:
    scores, *sinks = node.inputs
    masked = options(node, "causal", "window", "scale")
    back = t.op("attention_softmax_grad", dy, t.saved(node.outputs[0]), name="grad", like=scores, **masked)
    t.accumulate(scores, back)
    for name in sinks:
        if t.needs_grad(name):
            t.accumulate(name, t.op("reduce", back, name="grad_sinks", like=name, axes=(0, 2, 3), how="sum"))


@op("attention_softmax", "b h q k, [h] -> b h q k", "rowwise",
    formula=_softmax_work(SOFTMAX_FLOPS), gradient=_softmax_gradient)  # fmt: skip
def softmax(call: Call, x: Array, *sinks: Array) -> Array:
    """Scaled softmax over the keys that the mask leaves, five operations each; ``[h]`` are learned sinks, free.

    Zero where the mask hides; a sink takes its share of a row and is dropped.
    """
    scaled = np.where(visible(call, *x.shape[-2:]), x * call.attrs.get("scale", SCALE), -np.inf)
    extra = [np.broadcast_to(sink.reshape(1, -1, 1, 1), (*x.shape[:-1], 1)) for sink in sinks]
    joined = np.concatenate([scaled, *extra], axis=-1)
    peak = joined.max(axis=-1, keepdims=True)
    weights = np.exp(joined - np.where(np.isfinite(peak), peak, 0))
    total = weights.sum(axis=-1, keepdims=True)
    return weights[..., : x.shape[-1]] / np.where(total == 0, 1, total)


@op("attention_softmax_grad", "b h q k, b h q k -> b h q k", "rowwise", formula=_softmax_work(SOFTMAX_GRAD_FLOPS))
def softmax_grad(call: Call, grad: Array, weights: Array) -> Array:
    """Backward of the softmax over the keys that the mask leaves, to the scores before they were scaled."""
    left = np.where(visible(call, *weights.shape[-2:]), weights, 0)
    scale: float = call.attrs.get("scale", SCALE)
    return scale * left * (grad - (left * grad).sum(axis=-1, keepdims=True))
