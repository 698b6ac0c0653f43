"""Sequence mixers with a state of fixed size: causal convolutions, state-space scans, delta rule, linear recurrences.

Over many positions the scans run in chunks, whose matmuls are contractions; one new position runs the recurrence
itself, which is elementwise arithmetic on the state. The state that a step reads is the last operand.
"""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np

from roofline.ir.graph import Node
from roofline.ir.sizes import minimum, prod
from roofline.ir.unify import unify
from roofline.ir.units import MAC
from roofline.ops.arrays import Call, mix, updated
from roofline.ops.axes import Site, broadcast_axes
from roofline.ops.gradients import Rule, Tape
from roofline.ops.pointwise import sigmoid
from roofline.ops.registry import Array, Op, Work, by_option, declare, node_work, op, per_element

#: A position, channel and state of Mamba-1: decay ``exp(dt A)`` 2, input ``dt B x`` 3, update 2, output 2 (the 9 that
#: the VMamba authors count for arXiv 2312.00752, algorithm 2).
SELECTIVE_SCAN_FLOPS = 9
#: A head's state element in one step: decay and add 2, outer product 1, output 2 (arXiv 2405.21060, equation 1).
RECURRENCE_FLOPS = 5
#: A pair of positions in a chunk: difference of the cumulated decays, exponential, product (arXiv 2405.21060, sec. 6).
DECAY_FLOPS = 3
#: A channel of the real-gated linear recurrence: ``a = exp(c r log a)`` 3, ``sqrt(1 - a^2)`` 3, ``a h + b i x`` 4
#: (Griffin, arXiv 2402.19427, section 2.4).
LRU_FLOPS = 10


def _mixer_gradient(times: int) -> Rule:
    """Make the backward of a mixer: one kernel that reads what the forward read and writes all gradients.

    Each product and each operation of the forward has two gradients; a scan runs once more before them, because its
    states were never stored (Mamba, Gu and Dao 2023, section 3.3.2; Mamba-2's kernels do the same).
    """

    def rule(t: Tape, node: Node, dy: str) -> None:
        saved = [t.saved(name) for name in node.inputs]
        work = node_work(node, [t.shape(name) for name in node.inputs])
        amounts = {"products": times * work.flops, "operations": times * work.vector}
        with t.kernel("grad"):
            for at, name in enumerate(dict.fromkeys(node.inputs)):
                if t.needs_grad(name):
                    made = t.op("mixer_grad", dy, *saved, name=f"grad_{at}", like=name, shape=t.shape(name), **amounts)
                    t.accumulate(name, made)
                    amounts = {}

    return rule


declare(Op(
    "mixer_grad", None, "pointwise",
    "A gradient of one of the mixers below, with its share of the kernel's ``products`` and other ``operations``.",
    lambda products=0, operations=0: Work(flops=products, vector=operations), mix, by_option, rule=broadcast_axes,
))  # fmt: skip


# --- channels: a kernel has them first, a vector alone, a state second ------------------------------------------------


def _channels(site: Site) -> None:
    x = site.inputs[0]
    for other in site.inputs[2 if site.op == "causal_conv" else 1 :]:
        if len(other) == len(x) and other[1].size == x[1].size:
            site.same(x, other)
        else:
            unify(x[-1], other[0 if len(other) == 1 else 1], site.name)


@op("causal_conv", "... c, c k, * -> ... c", "pointwise", formula=lambda batch, c, k: Work(flops=MAC * batch * c * k),
    gradient=_mixer_gradient(2), rule=_channels)  # fmt: skip
def causal_conv(call: Call, x: Array, weight: Array, *more: Array) -> Array:
    """Depthwise convolution over time, ``(B, L, C)`` with ``(C, K)``; a bias and the last ``K`` inputs may follow.

    A vector is the bias; the inputs before the first one are the state, or zeros.
    """
    batch, length, channels = x.shape[0], x.shape[-2], x.shape[-1]
    taps = weight.shape[-1]
    held = next((each.swapaxes(1, 2) for each in more if each.ndim == 3), np.zeros((batch, 0, channels)))
    before = np.concatenate([np.zeros((batch, taps, channels)), held], axis=1)[:, 1 - taps or None :][:, : taps - 1]
    seen = np.concatenate([before, x], axis=1)
    out = sum((seen[:, at : at + length] * weight[:, at] for at in range(taps)), np.zeros(x.shape))
    return reduce(np.add, (each for each in more if each.ndim == 1), out)


