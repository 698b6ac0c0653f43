"""The fast path of PyTorch's own transformer layers in inference, as the operators that it runs.

``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` call one operator where nothing learns. What that runs is
in aten/src/ATen/native/transformers/attention.cpp (``native_multi_head_attention``) and transformer.cpp
(``transformer_encoder_layer_forward``) of github.com/pytorch/pytorch: bias and activation are part of matmuls,
residuals are added in place, and attention is scaled-dot-product attention unless its weights are asked for or a mask
is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from roofline.frontends.torch.custom import linear, sdpa


def attention(
    query: Any, key: Any, value: Any, width: int, heads: int, qkv_weight: Any, qkv_bias: Any, out_weight: Any,
    out_bias: Any, mask: Any = None, need_weights: bool = True, average: bool = True, mask_type: int | None = None,
) -> Any:  # fmt: skip
    """``torch._native_multi_head_attention`` on queries, keys and values that are one tensor."""
    batch, length, _ = query.shape
    if mask is None and not need_weights and width // heads % 8 == 0:
        joined = linear(query, qkv_weight, qkv_bias).chunk(3, -1)
        q, k, v = (part.view(batch, length, heads, width // heads).transpose(1, 2) for part in joined)
        seen = sdpa(q, k, v).transpose(1, 2).reshape(batch, length, width)
        return linear(seen, out_weight, out_bias), None
    q, k, v = _projected(linear(query, qkv_weight), qkv_bias, heads)
    weights = torch.softmax(_masked(q @ k.transpose(-2, -1), mask, mask_type), -1)
    seen = (weights @ v).transpose(1, 2).reshape(batch, length, width)
    if need_weights and average:
        weights = weights.sum(1).div_(heads)
    return linear(seen, out_weight, out_bias), weights if need_weights else None


def _projected(qkv: Any, bias: Any, heads: int) -> Any:
    """``_transform_bias_rescale_qkv``: one kernel adds the bias and lays queries, keys and values out by head."""
    batch, length, joined = qkv.shape
    parts = qkv.view(batch, length, 3, heads, joined // 3 // heads).permute(2, 0, 3, 1, 4)
    laid = torch.empty(parts.shape, dtype=qkv.dtype, device=qkv.device)
    return torch.add(parts, bias.view(3, 1, heads, 1, -1), out=laid).unbind(0)


def _masked(scores: Any, mask: Any, kind: int | None) -> Any:
    if mask is None:
        return scores
    hidden = mask.to(torch.bool)
    return scores.masked_fill(hidden[:, None, None] if kind == 1 else hidden, float("-inf"))


def encoder_layer(
    src: Any, width: int, heads: int, qkv_weight: Any, qkv_bias: Any, out_weight: Any, out_bias: Any, use_gelu: bool,
    norm_first: bool, eps: float, scale_1: Any, shift_1: Any, scale_2: Any, shift_2: Any, up_weight: Any, up_bias: Any,
    down_weight: Any, down_bias: Any, mask: Any = None, mask_type: int | None = None,
) -> Any:  # fmt: skip
    """``torch._transformer_encoder_layer_fwd``."""

    def norm(x: Any, scale: Any, shift: Any, is_here: bool) -> Any:
        return functional.layer_norm(x, (width,), scale, shift, eps) if is_here else x

    x = norm(src, scale_1, shift_1, norm_first)
    x, _ = attention(x, x, x, width, heads, qkv_weight, qkv_bias, out_weight, out_bias, mask, False, True, mask_type)
    before = norm(x.add_(src), scale_1, shift_1, not norm_first)
    x = norm(before, scale_2, shift_2, norm_first)
    rows = torch.ops.aten._addmm_activation(up_bias, x.reshape(-1, width), up_weight.t(), use_gelu=use_gelu)
    x = linear(rows.view(*x.shape[:-1], -1), down_weight, down_bias)
    return norm(x.add_(before), scale_2, shift_2, not norm_first)


def _never(*args: Any) -> bool:
    """Answer no, and forget what was asked: a mock would keep it alive."""
    return False


#: The operators of these layers. A mask of padding makes an encoder pack its rows where they are left-aligned, which
#: depends on values: here they stay as they are.
LAYERS: dict[Any, Callable[..., Any]] = {
    torch._native_multi_head_attention: attention,
    torch._transformer_encoder_layer_fwd: encoder_layer,
    torch._nested_tensor_from_mask_left_aligned: _never,
}


@contextmanager
def fast_path() -> Iterator[None]:
    """Let those layers take it as they do on a GPU: on tensors without data, and under a mode that redirects calls."""
    with ExitStack() as stack:
        backend = torch.utils.backend_registration
        stack.enter_context(mock.patch.object(torch.overrides, "has_torch_function", _never))
        stack.enter_context(mock.patch.object(backend, "_privateuse1_backend_name", "meta"))
        yield
