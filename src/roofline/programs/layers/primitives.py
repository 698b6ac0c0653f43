"""The smallest pieces: projections, norms, attention as its parts, rotary embedding, activations, dropout, the loss.

Each adds nodes to a ``Builder`` the way an eager framework launches kernels: one node per kernel, reshapes and splits
free. What a compiler merges is merged later, by the passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from roofline.ir.sizes import Size, prod
from roofline.ops.builder import Builder


def weights(b: Builder, name: str, shape: Sequence[Size], bias: bool, dtype: str | None = None) -> list[str]:
    """A weight, whose first axis is what comes out, and a bias as long where there is one."""
    weight = b.weight(f"{name}.weight", tuple(shape), dtype or None)
    return [weight, b.weight(f"{name}.bias", tuple(shape[:1]))] if bias else [weight]


def linear(b: Builder, x: str, out: Size, name: str, bias: bool = False, dtype: str | None = None) -> str:
    """A linear layer with its own weight (and bias)."""
    return b.op("linear", x, *weights(b, name, (out, b.shape(x)[-1]), bias, dtype), name=name)


def norm(b: Builder, x: str, kind: str, name: str, bias: bool = True, scale: bool = True) -> str:
    """``rmsnorm`` or ``layernorm`` along the last axis, with its scale (and for layernorm its shift)."""
    shifted = kind == "layernorm" and bias
    return b.op(kind, x, *(weights(b, name, b.shape(x)[-1:], shifted) if scale else ()), name=name)


def embed(b: Builder, table: str, ids: str, name: str) -> str:
    """Rows of a table by token or position."""
    return b.op("embedding", table, ids, name=name)


def part(b: Builder, x: str, width: Size, name: str) -> str:
    """The first, or some other, ``width`` columns of a tensor: a view."""
    return b.op("slice", x, name=name, shape=(*b.shape(x)[:-1], width))


def split_heads(b: Builder, x: str, heads: int, name: str) -> str:
    """``(B, S, heads * d)`` seen as ``(B, heads, S, d)``."""
    batch, length, width = b.shape(x)
    return b.op("view", x, name=name, shape=(batch, heads, length, width // heads))


def merge_heads(b: Builder, x: str, name: str = "merge") -> str:
    """``(B, heads, S, d)`` seen as ``(B, S, heads * d)``."""
    batch, heads, length, width = b.shape(x)
    return b.op("view", x, name=name, shape=(batch, length, heads * width))


def rope(b: Builder, x: str, cos: str, sin: str, name: str) -> str:
    """Rotary embedding in plain ops, ``x * cos + cat(-x2, x1) * sin``: five kernels.

    Where the table is narrower than a head, its first columns are rotated and joined with the others again.
    """
    width, turned = b.shape(x)[-1], b.shape(cos)[-1]
    if width == turned:
        return _rotate(b, x, cos, sin, name)
    with b.scope(f"{name}_part"):
        front, rest = part(b, x, turned, "front"), part(b, x, width - turned, "rest")
        return b.op("cat", _rotate(b, front, cos, sin, name), rest, name="whole")


def _rotate(b: Builder, x: str, cos: str, sin: str, name: str) -> str:
    half = b.shape(x)[-1] // 2
    with b.scope(name):
        straight = b.op("mul", x, cos, name="x_cos")
        negated = b.op("neg", part(b, x, half, "x2"), name="neg_x2")
        turned = b.op("cat", negated, part(b, x, half, "x1"), name="turned")
        return b.op("add", straight, b.op("mul", turned, sin, name="turned_sin"), name="out")


def attention(
    b: Builder,
    q: str,
    k: str,
    v: str,
    *,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    bias: str | None = None,
    sinks: str | None = None,
    dropout: bool = False,
    scale: float | None = None,
    eager: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Scores, softmax and values as one kernel, the way flash attention and SDPA run them.

    Args:
        b: The builder.
        q: Queries ``(B, heads, Q, d)``.
        k: Keys ``(B, kv_heads, K, d)``.
        v: Values ``(B, kv_heads, K, e)``.
        causal: Whether query ``i`` sees only keys up to its own.
        window: Keys that a query sees at most, 0 for all.
        softcap: Bound of the scores by ``cap * tanh(x / cap)``, 0 for none.
        bias: Tensor added to the scores.
        sinks: One learned logit a head that joins the softmax.
        dropout: Whether some of the probabilities are dropped, which the kernel draws itself.
        scale: What scores are multiplied by, where it is known.
        eager: What decides which kernels a framework runs for it, as options of the scores.
    """
    seen: dict[str, Any] = {"causal": causal, "window": window}
    with b.kernel("sdpa"):
        scores = b.op("attention_scores", q, k, name="scores", **seen, **eager)
        scores = _adjust(b, scores, softcap, bias)
        scaled = seen if scale is None else {**seen, "scale": scale}
        probabilities = b.op("attention_softmax", scores, *([sinks] if sinks else []), name="softmax", **scaled)
        if dropout:
            probabilities = dropped(b, probabilities, "dropout")
        return b.op("attention_values", probabilities, v, name="values", **seen)


