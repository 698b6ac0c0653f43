"""Attention as one kernel, forwards and backwards."""

from __future__ import annotations

from typing import Any

from roofline.frontends import emit
from roofline.frontends.call import with_options
from roofline.frontends.torch import forms
from roofline.frontends.torch.walk import Call, Result, Row, rows
from roofline.ir.sizes import Size, minimum, prod
from roofline.programs.layers import primitives


def _seen(call: Call) -> tuple[str, str]:
    """Return keys and values that a query may see.

    PyTorch's causal mask lets query ``i`` see the first ``i + 1`` of them;
    roofline's lets the last query see the last key; of as many keys as there are queries the two are the same.
    """
    k, v = call.tensor("k"), call.tensor("v")
    queries, keys = call.shape("q")[-2], call.shape("k")[-2]
    if not call.get("causal", False) or queries == keys:
        return k, v
    seen = minimum(queries, keys)
    first, second = (
        call.b.op("slice", name, name="seen", shape=(*call.b.shape(name)[:-2], seen, call.b.shape(name)[-1]))
        for name in (k, v)
    )
    return first, second


def _eager(call: Call) -> dict[str, Any]:
    """Return what decides which kernels PyTorch runs, as options of the scores; those of plain attention are none."""
    words, dropped = str(call.get("how", "")).split(), call.get("dropout", 0.0)
    mask = call.value("mask")
    options = {
        "unfused": "unfused" in words, "apart": tuple(word for word in words if word in "qkv"), "kept": "kept" in words,
        "dropped": dropped, "mask_rank": 0 if mask is None or len(mask.shape) in (2, 4) else len(mask.shape),
    }  # fmt: skip
    return {key: value for key, value in options.items() if value}


def _sdpa(call: Call) -> Result:
    return emit.attention(
        call.b, call.tensor("q"), *_seen(call), causal=call.get("causal", False), bias=call.maybe("mask"),
        dropout=bool(call.get("dropout", 0.0)), eager=_eager(call), **_scale(call),
    )  # fmt: skip


def _scale(call: Call) -> dict[str, Any]:
    """Return what scores are multiplied by: one over the root of the width by default, as PyTorch's SDPA says."""
    width = call.shape("q")[-1]
    scale = call.get("scale", width**-0.5 if isinstance(width, int) else None)
    return {"scale": float(scale)} if isinstance(scale, int | float) else {}


def _sdpa_backward(call: Call) -> Result:
    """Five matmuls, as flash attention does it: the scores once more, then the four gradients (arXiv 2205.14135)."""
    b = call.b
    grad, q, k, v = (emit.by_head(b, name) for name in (call.tensor("grad"), call.tensor("q"), *_seen(call)))
    seen = {"causal": call.get("causal", False)}
    groups = b.shape(k)[1]
    with b.kernel("sdpa_backward"):
        scores = b.op("attention_scores", q, k, name="scores", **seen, **_eager(call))
        if (mask := call.maybe("mask")) is not None:
            scores = b.op("add", scores, mask, name="biased")
        weights = b.op("attention_softmax", scores, name="softmax", **seen, **_scale(call))
        if call.get("dropout"):
            weights = primitives.dropped(b, weights, "dropout")
        inner = b.op("attention_scores", grad, v, name="grad_weights", **seen)
        back = b.op("attention_softmax_grad", inner, weights, name="grad_scores", **seen, **_scale(call))
        results = (
            b.op("attention_values", back, k, name="grad_q", **seen),
            b.op("attention_keys_grad", back, q, name="grad_k", g=groups, **seen),
            b.op("attention_keys_grad", weights, grad, name="grad_v", g=groups, **seen),
        )
        shapes = [call.shape(key) for key in "qkv"]
        return tuple(_whole(call, name, shape) for name, shape in zip(results, shapes, strict=True))


def _heads_first(call: Call, key: str, starts: str) -> str:
    """Return ``(batch, length, heads, width)`` with the heads first; packed sequences count as equally long ones."""
    name, shape = call.tensor(key), call.shape(key)
    if len(shape) == 3:
        number: Any = call.shape(starts)[0] - 1 if call.value(starts) is not None else 1
        length = shape[0] // number
        name = call.part(name, (number * length, *shape[1:]), "whole")
        name = call.view(name, (number, length, *shape[1:]), "sequences")
    return call.permute(name, (0, 2, 1, 3))


@with_options
def _by_length(call: Call, causal: str, bias: str, starts: tuple[str, str]) -> Result:
    """Attention of kernels that store heads inside positions, on one batch or on packed sequences."""
    q, k, v = (_heads_first(call, key, starts[key != "query"]) for key in ("query", "key", "value"))
    window = call.get("window_size")
    masked = window[-1] == 0 if isinstance(window, tuple) else bool(call.get(causal, False))
    out = call.permute(emit.attention(call.b, q, k, v, causal=masked, bias=call.maybe(bias)), (0, 2, 1, 3))
    shape = call.out.shape
    rows = call.b.shape(out)
    same = prod(rows) == prod(shape)
    return call.view(out, shape) if same else call.b.op("rearrange", out, name="packed", shape=shape)


def _whole(call: Call, gradient: str, shape: tuple[Size, ...]) -> str:
    """Return a gradient in the shape of what it is of, zero for keys that no query sees."""
    if call.b.shape(gradient)[-2] == shape[-2]:
        return call.view(gradient, shape, "grad")
    return call.b.op("rearrange", gradient, name="grad", shape=shape)


ROWS: dict[str, Row] = {
    **rows("sdpa", _sdpa, forms.by_rule),
    **rows("_flash_attention_forward", _by_length("is_causal", "", ("cum_seq_q", "cum_seq_k")), forms.by_rule),
    **rows("_varlen_attn", _by_length("is_causal", "", ("cu_seq_q", "cu_seq_k")), forms.by_rule),
    **rows("_efficient_attention_forward", _by_length(
        "custom_mask_type", "bias", ("cu_seqlens_q", "cu_seqlens_k")), forms.by_rule),
    **rows("sdpa_backward", _sdpa_backward, forms.by_rule),
    **rows((f"_scaled_dot_product_{kind}" for kind in (
        "flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention",
        "fused_attention_overrideable")), lambda call: emit.attention(
            call.b, *(call.tensor(key) for key in ("query", "key", "value")), causal=call.get("is_causal", False),
            bias=call.maybe("attn_mask") or call.maybe("attn_bias")), forms.by_rule),
}  # fmt: skip
