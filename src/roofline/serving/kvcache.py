"""What a model keeps of the tokens it has seen: bytes of a token by kind of layer, in blocks, shared, within windows.

Everything is read from the cache tensors of a graph, whose shapes are polynomials in the context: keys and values of
all heads or of few, latents, windows that stop growing, states that never grow. Three figures are told apart:

- *ideal*: each token once, the shared prefix once for all sequences;
- *used*: what lies in the blocks; only whole blocks of a prefix can be shared;
- *reserved*: the blocks themselves, ``ceil(tokens / block)`` a sequence (PagedAttention, Kwon et al. 2023,
  arXiv:2309.06180, section 4).

Without blocks the three are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from roofline.counting.counts import nbytes
from roofline.counting.grid import Grid, grid, plain
from roofline.frontends.source import Program, as_graph
from roofline.ir.dtypes import dtype as number_format
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Tensor, advice_on, sizes_of
from roofline.ir.numbers import whole_number
from roofline.ir.report import Report, subject
from roofline.ir.sizes import LARGEST, Size, evaluate, maximum, minimum, prod, substitute, symbols
from roofline.ir.units import format_bytes
from roofline.passes.formats.quantize import quantize

#: How a part of the cache grows: with every token, up to a window, not at all, or with the encoder's input.
PartKind = Literal["full", "window", "state", "encoder"]


@dataclass(frozen=True, slots=True)
class CachePart:
    """Cache tensors that grow alike and have one number format.

    Attributes:
        names: What the tensors are called in a layer, such as ``k_cache``.
        kind: ``full``, ``window``, ``state`` or ``encoder``.
        dtype: Their number format.
        tensors: How many there are.
        positions: Positions that one sequence holds, symbolic in C; 1 for a state.
        window: The most of them, or ``None``.
        token: Bytes of one position of one sequence in all tensors; of the whole state for a state [byte].
    """

    names: tuple[str, ...]
    kind: PartKind
    dtype: str
    tensors: int
    positions: Size
    window: int | None
    token: Any


@dataclass(frozen=True, repr=False)
class KVCache(Report):
    """The cache of some sequences at one context or over many; results are numbers, or arrays of the grid's shape.

    From :func:`roofline.serving.kv_cache`.

    Attributes:
        graph: The program that keeps it.
        parts: Its tensors by the way they grow.
        grid: Sequences ``B``, positions ``C``, and whatever else the tensors depend on.
        block: Tokens of a block, or ``None`` for a cache without blocks.
        shared_prefix: First tokens that all sequences have in common.
    """

    schema = "kv_cache"

    graph: Graph
    parts: tuple[CachePart, ...]
    grid: Grid
    block: int | None
    shared_prefix: int

    @property
    def _sizes(self) -> dict[str, Any]:
        """The grid's sizes, and the context under the graph's own name for it."""
        return {context_symbol(self.graph): self.grid.sizes["C"], **self.grid.sizes}

    @cached_property
    def bytes_per_token(self) -> Any:
        """Bytes that a first token of one sequence takes in all layers that grow [byte]."""
        return plain(sum(part.token for part in self.parts if part.kind in ("full", "window")))

    @cached_property
    def bytes_per_sequence(self) -> Any:
        """Bytes that a sequence takes whatever its context: states, and keys and values of an encoder [byte]."""
        at = self._sizes
        fixed = [part for part in self.parts if part.kind in ("state", "encoder")]
        return self._shaped(sum((part.token * evaluate(part.positions, at) for part in fixed), 0))

    @cached_property
    def growth(self) -> Any:
        """Bytes that the next token of one sequence adds at this context: nothing in a window that is full [byte]."""
        context = self.grid.sizes["C"]
        grows = (
            part.token * (1 if part.window is None else (context < part.window) * 1)
            for part in self.parts if part.kind in ("full", "window")
        )  # fmt: skip
        return self._shaped(sum(grows, 0))

    @cached_property
    def ideal(self) -> Any:
        """Each token once, the shared prefix once for all [byte]."""
        return self._total(lambda part: self._in_layers(part, 1)[0])

    @cached_property
    def used(self) -> Any:
        """Tokens that lie in the blocks [byte]."""
        return self._total(lambda part: self._in_layers(part, self.block or 1)[0])

    @cached_property
    def reserved(self) -> Any:
        """All blocks [byte]."""
        return self._total(lambda part: self._in_layers(part, self.block or 1)[1])

    @property
    def waste(self) -> Any:
        """Share of the reserved bytes that no token uses."""
        reserved = np.asarray(self.reserved, dtype=np.float64)
        return plain(1 - np.asarray(self.used, dtype=np.float64) / np.maximum(reserved, 1))

    @cached_property
    def saved(self) -> Any:
        """Bytes that sharing the prefix saves of the reservation [byte]."""
        if not self.shared_prefix:
            return self._shaped(0)
        apart = KVCache(self.graph, self.parts, self.grid, self.block, 0)
        return plain(np.asarray(apart.reserved) - np.asarray(self.reserved))

    def _in_layers(self, part: CachePart, block: int) -> tuple[Any, Any]:
        """Positions that all sequences hold of a part, and those of the blocks they lie in."""
        sizes = self._sizes
        held = evaluate(part.positions, sizes)
        if part.kind in ("state", "encoder"):
            return sizes["B"] * held, sizes["B"] * held
        gone, blocks = 0, -(-held // block)
        if part.window is not None:
            gone = sizes["C"] - held  # positions that have left the window
            # A window that slides over blocks touches one more than it fills.
            blocks = minimum(-(-sizes["C"] // block), -(-(part.window - 1) // block) + 1)
        whole = self.shared_prefix // block
        shared = minimum(maximum(whole * block - gone, 0), held)
        shared_blocks = maximum(whole - gone // block, 0)
        tokens = shared + sizes["B"] * (held - shared)
        return tokens, (shared_blocks + sizes["B"] * (blocks - shared_blocks)) * block

    def _total(self, positions: Any) -> Any:
        return self._shaped(sum((part.token * positions(part) for part in self.parts), 0))

    def _shaped(self, value: Any) -> Any:
        return plain(value if not self.grid.shape else np.broadcast_to(np.asarray(value, float), self.grid.shape))

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per part: its tensors, how they grow, and what a token of one sequence takes."""
        return [
            {
                "tensors": part.tensors, "names": list(part.names), "kind": part.kind, "dtype": part.dtype,
                "window": part.window, "positions": str(part.positions),
                "bytes_per_token": None if part.kind == "state" else _number(part.token),
                "bytes_per_sequence": _number(part.token) if part.kind == "state" else None,
            }
            for part in self.parts
        ]  # fmt: skip

    def subject(self) -> dict[str, Any]:
        """Return the program, its sizes and how the cache is laid out."""
        about = subject(self.graph, sizes=self.grid.values)
        return {**about, "block": self.block, "shared_prefix": self.shared_prefix}

    def summary(self) -> dict[str, Any]:
        """Return the bytes of a token, and the parts that they are made of."""
        return {"bytes_per_token": _number(self.bytes_per_token), "parts": self.rows()}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per point: sequences, context, and bytes ideal, used, reserved and saved."""
        names = ("ideal", "used", "reserved", "saved")
        values = {name: np.broadcast_to(np.asarray(getattr(self, name)), self.grid.shape) for name in names}
        points = [(at, self.grid.point(at)) for at in np.ndindex(self.grid.shape)]
        return [
            {
                "batch": sizes.get("B", 1),
                "context": sizes["C"],
                **{f"{n}_bytes": float(v[at]) for n, v in values.items()},
            }
            for at, sizes in points
        ]

    def __repr__(self) -> str:
        token = f"{format_bytes(float(self.bytes_per_token))} per token"
        if self.grid.shape:
            return (
                f"<KVCache {self.graph.name}: {token}, axes {dict(zip(self.grid.axes, self.grid.shape, strict=True))}>"
            )
        blocks = "" if self.block is None else f", {format_bytes(float(self.used))} used in blocks of {self.block}"
        return f"<KVCache {self.graph.name}: {token}, {format_bytes(float(self.reserved))} reserved{blocks}>"


def kv_cache(
    program: Program,
    context: Any = 1,
    *,
    batch: Any = 1,
    block: int | None = None,
    shared_prefix: int = 0,
    window: int | None = None,
    dtype: str | None = None,
    cache: str | None = None,
    **sizes: Any,
) -> KVCache:
    """Say what the cache of a model takes, as stored tokens and as reserved blocks.

    Args:
        program: A graph of a decode step (or a prefill), a shipped name, or the path of a model file, config or script.
            The sequences of a graph whose batch is a number count as one.
        context: Positions that each sequence holds: a number, or a sequence of them.
        batch: Sequences: a number, or a sequence of them.
        block: Tokens of a block; 16 is vLLM's default. Without it tokens lie one after the other.
        shared_prefix: First tokens that all sequences have in common and that are kept once; whole blocks of them.
        window: Keep no more than this many positions in any layer.
        dtype: Number format of everything.
        cache: Number format of the cache, such as ``"int8"``; narrow ones with their scales.
        sizes: Other sizes of the program, such as the encoder's ``seq`` in a decode step.

    Returns:
        Bytes by token and by sequence, ideal, used and reserved.

    Raises:
        UsageError: The program keeps no cache, or a block, window or prefix that cannot be.
        UnknownModel: No model of that name.

    Example:
        >>> import roofline as rl
        >>> kept = kv_cache(rl.model("llama-3-8b", phase="decode"), 1000, batch=4, block=16)
        >>> kept.bytes_per_token, kept.used, kept.reserved
        (131072, 524288000, 528482304)
        >>> kv_cache("deepseek-v3", cache="bf16").bytes_per_token  # one latent for keys and values of all heads
        70272
    """
    graph = in_formats(program, (dtype, None, cache), "decode")
    block, shared_prefix, window = checked_layout(block, shared_prefix, window)
    parts = cache_parts(graph, window)
    points = _grid(graph, parts, {"B": batch, "C": context, **sizes_of(graph, sizes)})
    shortest = float(np.min(points.values["C"]))
    if shared_prefix > shortest:
        raise UsageError(f"shared_prefix={shared_prefix}: longer than the context of {shortest:.0f} positions")
    if shared_prefix and "B" not in graph.symbols:
        raise UsageError(
            f"{graph.name} has no symbol B: its sequences cannot be distinguished, so nothing can be shared"
        )
    return KVCache(graph, parts, points, block, shared_prefix)


#: Number formats of everything, of the weights and of the cache, where given.
Formats = tuple[str | None, str | None, str | None]


def in_formats(program: Program, formats: Formats, phase: str, **options: Any) -> Graph:
    """Return a program in number formats, a narrow cache with its scales as ``what_if`` counts them.

    Args:
        program: As for :func:`as_graph`.
        formats: Of everything, of the weights and of the cache.
        phase: The phase that the question implies.
        options: Sizes and options of a model.
    """
    dtype, weights, cache = formats
    narrow = cache is not None and number_format(cache).bits < 16
    graph = as_graph(program, None, dtype, weights, None if narrow else cache, implied=phase, **options)
    return quantize(graph, cache=cache) if narrow else graph


_CACHE: WeakKeyDictionary[Graph, dict[int | None, tuple[CachePart, ...]]] = WeakKeyDictionary()


def cache_parts(graph: Graph, window: int | None = None) -> tuple[CachePart, ...]:
    """The cache tensors of a graph by the way they grow.

    Raises:
        UsageError: The graph keeps no cache.
    """
    known = _CACHE.setdefault(graph, {})
    if window not in known:
        known[window] = _parts(graph, window)
    return known[window]


def _parts(graph: Graph, window: int | None) -> tuple[CachePart, ...]:
    symbol = context_symbol(graph)
    groups: dict[tuple[Any, ...], list[Tensor]] = {}
    for tensor in graph.tensors.values():
        if tensor.kind == "cache":
            groups.setdefault((*_growth(tensor, symbol, window), tensor.dtype), []).append(tensor)
    if not groups:
        raise UsageError(f"{graph.name} keeps no cache; a model's decode step does: model(..., phase='decode')")
    return tuple(_part(key, tensors, symbol) for key, tensors in groups.items())


def context_symbol(graph: Graph) -> str:
    """The symbol that positions are counted by: C, or S in a prefill."""
    return "C" if "C" in graph.symbols else "S"


def _growth(tensor: Tensor, symbol: str, window: int | None) -> tuple[PartKind, Size, int | None]:
    """Return how a tensor grows, the positions that one sequence holds, and the most of them."""
    for axis in tensor.shape:
        if symbol in symbols(axis):
            held = substitute(axis, {"B": 1})
            held = held if window is None else minimum(held, window)
            most = evaluate(held, dict.fromkeys(symbols(held), LARGEST))
            return ("full", held, None) if most >= LARGEST else ("window", held, int(most))
    outer = next((axis for axis in tensor.shape if symbols(axis) - {"B"}), 1)
    return ("encoder", substitute(outer, {"B": 1}), None) if outer != 1 else ("state", 1, None)


def _part(key: tuple[Any, ...], tensors: list[Tensor], symbol: str) -> CachePart:
    kind, positions, window, dtype = key
    names = dict.fromkeys(tensor.name.rsplit(".", 1)[-1] for tensor in tensors)
    token = sum((nbytes(tensor, _width(tensor, symbol)) for tensor in tensors), 0)
    return CachePart(tuple(names), kind, dtype, len(tensors), positions, window, plain(token))


def _width(tensor: Tensor, symbol: str) -> Size:
    """Elements of one position of one sequence."""
    others = list(tensor.shape)
    at = next((i for i, axis in enumerate(others) if symbols(axis) & {symbol}), None)
    at = next((i for i, axis in enumerate(others) if symbols(axis) - {"B"}), None) if at is None else at
    if at is not None:
        del others[at]
    width: Size = substitute(prod(others), {"B": 1})
    return width


def checked_layout(
    block: Any = None, shared_prefix: Any = 0, window: Any = None, longest: int = LARGEST
) -> tuple[int | None, int, int | None]:
    """Return a block, a prefix of no more than the longest context, and a window as numbers of Python.

    Raises:
        UsageError: One that cannot be; names the option.
    """

    def positive(name: str, value: Any) -> int | None:
        return None if value is None else whole_number(name, value, 1, LARGEST)

    prefix = whole_number("shared_prefix", shared_prefix, 0, LARGEST)
    if prefix > longest:
        raise UsageError(f"shared_prefix={prefix}: longer than the prompt of {longest} tokens")
    return positive("block", block), prefix, positive("window", window)


def _grid(graph: Graph, parts: tuple[CachePart, ...], sizes: Mapping[str, Any]) -> Grid:
    """The points, with B and C among their sizes whether or not the tensors depend on them."""
    if "B" not in graph.symbols and np.any(np.asarray(sizes["B"]) != 1):
        raise UsageError(
            f"{graph.name} has no symbol B: its batch is fixed; leave out the batch{advice_on(graph, 'B')}"
        )
    own = frozenset().union(*(symbols(part.positions) for part in parts))
    axes = {"B", "C"} | (own - {context_symbol(graph)})
    return grid(frozenset(axes), sizes)


def _number(value: Any) -> Any:
    return int(value) if float(value).is_integer() else float(value)
