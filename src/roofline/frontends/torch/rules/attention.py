"""Attention as one kernel, forwards and backwards."""

from __future__ import annotations

from roofline.frontends import emit
from roofline.frontends.torch import forms
from roofline.frontends.torch.walk import Call, Result, Row, rows
from roofline.ir.sizes import Size, minimum


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


def _sdpa_backward(call: Call) -> Result:
    """Five matmuls, as flash attention does it: the scores once more, then the four gradients (arXiv 2205.14135)."""
    b = call.b
    grad, q, k, v = (emit.by_head(b, name) for name in (call.tensor("grad"), call.tensor("q"), *_seen(call)))
    seen = {"causal": call.get("causal", False)}
    groups = b.shape(k)[1]
    with b.kernel("sdpa_backward"):
        scores = b.op("attention_scores", q, k, name="scores", **seen)
        if (mask := call.maybe("mask")) is not None:
            scores = b.op("add", scores, mask, name="biased")
        weights = b.op("attention_softmax", scores, name="softmax", **seen)
        inner = b.op("attention_scores", grad, v, name="grad_weights", **seen)
        back = b.op("attention_softmax_grad", inner, weights, name="grad_scores", **seen)
        results = (
            b.op("attention_values", back, k, name="grad_q", **seen),
            b.op("attention_keys_grad", back, q, name="grad_k", g=groups, **seen),
            b.op("attention_keys_grad", weights, grad, name="grad_v", g=groups, **seen),
        )
        shapes = [call.shape(key) for key in "qkv"]
        return tuple(_whole(call, name, shape) for name, shape in zip(results, shapes, strict=True))


def _whole(call: Call, gradient: str, shape: tuple[Size, ...]) -> str:
    """Return a gradient in the shape of what it is of, zero for keys that no query sees."""
    if call.b.shape(gradient)[-2] == shape[-2]:
        return call.view(gradient, shape, "grad")
    return call.b.op("rearrange", gradient, name="grad", shape=shape)


ROWS: dict[str, Row] = {
    **rows("sdpa", lambda call: emit.attention(
        call.b, call.tensor("q"), *_seen(call), causal=call.get("causal", False), bias=call.maybe("mask")),
        forms.by_rule),
    **rows("sdpa_backward", _sdpa_backward, forms.by_rule),
    **rows((f"_scaled_dot_product_{kind}" for kind in (
        "flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention",
        "fused_attention_overrideable")), lambda call: emit.attention(
            call.b, *(call.tensor(key) for key in ("query", "key", "value")), causal=call.get("is_causal", False),
            bias=call.maybe("attn_mask") or call.maybe("attn_bias")), forms.by_rule),
}  # fmt: skip
