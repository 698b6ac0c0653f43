"""A failed allocation turned around: its bytes are the product of some sizes, all or all but one of which are known."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import permutations
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
        forms: The products that its elements are, in words of :data:`NAMES`; a number is a constant.
        advice: What makes it smaller.
    """

    what: str
    forms: tuple[str, ...]
    advice: str


#: What sizes are called, by the word of the products; ``num_`` and ``n_`` before them say nothing.
NAMES: dict[str, str] = {
    name: word
    for word, names in {
        "batch": "batch batch_size b bs sequences",
        "length": "length seq seq_len seqlen seq_length sequence_length context ctx prompt s max_length max_seq_len "
                  "max_position_embeddings positions q_len kv_len",
        "tokens": "tokens",
        "vocab": "vocab vocab_size v",
        "heads": "heads attention_heads h q_heads query_heads head",
        "kv_heads": "kv_heads key_value_heads kv",
        "head_dim": "head_dim head_size d_head",
        "layers": "layers layer hidden_layers blocks",
        "hidden": "hidden hidden_size d_model model_dim embed_dim embd",
        "intermediate": "intermediate intermediate_size ffn ffn_dim d_ff ffn_hidden_size inner",
        "channels": "channels c in_channels out_channels",
        "height": "height image_height",
        "width": "width image_width",
        "experts": "experts routed_experts local_experts",
        "parameters": "parameters params weights",
    }.items()
    for name in names.split()
}  # fmt: skip

_CHUNKED = (
    "compute the loss in chunks of tokens or with a fused linear cross-entropy (liger-kernel, "
    "cut-cross-entropy), which never stores all logits, or see why the limit on tokens did not apply"
)
_SDPA = "call scaled_dot_product_attention, whose kernel never stores the scores"
_STATES = "shard the optimizer (ZeRO, FSDP), keep its states in 8 bits, or take one with fewer"
#: Of several that fit equally well, the first counts.
BUFFERS: tuple[Buffer, ...] = (
    Buffer("logits (tokens x vocab)", ("tokens vocab", "batch length vocab"), _CHUNKED),
    Buffer("attention scores (batch x heads x length x length)", ("batch heads length length",), _SDPA),
    Buffer("an attention mask (batch x length x length)", ("batch length length",),
           "pass is_causal=True instead of a mask, or a mask of bool that broadcasts"),
    Buffer("queries, keys or values of a layer (batch x length x heads x head_dim)",
           ("tokens heads head_dim", "batch length heads head_dim"),
           "take smaller micro-batches, or prefill in chunks"),
    Buffer("KV cache (2 x layers x tokens x kv_heads x head_dim)",
           tuple(f"{two} {tokens} {heads} head_dim" for heads in ("kv_heads", "heads")
                 for two in ("2 layers", "layers", "2") for tokens in ("tokens", "batch length")),
           "limit the context, page the cache, or store it in 8 bits"),
    Buffer("images (batch x channels x height x width)", ("batch channels height width",),
           "take smaller batches, a smaller format or smaller images"),
    Buffer("activations (tokens x width)",
           tuple(f"{tokens} {width}" for width in ("hidden", "width", "intermediate")
                 for tokens in ("tokens", "batch length")),
           "recompute activations (checkpointing), or take smaller micro-batches"),
    Buffer("the token table or its gradient (vocab x hidden)", ("vocab hidden",),
           "shard it (tensor parallel, FSDP), or tie it with the head"),
    Buffer("a weight matrix or its gradient (hidden x intermediate)",
           ("hidden intermediate", "2 hidden intermediate", "hidden hidden", "experts hidden intermediate",
            "2 experts hidden intermediate"), "shard it (tensor parallel, FSDP), or quantise it"),
    Buffer("weights or gradients (parameters)", ("parameters",), "shard them (FSDP, ZeRO), or quantise the weights"),
    Buffer("Adam's two moments (2 x parameters)", ("2 parameters",), _STATES),
    Buffer("Adam's two moments and a copy of the weights (3 x parameters)", ("3 parameters",), _STATES),
)  # fmt: skip
_ANY = Buffer("a tensor", ("elements",), "look for the tensor with a size of this order")

