"""What sequence mixers with a state compute, position by position."""

from __future__ import annotations

from functools import reduce

import numpy as np

from roofline.ops.reference.calls import Array, Call, means
from roofline.ops.reference.pointwise import sigmoid


@means("causal_conv")
def causal_conv(call: Call, x: Array, weight: Array, *more: Array) -> Array:
    """A vector is the bias; the inputs before the first one are the state, or zeros."""
    batch, length, channels = x.shape[0], x.shape[-2], x.shape[-1]
    taps = weight.shape[-1]
    held = next((each.swapaxes(1, 2) for each in more if each.ndim == 3), np.zeros((batch, 0, channels)))
    before = np.concatenate([np.zeros((batch, taps, channels)), held], axis=1)[:, 1 - taps or None :][:, : taps - 1]
    seen = np.concatenate([before, x], axis=1)
    out = sum((seen[:, at : at + length] * weight[:, at] for at in range(taps)), np.zeros(x.shape))
    return reduce(np.add, (each for each in more if each.ndim == 1), out)


@means("selective_scan")
def selective_scan(call: Call, x: Array, dt: Array, a: Array, b: Array, c: Array, *more: Array) -> Array:
    """``h = exp(-|dt A|) h + dt B x``, ``y = C h + D x`` (Mamba, arXiv 2312.00752, algorithm 2)."""
    skip = next((each for each in more if each.ndim == 1), np.zeros(x.shape[-1]))
    h = next((each for each in more if each.ndim == 3), np.zeros((len(x), *a.shape)))
    out = np.empty(x.shape)
    for at in range(x.shape[1]):
        step = dt[:, at, :, None]
        h = np.exp(-np.abs(step * a)) * h + step * b[:, at, None, :] * x[:, at, :, None]
        out[:, at] = (h * c[:, at, None, :]).sum(axis=-1) + skip * x[:, at]
    return out


def _by_head(x: Array, heads: int) -> Array:
    return np.repeat(x, heads // x.shape[2], axis=2)


def _decays(more: tuple[Array, ...], like: tuple[int, ...]) -> Array:
    """Factors between 0 and 1 from the operands that have a number for each position and head, or for each head."""
    fitting = [each.reshape(*each.shape, *(1,) * (4 - each.ndim)) for each in more if each.shape == like[:3]]
    vectors = [each.reshape(1, 1, -1, 1) for each in more if each.shape == like[2:3]]
    total = reduce(np.add, (*fitting, *vectors), np.zeros((*like[:3], 1)))
    return np.exp(-np.abs(total))


@means("ssd_scan")
def ssd_scan(call: Call, x: Array, b: Array, c: Array, *more: Array) -> Array:
    """``h = a h + x B``, ``y = h C`` (Mamba-2, arXiv 2405.21060, equation 1)."""
    heads = x.shape[2]
    b, c, decay = _by_head(b, heads), _by_head(c, heads), _decays(more, x.shape)
    size = (len(x), heads, x.shape[-1], b.shape[-1])
    h = next((each for each in more if each.shape == size), np.zeros(size))
    out = np.empty(x.shape)
    for at in range(x.shape[1]):
        h = decay[:, at, :, :, None] * h + x[:, at, :, :, None] * b[:, at, :, None, :]
        out[:, at] = (h * c[:, at, :, None, :]).sum(axis=-1)
    return out


@means("delta_scan")
def delta_scan(call: Call, q: Array, k: Array, v: Array, *more: Array) -> Array:
    """``S = a S (1 - k k^T) + v k^T``, ``y = S q`` with keys of length 1 (arXiv 2412.06464, equation 10)."""
    heads = v.shape[2]
    q, k, decay = _by_head(q, heads), _by_head(k, heads), _decays(more, v.shape)
    k = k / np.sqrt((k * k).sum(axis=-1, keepdims=True) + 1e-6)
    size = (len(v), heads, v.shape[-1], k.shape[-1])
    s = next((each.reshape(size) for each in more if each.ndim == 4 and each.size == np.prod(size)), np.zeros(size))
    out = np.empty(v.shape)
    for at in range(v.shape[1]):
        key = k[:, at, :, None, :]
        held = (s * key).sum(axis=-1, keepdims=True)
        s = decay[:, at, :, :, None] * (s - held * key) + v[:, at, :, :, None] * key
        out[:, at] = (s * q[:, at, :, None, :]).sum(axis=-1)
    return out


@means("linear_recurrence")
def linear_recurrence(call: Call, x: Array, *more: Array) -> Array:
    """``h = a h + sqrt(1 - a^2) x`` with ``a`` from the other operands (Griffin, arXiv 2402.19427, section 2.4)."""
    gates = [each for each in more if each.shape == x.shape or each.ndim == 1]
    decay = sigmoid(reduce(np.add, gates, np.zeros(x.shape)))
    h = next((each for each in more if each.ndim == 2), np.zeros((len(x), x.shape[-1])))
    out = np.empty(x.shape)
    for at in range(x.shape[1]):
        h = decay[:, at] * h + np.sqrt(1 - decay[:, at] ** 2) * x[:, at]
        out[:, at] = h
    return out