@op("linear_recurrence", "... c, * -> ... c", "pointwise", formula=per_element(LRU_FLOPS),
    gradient=_mixer_gradient(3), rule=_channels)  # fmt: skip
def linear_recurrence(call: Call, x: Array, *more: Array) -> Array:
    """The real-gated linear recurrence on inputs, two gates, the decay and a state, channel by channel.

    ``h = a h + sqrt(1 - a^2) x`` with ``a`` from the other operands (Griffin, arXiv 2402.19427, section 2.4).
    """
    gates = [each for each in more if each.shape == x.shape or each.ndim == 1]
    decay = sigmoid(reduce(np.add, gates, np.zeros(x.shape)))
    h = next((each for each in more if each.ndim == 2), np.zeros((len(x), x.shape[-1])))
    out = []
    for at in range(x.shape[1]):
        h = decay[:, at] * h + np.sqrt(1 - decay[:, at] ** 2) * x[:, at]
        out.append(h)
    return np.stack(out, axis=1)


# --- scans ------------------------------------------------------------------------------------------------------------


@op("selective_scan", "b t d, b t d, d n, b t n, b t n, [d], [b d n] -> b t d", "pointwise",
    formula=lambda b, t, d, n: Work(vector=SELECTIVE_SCAN_FLOPS * b * t * d * n + 2 * b * t * d),
    gradient=_mixer_gradient(3))  # fmt: skip
def selective_scan(call: Call, x: Array, dt: Array, a: Array, b: Array, c: Array, *more: Array) -> Array:
    """Mamba's scan of inputs, steps, A, B, C, the skip D and a state; the skip is two operations per channel.

    ``h = exp(-|dt A|) h + dt B x``, ``y = C h + D x`` (Mamba, arXiv 2312.00752, algorithm 2).
    """
    skip = next((each for each in more if each.ndim == 1), np.zeros(x.shape[-1]))
    h = next((each for each in more if each.ndim == 3), np.zeros((len(x), *a.shape)))
    out = []
    for at in range(x.shape[1]):
        step = dt[:, at, :, None]
        h = np.exp(-np.abs(step * a)) * h + step * b[:, at, None, :] * x[:, at, :, None]
        out.append((h * c[:, at, None, :]).sum(axis=-1) + skip * x[:, at])
    return np.stack(out, axis=1)


