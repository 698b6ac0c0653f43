"""Attention as one operator: that of the standard, and the fused ones of ONNX Runtime."""

from __future__ import annotations

from typing import Any

from roofline.frontends import emit
from roofline.frontends.onnx.walk import Call, Result, Rule
from roofline.ir.errors import ShapeError
from roofline.ir.sizes import quotient


def heads(call: Call, x: str, count: Any, part: str) -> str:
    """Return ``(B, S, heads * d)`` as ``(B, heads, S, d)``; four axes are that already."""
    shape = call.b.shape(x)
    if len(shape) == 4:
        return x
    batch, length, width = shape
    each = quotient(width, count) if count else None
    if each is None:
        raise ShapeError(f"{call.name}: a width of {width} for {count} heads")
    return call.view(x, (batch, count, length, each), part)


def merged(call: Call, x: str) -> str:
    """Return ``(B, heads, S, d)`` as ``(B, S, heads * d)``."""
    batch, count, length, width = call.b.shape(x)
    return call.view(x, (batch, length, count * width), "merged")


def extended(call: Call, new: str, past: int, part: str) -> str:
    """Return new keys or values behind those of the cache."""
    if not call.has(past) or call.shape(past)[-2] == 0:
        return new
    return call.op("cat", call.tensor(past), new, axis=-2, name=call.label(part))


def attend(call: Call, q: str, k: str, v: str, causal: bool, bias: int = -1) -> str:
    """Add one kernel; a mask or a bias is added to the scores."""
    added = call.tensor(bias) if bias >= 0 and call.has(bias) and call.value(bias).dtype != "bool" else None
    if added and (wide := (*call.shape(bias)[:-1], call.b.shape(k)[-2])) != call.shape(bias):
        added = call.rearrange(wide, added, part="mask") if call.shape(bias)[-1] != 1 else added
    with call.b.scope(call.name):
        return emit.attention(call.b, q, k, v, causal=causal, bias=added, softcap=float(call.attr("softcap", 0.0)))


def _standard(call: Call) -> Result:
    """ai.onnx Attention: Q, K, V, mask, past key, past value."""
    flat = len(call.shape(0)) == 3
    queries, groups = call.attr("q_num_heads", 0), call.attr("kv_num_heads", 0)
    q, k, v = (heads(call, call.tensor(at), count, "qkv"[at]) for at, count in enumerate((queries, groups, groups)))
    k, v = extended(call, k, 4, "keys"), extended(call, v, 5, "values")
    out = attend(call, q, k, v, bool(call.attr("is_causal", 0)), 3)
    scores = (*call.b.shape(q)[:-1], call.b.shape(k)[-2])
    return [
        merged(call, out) if flat else out,
        k,
        v,
        call.rearrange(scores, q, k, part="scores") if call.is_read(3) else None,
    ]


def _packed(call: Call) -> Result:
    """com.microsoft Attention: one weight for queries, keys and values."""
    width = call.shape(1)[-1]
    count = call.number("num_heads")
    parts = call.attr("qkv_hidden_sizes") or [quotient(width, 3)] * 3
    bias = call.maybe(2)
    x = emit.matmul(call.b, call.tensor(0), call.tensor(1), bias, call.label("qkv"))
    rows = call.b.shape(x)[:-1]
    q, k, v = (heads(call, call.part(x, (*rows, size), part), count, part)
               for size, part in zip(parts, "qkv", strict=True))  # fmt: skip
    present = None
    if call.has(4):
        batch, length = rows[0], call.shape(4)[3]
        past = [call.part(call.tensor(4), (1, batch, count, length, call.b.shape(x)[-1]), "past") for x in (k, v)]
        k, v = (call.op("cat", call.view(old, call.b.shape(old)[1:]), new, axis=-2, name=f"{call.name}.cache")
                for old, new in zip(past, (k, v), strict=True))  # fmt: skip
    if call.is_read(1):
        both = [call.view(each, (1, *call.b.shape(each)), "kept") for each in (k, v)]
        present = call.op("cat", *both, axis=0, name=f"{call.name}.present")
    out = attend(call, q, k, v, bool(call.attr("unidirectional", 0)), 5)
    return [merged(call, out), present]


