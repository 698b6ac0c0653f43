"""What attention computes, as its parts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from roofline.ops.reference.calls import Array, Call, means

#: Of scores before the softmax where the node carries no ``scale``: that of heads of 64.
SCALE = 64**-0.5


def visible(call: Call, queries: int, keys: int) -> npt.NDArray[np.bool_]:
    """Which keys each query sees: the last query stands at the last key; a window without a mask lies around it."""
    window = int(call.attrs.get("window", 0))
    place, key = np.arange(queries)[:, None] + (keys - queries), np.arange(keys)[None, :]
    if call.attrs.get("causal", False):
        return (key <= place) & (key > place - window if window else True)
    if not window:
        return np.ones((queries, keys), dtype=bool)
    start = np.clip(place - window // 2, 0, max(0, keys - window))
    return (key >= start) & (key < start + window)


def _spread(keys: Array, heads: int) -> Array:
    return np.repeat(keys, heads // keys.shape[1], axis=1)


@means("attention_scores")
def scores(call: Call, q: Array, k: Array) -> Array:
    """All products; the softmax leaves out those that the mask hides."""
    return q @ _spread(k, q.shape[1]).swapaxes(-1, -2)


@means("attention_softmax")
def softmax(call: Call, x: Array, *sinks: Array) -> Array:
    """Zero where the mask hides; a sink takes its share of a row and is dropped."""
    seen = visible(call, *x.shape[-2:])
    scaled = np.where(seen, x * call.attrs.get("scale", SCALE), -np.inf)
    extra = [np.broadcast_to(sink.reshape(1, -1, 1, 1), (*x.shape[:-1], 1)) for sink in sinks]
    joined = np.concatenate([scaled, *extra], axis=-1)
    peak = joined.max(axis=-1, keepdims=True)
    weights = np.exp(joined - np.where(np.isfinite(peak), peak, 0))
    total = weights.sum(axis=-1, keepdims=True)
    return weights[..., : x.shape[-1]] / np.where(total == 0, 1, total)


@means("attention_values")
def values(call: Call, weights: Array, v: Array) -> Array:
    return weights @ _spread(v, weights.shape[1])


@means("attention_softmax_grad")
def softmax_grad(call: Call, grad: Array, weights: Array) -> Array:
    """Of the scores before they were scaled, from the gradient and the probabilities, as ``softmax_grad``."""
    hidden = ~visible(call, *weights.shape[-2:])
    kept = np.where(hidden, 0, weights)
    scale: float = call.attrs.get("scale", SCALE)
    return scale * kept * (grad - (kept * grad).sum(axis=-1, keepdims=True))


@means("attention_keys_grad")
def keys_grad(call: Call, weights: Array, x: Array) -> Array:
    """Query heads of one group add up."""
    each = weights.swapaxes(-1, -2) @ x
    batch, heads, keys, width = each.shape
    groups = int(call.attrs["g"])
    return each.reshape(batch, groups, heads // groups, keys, width).sum(axis=2)
