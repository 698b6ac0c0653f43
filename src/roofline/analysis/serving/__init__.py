"""Language models at work: the cache of keys and values, whole requests, and the most that fits."""

from __future__ import annotations

from roofline.analysis.serving.kvcache import CachePart, KVCache, kv_cache
from roofline.analysis.serving.limits import Largest, largest_concurrency, largest_context
from roofline.analysis.serving.requests import Request, request

__all__ = [
    "CachePart", "KVCache", "Largest", "Request", "kv_cache", "largest_concurrency", "largest_context", "request",
]  # fmt: skip