def _multi_head(call: Call) -> Result:
    """com.microsoft MultiHeadAttention: query, key, value, bias, key mask, attention bias, past key, past value."""
    count = call.number("num_heads")
    q, k, v = _three(call, count)
    k, v = extended(call, k, 6, "keys"), extended(call, v, 7, "values")
    out = attend(call, q, k, v, bool(call.attr("unidirectional", 0)), 5)
    return [merged(call, out), k, v]


def _three(call: Call, count: int) -> list[str]:
    """Return queries, keys and values, given apart or packed into one operand; a bias is added first."""
    x = call.tensor(0)
    shape = call.b.shape(x)
    if len(shape) == 5:  # (B, S, heads, 3, d)
        batch, length, _, _, width = shape
        parts = [call.part(x, (batch, length, count, 1, width), part) for part in "qkv"]
        return [call.view(part, (batch, count, length, width), "heads") for part in parts]
    names = call.tensors(0, 1, 2)
    if len(names) == 2 and len(call.shape(1)) == 5:  # keys and values packed: (B, L, heads, 2, d)
        batch, length, _, _, width = call.shape(1)
        both = [call.part(names[1], (batch, length, count, 1, width), part) for part in "kv"]
        names = [names[0], *(call.view(part, (batch, count, length, width), "heads") for part in both)]
    if call.has(3):
        names = [_plus(call, each, part) for each, part in zip(names, "qkv", strict=True)]
    return [heads(call, each, count, part) for each, part in zip(names, "qkv", strict=True)]


def _plus(call: Call, x: str, part: str) -> str:
    shape = call.b.shape(x)
    if len(shape) != 3:
        return x
    bias = call.part(call.tensor(3), (shape[-1],), f"{part}_bias")
    return call.op("add", x, bias, name=f"{call.name}.{part}_biased")


def _grouped(call: Call) -> Result:
    """com.microsoft GroupQueryAttention: causal, with its own cache and, if told, rotary embedding."""
    count, groups = call.number("num_heads"), call.number("kv_num_heads")
    if call.has(1):
        names = call.tensors(0, 1, 2)
    else:
        batch, length, width = call.shape(0)
        each = quotient(width, count + 2 * groups)
        if each is None:
            raise ShapeError(f"{call.name}: a width of {width} for {count} + 2 x {groups} heads")
        sizes = (count * each, groups * each, groups * each)
        names = [
            call.part(call.tensor(0), (batch, length, size), part) for size, part in zip(sizes, "qkv", strict=True)
        ]
    q, k, v = (heads(call, x, n, part) for x, n, part in zip(names, (count, groups, groups), "qkv", strict=True))
    if call.attr("do_rotary", 0):
        q, k = (
            call.op("elementwise", x, flops=ROTARY, name=f"{call.name}.rope_{part}") for x, part in ((q, "q"), (k, "k"))
        )
    keys, values = (_cached(call, new, at, part) for new, at, part in ((k, 3, "keys"), (v, 4, "values")))
    return [merged(call, attend(call, q, keys, values, True)), keys, values]


def _cached(call: Call, new: str, past: int, part: str) -> str:
    """Return keys or values with the cache; one that is as long before as after is written in place."""
    if not call.has(past):
        return new
    present = call.outputs[past - 2] if past - 2 < len(call.outputs) else ""
    if call.walk.file.alike(call.value(past).name, present):
        return call.op("cache_update", call.tensor(past), new, name=f"{call.name}.{part}")
    return extended(call, new, past, part)


#: Two multiplications and an addition per element.
ROTARY = 3


RULES: dict[str, Rule] = {
    "Attention": _standard, "com.microsoft.Attention": _packed, "com.microsoft.MultiHeadAttention": _multi_head,
    "com.microsoft.DecoderMaskedMultiHeadAttention": _multi_head, "com.microsoft.GroupQueryAttention": _grouped,
    # Angles are looked up on the way.
    **dict.fromkeys(("RotaryEmbedding", "com.microsoft.RotaryEmbedding"),
                    lambda call: call.op("elementwise", call.tensor(), flops=ROTARY)),
}  # fmt: skip