#: Words that alone say nothing of what a tensor is.
_COMMON = frozenset({"batch", "length", "tokens", "layers", "head_dim"})
#: Names that stand for any word are only believed if the rest is a whole number up to this.
_SMALL = 4096
#: No more tensors than that are one allocation.
_COPIES = 64

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
        powers: How often each size is a factor, none of those that are no part of the tensor.
        what: The tensor that it would be.
        missing: The size that was not given, or ``copies`` where all were.
        value: That size.
        low: Least value that rounds to the message's figure.
        high: Most.
        advice: What to do about it.
        also: Other tensors of the table that come out exactly.
    """

    schema = "out_of_memory"

    bytes: float
    element: float
    sizes: Mapping[str, float] = field(default_factory=dict)
    powers: Mapping[str, int] = field(default_factory=dict)
    what: str = ""
    missing: str = ""
    value: float = 0.0
    low: float = 0.0
    high: float = 0.0
    advice: str = ""
    also: tuple[str, ...] = ()

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary: all fields, and the answer in a sentence."""
        return [{**asdict(self), "reading": str(self)}]

    def __str__(self) -> str:
        squares = {name: f"^{power}" if power > 1 else "" for name, power in self.powers.items()}
        known = " x ".join(f"{name} {self.sizes[name]:,.0f}{square}" for name, square in squares.items())
        over = f" over {known}" if known else ""
        value = f"{self.value:,.3g}" if self.value < 100 else f"{self.value:,.0f}"
        return (
            f"{format_bytes(self.bytes)}{over} at {self.element:g} bytes per element is {value} {self.missing}: "
            f"it would be {' or '.join((self.what, *self.also))}; {self.advice}"
        )


