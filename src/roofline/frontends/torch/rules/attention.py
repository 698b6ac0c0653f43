"""Attention as one kernel, forwards and backwards."""

from __future__ import annotations

from roofline.frontends import emit
from roofline.frontends.torch.lower import Result, Rule, Site
from roofline.ir.sizes import Size, minimum


def _sdpa(site: Site) -> Result:
    q, k, v = site.tensor("q"), *_seen(site)
    return emit.attention(site.b, q, k, v, causal=site.get("causal", False), bias=site.maybe("mask"))


def _seen(site: Site) -> tuple[str, str]:
    """Keys and values that a query may see: PyTorch's causal mask lets query ``i`` see the first ``i + 1`` of them.

    roofline's lets the last query see the last key; of as many keys as there are queries the two are the same.
    """
    k, v = site.tensor("k"), site.tensor("v")
    queries, keys = site.shape("q")[-2], site.shape("k")[-2]
    if not site.get("causal", False) or queries == keys:
        return k, v
    seen = minimum(queries, keys)
    first, second = (
        site.b.op("slice", name, name="seen", shape=(*site.b.shape(name)[:-2], seen, site.b.shape(name)[-1]))
        for name in (k, v)
    )
    return first, second


def _library(site: Site) -> Result:
    """A kernel that the program asks for by its own name."""
    q, k, v = (site.tensor(key) for key in ("query", "key", "value"))
    mask = site.maybe("attn_mask") or site.maybe("attn_bias")
    return emit.attention(site.b, q, k, v, causal=site.get("is_causal", False), bias=mask)


def _sdpa_backward(site: Site) -> Result:
    """Five products, as flash attention does it: the scores once more, then the four gradients (arXiv 2205.14135)."""
    b = site.b
    grad, q, k, v = (emit.by_head(b, name) for name in (site.tensor("grad"), site.tensor("q"), *_seen(site)))
    seen = {"causal": site.get("causal", False)}
    groups = b.shape(k)[1]
    with b.kernel("sdpa_backward"):
        scores = b.op("attention_scores", q, k, name="scores", **seen)
        if (mask := site.maybe("mask")) is not None:
            scores = b.op("add", scores, mask, name="biased")
        weights = b.op("attention_softmax", scores, name="softmax", **seen)
        inner = b.op("attention_scores", grad, v, name="grad_weights", **seen)
        back = b.op("attention_softmax_grad", inner, weights, name="grad_scores", **seen)
        results = (
            b.op("attention_values", back, k, name="grad_q", **seen),
            b.op("attention_keys_grad", back, q, name="grad_k", g=groups, **seen),
            b.op("attention_keys_grad", weights, grad, name="grad_v", g=groups, **seen),
        )
        shapes = [site.shape(key) for key in "qkv"]
        return tuple(_whole(site, name, shape) for name, shape in zip(results, shapes, strict=True))


def _whole(site: Site, gradient: str, shape: tuple[Size, ...]) -> str:
    """A gradient in the shape of what it is of, zero for keys that no query sees."""
    if site.b.shape(gradient)[-2] == shape[-2]:
        return emit.view(site.b, gradient, shape, "grad")
    return site.b.op("rearrange", gradient, name="grad", shape=shape)


RULES: dict[str, Rule] = {
    "sdpa": _sdpa,
    "sdpa_backward": _sdpa_backward,
    **dict.fromkeys(("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
                     "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
                     "_scaled_dot_product_fused_attention_overrideable"), _library),
}  # fmt: skip