def _by_head(x: Array, heads: int) -> Array:
    return np.repeat(x, heads // x.shape[2], axis=2)


def _decays(more: tuple[Array, ...], like: tuple[int, ...]) -> Array:
    """Return factors between 0 and 1 from operands with a number for each position and head, or for each head."""
    fitting = [each.reshape(*each.shape, *(1,) * (4 - each.ndim)) for each in more if each.shape == like[:3]]
    vectors = [each.reshape(1, 1, -1, 1) for each in more if each.shape == like[2:3]]
    total = reduce(np.add, (*fitting, *vectors), np.zeros((*like[:3], 1)))
    return np.exp(-np.abs(total))


def _per_head(site: Site) -> None:
    """Find the heads in what follows queries, keys and values: numbers per head or per position and head, a state."""
    heads = site.axes["h"]
    for other in site.inputs[3:]:
        state = len(other) == 4 and other[1].size == heads.size
        state = state and (site.op == "ssd_scan" or other[2].size != heads.size)
        at = 0 if len(other) == 1 else 1 if state else 2
        if len(other) > at and other[at].size == heads.size:
            unify(heads, other[at], site.name)


_HEADS: dict[str, Any] = {"nouns": {"h": "heads", "g": "groups"}, "gradient": _mixer_gradient(3), "rule": _per_head}


def _ssd_work(
    b: Any, t: Any, h: Any, p: Any, g: Any, n: Any, chunk: int = 256, recurrent: bool = False
) -> Work:  # fmt: skip
    """Count chunks of ``Q`` positions (arXiv 2405.21060, section 6).

    ``C B^T`` by group, its product with ``X``, the state that each chunk adds and the output that the state before it
    gives.
    """
    if recurrent:
        return Work(vector=RECURRENCE_FLOPS * b * t * h * p * n)
    q = minimum(t, chunk)
    return Work(flops=MAC * b * t * (q * g * n + q * h * p + 2 * h * p * n), vector=DECAY_FLOPS * b * t * q * h)


@op("ssd_scan", "b t h=(g r) p, b t g n, b t g n, * -> b t h p", "pointwise", formula=_ssd_work, **_HEADS)
def ssd_scan(call: Call, x: Array, b: Array, c: Array, *more: Array) -> Array:
    """Mamba-2's scan of ``X (B, L, H, P)``, ``B`` and ``C (B, L, G, N)``; steps, decays, skip and state may follow.

    ``h = a h + x B``, ``y = h C`` (Mamba-2, arXiv 2405.21060, equation 1).
    """
    heads = x.shape[2]
    b, c, decay = _by_head(b, heads), _by_head(c, heads), _decays(more, x.shape)
    size = (len(x), heads, x.shape[-1], b.shape[-1])
    h = next((each for each in more if each.shape == size), np.zeros(size))
    out = []
    for at in range(x.shape[1]):
        h = decay[:, at, :, :, None] * h + x[:, at, :, :, None] * b[:, at, :, None, :]
        out.append((h * c[:, at, :, None, :]).sum(axis=-1))
    return np.stack(out, axis=1)


def _delta_work(b: Any, t: Any, g: Any, d: Any, e: Any, chunk: int = 64, recurrent: bool = False) -> Work:
    """Count chunks of ``C`` positions (arXiv 2412.06464, section 3.3; arXiv 2406.06484, section 3.2).

    ``K K^T`` and ``Q K^T``, the inverse of a triangle, its products with keys and values, and three products with the
    state.
    """
    if recurrent:  # beside decay, update and output, the value that the state already holds for the key
        return Work(vector=(RECURRENCE_FLOPS + 2) * b * t * g * d * e)
    q = minimum(t, chunk)
    products = q * (3 * d + 2 * e) + q * q * Fraction(1, 3) + 3 * d * e
    return Work(flops=MAC * b * t * g * products, vector=DECAY_FLOPS * b * t * q * g)


@op("delta_scan", "b t g d, b t g d, b t h=(g r) e, * -> b t h e", "pointwise", formula=_delta_work, **_HEADS)
def delta_scan(call: Call, q: Array, k: Array, v: Array, *more: Array) -> Array:
    """The gated delta rule on ``Q``, ``K (B, L, H, D)`` and ``V (B, L, H, E)``; decays, strengths and state may follow.

    ``S = a S (1 - k k^T) + v k^T``, ``y = S q`` with keys of length 1 (arXiv 2412.06464, equation 10).
    """
    heads = v.shape[2]
    q, k, decay = _by_head(q, heads), _by_head(k, heads), _decays(more, v.shape)
    k = k / np.sqrt((k * k).sum(axis=-1, keepdims=True) + 1e-6)
    size = (len(v), heads, v.shape[-1], k.shape[-1])
    s = next((each.reshape(size) for each in more if each.ndim == 4 and each.size == np.prod(size)), np.zeros(size))
    out = []
    for at in range(v.shape[1]):
        key = k[:, at, :, None, :]
        held = (s * key).sum(axis=-1, keepdims=True)
        s = decay[:, at, :, :, None] * (s - held * key) + v[:, at, :, :, None] * key
        out.append((s * q[:, at, :, None, :]).sum(axis=-1))
    return np.stack(out, axis=1)


def _kept_state(site: Site) -> None:
    """Read a state ``(B, C, ...)`` that is kept of what was written for ``(B, L, C, ...)``."""
    state, written = site.inputs[:2]
    if len(state) > 1 and len(written) > 2 and state[1].size == written[2].size:
        unify(state[1], written[2], site.name)


declare(Op(
    "state_update", "..., * -> ...", "move",
    "Write a state that a scan or convolution has just worked out back in place: no operand is read for it.",
    lambda shapes: Work(reads=dict.fromkeys(range(len(shapes)), 0), writes=prod(shapes[0])), updated, alias=0,
    rule=_kept_state,
))  # fmt: skip