def explain_oom(message_or_bytes: str | float, dtype: str = "fp32", **sizes: float) -> OutOfMemory:
    """Turn a failed allocation into the size that caused it.

    Args:
        message_or_bytes: The error message (``Tried to allocate 58.15 GiB``), a size such as ``"58.15 GiB"``, or bytes.
        dtype: Number format of the tensor; losses often hold their logits in fp32.
        sizes: Sizes that are known, by any name: ``vocab``, ``heads``, ``seq``, ``hidden``, ``parameters``... All
            that are known may be given: the tensor is the product of some of them that comes out.

    Returns:
        The size that was not given (``copies`` where none is missing), and what to do about it.

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
            raise UsageError(f"{name}={size!r}: expected a size above zero")
    figures = tuple(max(size, 0.0) / element for size in (allocated - unsure, allocated, allocated + unsure))
    readings = sorted(_readings(sizes, figures), key=lambda reading: reading.rank)
    whatever = _Reading(_ANY, "elements", dict.fromkeys(sizes, 1), ("elements",), sizes, figures, 0)
    reading = readings[0] if readings else whatever
    also = dict.fromkeys(other.buffer.what for other in readings if other.exact and other.buffer is not reading.buffer)
    low, value, high = reading.values
    return OutOfMemory(
        allocated, element, dict(sizes), reading.powers, reading.buffer.what, reading.word, value, low, high,
        reading.buffer.advice, tuple(also),
    )  # fmt: skip


@dataclass(frozen=True)
class _Reading:
    """A product that an allocation may be."""

    buffer: Buffer
    form: str
    powers: Mapping[str, int]  #: How often each given size is a factor.
    missing: tuple[str, ...]  #: Words of the form that no given size stands for.
    sizes: Mapping[str, float]
    figures: tuple[float, ...]  #: Elements: least, as written, most.
    place: int  #: In the table.

    @property
    def left(self) -> tuple[str, ...]:
        """The missing words; beside others a batch of one is taken for granted."""
        others = tuple(word for word in dict.fromkeys(self.missing) if word != "batch")
        return others or tuple(dict.fromkeys(self.missing))

    @property
    def word(self) -> str:
        """The name of the value."""
        return " x ".join(self.left) or "copies"

    @cached_property
    def values(self) -> tuple[float, ...]:
        """The missing size: least, as written, most."""
        constant = math.prod(int(word) for word in self.form.split() if word.isdecimal())
        over = constant * math.prod(self.sizes[name] ** power for name, power in self.powers.items())
        root = self.missing.count(self.left[0]) if len(self.left) == 1 else 1
        return tuple((elements / over) ** (1 / root) for elements in self.figures)

    @property
    def whole(self) -> bool:
        """True where the value is a whole number from one, as a size is."""
        low, value, high = self.values
        near = max(round(value), 1)
        return high - low < 0.5 and low * (1 - 1e-9) <= near <= high * (1 + 1e-9)

    @property
    def exact(self) -> bool:
        """True where the sizes alone make the allocation, of a batch of one where the batch is not given."""
        low, _, high = self.values
        return set(self.missing) <= {"batch"} and low * (1 - 1e-9) <= 1 <= high * (1 + 1e-9)

    @property
    def rank(self) -> tuple[Any, ...]:
        """The order of fits, the best first: exactly, with all sizes, one missing, a whole one, a batch, the first."""
        _, value, high = self.values
        if self.exact:
            return (0, self.place)
        unused = len(self.sizes) - len(self.powers)
        lacking = len(self.left) - 0.5 * (self.left == ("batch",))
        odd = high < 1 - 1e-9 or (not self.missing and value > _COPIES)
        return (1, unused > 0, lacking > 1, odd, not self.whole, lacking, unused, self.place)


def _readings(sizes: Mapping[str, float], figures: tuple[float, ...]) -> Iterator[_Reading]:
    """Return the products that the sizes may be a part of, by their names or, of other names, by what fits."""
    words = {name: NAMES.get(name.casefold().removeprefix("num_").removeprefix("n_"), "") for name in sizes}
    free = [name for name, word in words.items() if not word][:4]
    for place, buffer in enumerate(BUFFERS):
        for form in buffer.forms:
            factors = [word for word in form.split() if not word.isdecimal()]
            unnamed = [word for word in dict.fromkeys(factors) if word not in words.values()]
            for chosen in ([], *permutations(unnamed, len(free))) if free else ([],):
                said = {**words, **dict(zip(free, chosen, strict=bool(chosen)))}
                powers, missing = _placed(factors, said)
                reading = _Reading(buffer, form, powers, missing, sizes, figures, place)
                if powers and (_fits(reading) if chosen else _speaks(reading, said)):
                    yield reading


def _placed(factors: list[str], words: Mapping[str, str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return how often each size is a factor of a product, and the words that are left: one size stands for both of two
    equal factors, two sizes for one each.
    """
    powers: dict[str, int] = {}
    missing: list[str] = []
    for word, often in Counter(factors).items():
        names = [name for name, own in words.items() if own == word][:often]
        powers |= {name: often if len(names) == 1 else 1 for name in names}
        missing += [] if names else [word] * often
    return powers, tuple(missing)


def _speaks(reading: _Reading, words: Mapping[str, str]) -> bool:
    """Tell whether names say what a product is, or nothing but the batch is missing."""
    return bool({words[name] for name in reading.powers} - _COMMON) or set(reading.missing) <= {"batch"}


def _fits(reading: _Reading) -> bool:
    """Tell whether a product of sizes whose names say nothing comes out."""
    return set(reading.missing) <= {"batch"} and reading.whole and reading.values[1] <= _SMALL


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
        raise UsageError(f"{str(message)[:60]!r}: expected a size above zero")
    return size
