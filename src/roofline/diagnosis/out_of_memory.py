"""A failed allocation turned around: its bytes are the product of some sizes, all but one of which are known."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from roofline.ir.dtypes import dtype as number_format
from roofline.ir.errors import UsageError
from roofline.ir.report import Report
from roofline.ir.sizes import python_number
from roofline.ir.units import PREFIXES, format_bytes, parse


@dataclass(frozen=True, slots=True)
class Buffer:
    """A row of the table: a tensor that is often the largest, and what to do when it does not fit.

    Attributes:
        what: Its name.
        known: Sizes that point to it, any of these words.
        missing: The size that is left over.
        power: How often that size is a factor.
        advice: What makes it smaller.
    """

    what: str
    known: frozenset[str]
    missing: str
    power: int
    advice: str


_CHUNKED = (
    "compute the loss in chunks of tokens or with a fused linear cross-entropy (liger-kernel, "
    "cut-cross-entropy), which never stores all logits, or see why the limit on tokens did not apply"
)
#: The first row counts of which a size is given.
BUFFERS: tuple[Buffer, ...] = (
    Buffer("logits (tokens x vocab)", frozenset({"vocab"}), "tokens", 1, _CHUNKED),
    Buffer("attention scores (batch x heads x length x length)", frozenset({"heads"}), "length", 2,
           "call scaled_dot_product_attention, whose kernel never stores the scores"),
    Buffer("KV cache (2 x layers x tokens x kv_heads x head_dim)", frozenset({"kv_heads"}), "tokens", 1,
           "limit the context, page the cache, or store it in 8 bits"),
    Buffer("images (batch x channels x height x width)", frozenset({"channels", "height"}), "batch", 1,
           "take smaller batches, a smaller format or smaller images"),
    Buffer("activations (tokens x width)", frozenset({"hidden", "width", "intermediate"}), "tokens", 1,
           "recompute activations (checkpointing), or take smaller micro-batches"),
)  # fmt: skip
_ANY = Buffer("a tensor", frozenset(), "elements", 1, "look for the tensor with a size of this order")

#: How frameworks say how much they asked for.
_ASKED = re.compile(
    r"(?:tried|trying|attempting|failed)\s+to\s+allocate\s+(?:memory\s+of\s+)?([\d.,]+)\s*([KMGTP]i?B|bytes|B)?", re.I
)
_UNITS = {f"{prefix}b".casefold(): scale for prefix, scale in PREFIXES.items() if scale >= 1} | {"bytes": 1.0}


@dataclass(frozen=True, slots=True)
class OutOfMemory(Report):
    """The answer of :func:`explain_oom`.

    Attributes:
        bytes: What was asked for.
        element: Bytes of an element.
        sizes: What was said to be known.
        what: The tensor that it would be.
        missing: The size that was not given, or ``copies`` where all were.
        value: That size.
        low: Least value that rounds to the message's figure.
        high: Most.
        advice: What to do about it.
    """

    schema = "out_of_memory"

    bytes: float
    element: float
    sizes: Mapping[str, float] = field(default_factory=dict)
    what: str = ""
    missing: str = ""
    value: float = 0.0
    low: float = 0.0
    high: float = 0.0
    advice: str = ""

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary: all fields, and the answer in a sentence."""
        return [{**asdict(self), "reading": str(self)}]

    def __str__(self) -> str:
        known = " x ".join(f"{name} {size:,.0f}" for name, size in self.sizes.items())
        over = f" over {known}" if known else ""
        value = f"{self.value:,.3g}" if self.value < 100 else f"{self.value:,.0f}"
        return (
            f"{format_bytes(self.bytes)}{over} at {self.element:g} bytes per element is {value} {self.missing}: "
            f"it would be {self.what}; {self.advice}"
        )


def explain_oom(message_or_bytes: str | float, dtype: str = "fp32", **sizes: float) -> OutOfMemory:
    """Turn a failed allocation into the size that caused it.

    Args:
        message_or_bytes: The error message (``Tried to allocate 58.15 GiB``), a size such as ``"58.15 GiB"``, or bytes.
        dtype: Number format of the tensor; losses often hold their logits in fp32.
        sizes: Sizes that are known, by name: ``vocab``, ``heads``, ``hidden``, ``batch``, ``channels``...

    Returns:
        The size that was not given, and what to do about it.

    Raises:
        UsageError: A message without the number of bytes, or a size that is not above zero.

    Example:
        >>> import roofline as rl
        >>> found = rl.diagnosis.explain_oom("CUDA out of memory. Tried to allocate 2.00 GiB.", vocab=32768)
        >>> found.missing, found.value
        ('tokens', 16384.0)
    """
    allocated, unsure = _allocation(message_or_bytes)
    element = float(number_format(dtype).bytes)
    sizes = {name: python_number(size) for name, size in sizes.items()}
    for name, size in sizes.items():
        if not isinstance(size, int | float) or not 0 < size < math.inf:
            raise UsageError(f"{name}={size!r}: a size above zero is wanted")
    buffer = next((row for row in BUFFERS if row.known & sizes.keys()), _ANY)
    missing, power = buffer.missing, buffer.power
    if missing in sizes:
        missing, power = "copies", 1
    over = element * math.prod(sizes.values()) * (2 if buffer.what.startswith("KV") else 1)
    figures = (allocated - unsure, allocated, allocated + unsure)
    low, value, high = ((max(size, 0.0) / over) ** (1 / power) for size in figures)
    return OutOfMemory(allocated, element, dict(sizes), buffer.what, missing, value, low, high, buffer.advice)


def _allocation(message: str | float) -> tuple[float, float]:
    """Return the bytes of a message, and half of the last digit that was written."""
    if isinstance(message, str) and (match := _ASKED.search(message)):
        figure, scale = match[1].rstrip(".,").replace(",", ""), _UNITS[(match[2] or "b").casefold()]
        try:
            size = float(figure) * scale
        except ValueError:
            raise UsageError(f"{match[0][:80]!r}: no number of bytes") from None
        digits = len(figure.partition(".")[2])
        return _positive(size, message), scale / 2 / 10**digits if scale > 1 else 0.0
    if isinstance(message, str) and len(message.split()) > 2:
        raise UsageError(f"{message[:60]!r}: no 'Tried to allocate SIZE' in it; give the size, such as '58.15 GiB'")
    return _positive(parse(message, "B"), message), 0.0


def _positive(size: float, message: object) -> float:
    if not size > 0:
        raise UsageError(f"{str(message)[:60]!r}: a size above zero is wanted")
    return size