def naive_attention(
    b: Builder,
    q: str,
    k: str,
    v: str,
    *,
    mask: str | None = None,
    softcap: float = 0.0,
    bias: str | None = None,
    sinks: str | None = None,
    dropout: bool = False,
) -> str:
    """``softmax(q k^T * scale [masked]) v``, each step its own kernel on the full matrix of scores."""
    scores = b.op("attention_scores", q, k, name="scores", causal=False)
    scores = b.op("mul_scalar", scores, name="scale")
    scores = _adjust(b, scores, softcap, bias)
    if mask:
        scores = b.op("mask", scores, mask, name="masked")
    probabilities = b.op("attention_softmax", scores, *([sinks] if sinks else []), name="softmax", causal=False)
    if dropout:
        probabilities = drop(b, probabilities, "dropout")
    return b.op("attention_values", probabilities, v, name="values", causal=False)


def drop(b: Builder, x: str, name: str) -> str:
    """Dropout as one kernel, which also writes the mask that its backward reads."""
    with b.kernel(name):
        return dropped(b, x, name)


def dropped(b: Builder, x: str, name: str) -> str:
    """Dropout inside the kernel that is open."""
    mask = b.op("bernoulli", name=f"{name}_mask", dtype="bool", shape=b.shape(x))
    return b.op("dropout", x, mask, name=f"{name}_kept")


def cross_entropy(b: Builder, logits: str) -> str:
    """The mean loss of rows of logits against labels, in fp32, as PyTorch runs it: a log-softmax, then the loss."""
    *lead, classes = b.shape(logits)
    rows: Size = prod(lead)
    labels = b.input("labels", (rows,), "int64")
    x = b.op("view", logits, name="logit_rows", shape=(rows, classes))
    if b.tensor(x).dtype != "fp32":
        x = b.op("cast", x, name="logits_fp32", dtype="fp32", keeps="fp32")
    x = b.op("softmax", x, name="log_softmax", dtype="fp32", keeps="fp32")
    with b.kernel("nll"):
        picked = b.op("take", x, labels, name="picked", dtype="fp32", keeps="fp32", shape=(rows,))
        return b.op("mean", picked, name="loss", dtype="fp32", keeps="fp32")


def _adjust(b: Builder, scores: str, softcap: float, bias: str | None) -> str:
    if softcap:
        scores = b.op("softcap", scores, name="softcap")
    return b.op("add", scores, bias, name="biased") if bias else scores


def _clamped_swiglu(b: Builder, gate: str, up: str) -> str:
    """gpt-oss: ``(clamp(up) + 1) * g * sigmoid(1.702 g)`` with ``g = clamp(gate)``."""
    g = b.op("clamp", gate, name="clamp_gate")
    u = b.op("clamp", up, name="clamp_up")
    s = b.op("sigmoid", b.op("mul_scalar", g, name="scaled"), name="sigmoid")
    return b.op("mul", b.op("add_scalar", u, name="up_plus_1"), b.op("mul", g, s, name="glu"), name="gated")


def activate(b: Builder, x: str, activation: str) -> str:
    """An activation: one kernel, the two of ``relu(x)^2``, or the eight that transformers' NewGELUActivation (GPT-2)
    writes out in eager mode. xIELU has two learned scalars.
    """
    if activation == "xielu":
        return b.op("xielu", x, b.weight("xielu.alpha_p", (1,)), b.weight("xielu.alpha_n", (1,)), name="xielu")
    if activation == "relu2":
        return b.op("square", b.op("relu", x, name="relu"), name="relu2")
    if activation != "gelu_new":
        return b.op(activation, x, name=activation)
    with b.scope("gelu_new"):
        cube = b.op("mul_scalar", b.op("pow", x, name="cube"), name="scaled_cube")
        inner = b.op("mul_scalar", b.op("add", x, cube, name="inner"), name="scaled_inner")
        outer = b.op("add_scalar", b.op("tanh", inner), name="outer")
        return b.op("mul", b.op("mul_scalar", x, name="half"), outer, name="out")


def gated(b: Builder, gate: str, up: str, activation: str) -> str:
    """``activation(gate) * up``: two kernels in eager mode."""
    if activation == "clamped_swiglu":
        return _clamped_swiglu(b, gate, up)
    return b.op("mul", activate(b, gate, activation), up, name="gated")


def expert_linear(
    b: Builder, x: str, experts: int, out: Size, name: str, top_k: int, bias: bool, dtype: str | None
) -> str:
    """A linear layer of which every row takes the weight of the expert it is sent to."""
    stored = [b.weight(f"{name}.weight", (experts, out, b.shape(x)[-1]), dtype or None)]
    if bias:
        stored.append(b.weight(f"{name}.bias", (experts, out)))
    return b.op("expert_linear", x, *stored, name=name, top_k=top_k)
