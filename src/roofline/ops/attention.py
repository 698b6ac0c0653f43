"""Attention as its parts: scores, softmax, values."""

from __future__ import annotations

from typing import Any

from roofline.ir.errors import ShapeError
from roofline.ir.sizes import minimum
from roofline.ir.units import MAC
from roofline.ops.registry import Work, op
from roofline.ops.rowwise import SOFTMAX_FLOPS, SOFTMAX_GRAD_FLOPS


def attended(q: Any, k: Any, causal: bool, window: int) -> Any:
    """Query-key pairs that a mask leaves, for ``q`` queries against the last of ``k`` keys.

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


def _grouped(h: Any, g: Any) -> dict[str, Any]:
    if isinstance(h, int) and isinstance(g, int) and h % g:
        raise ShapeError(f"has {h} query heads, which is no multiple of {g} key-value heads")
    return {}


@op("attention_scores", "b h q d, b g k d -> b h q k", "attention", derive=_grouped)
def attention_scores(b: Any, h: Any, g: Any, q: Any, k: Any, d: Any, causal: bool = False, window: int = 0) -> Work:
    """``Q K^T`` by query head; grouped key heads are read once each, and a window only reads its own keys."""
    return Work(flops=MAC * b * h * attended(q, k, causal, window) * d, reads=_keys_read(b, g, q, k, d, window))


@op("attention_softmax", "b h q k, [h] -> b h q k", "rowwise")
def attention_softmax(b: Any, h: Any, q: Any, k: Any, causal: bool = False, window: int = 0) -> Work:
    """Scaled softmax over the keys that the mask leaves, five operations each; ``[h]`` are learned sinks, free."""
    return Work(vector=SOFTMAX_FLOPS * b * h * attended(q, k, causal, window))


@op("attention_values", "b h q k, b g k d -> b h q d", "attention", derive=_grouped)
def attention_values(b: Any, h: Any, g: Any, q: Any, k: Any, d: Any, causal: bool = False, window: int = 0) -> Work:
    """Probabilities times values."""
    return Work(flops=MAC * b * h * attended(q, k, causal, window) * d, reads=_keys_read(b, g, q, k, d, window))


@op("attention_softmax_grad", "b h q k, b h q k -> b h q k", "rowwise")
def attention_softmax_grad(b: Any, h: Any, q: Any, k: Any, causal: bool = False, window: int = 0) -> Work:
    """Backward of the softmax over the keys that the mask leaves."""
    return Work(vector=SOFTMAX_GRAD_FLOPS * b * h * attended(q, k, causal, window))


@op("attention_keys_grad", "b h q k, b h q d -> b g k d", "attention", derive=lambda g: {"g": g})
def attention_keys_grad(b: Any, h: Any, q: Any, k: Any, d: Any, causal: bool = False, window: int = 0) -> Work:
    """``P^T X`` to ``g`` key-value heads: the gradient of keys (from the scores') or of values (from the output's)."""
    return Work(flops=MAC * b * h * attended(q, k, causal, window) * d)


def _keys_read(b: Any, g: Any, q: Any, k: Any, d: Any, window: int) -> dict[int, Any]:
    return {1: b * g * minimum(k, q + window - 1) * d} if window else {}
