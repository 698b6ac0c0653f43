"""Seconds of one step of a server: a chunk of prompts beside sequences that decode.

Kernels see a mixed step in one of these ways, which are told from the two programs of a model, of a prompt and of one
more token for each sequence:

=============== ====================================================================== ================================
kernels         which they are                                                         evaluated over
=============== ====================================================================== ================================
of tokens       equal in both programs, one row for each token: matmuls, norms,        prompt's tokens + sequences
                collectives
of experts      those of tokens whose rows are spread over all groups                  the same, a group's in the mean
of samples      the prompt's that do not depend on its length: the head                sequences + prompts
of sequences    only in the decode step: absorbed projections, states                  sequences
of prompts      only in the prefill: scans                                             prompt's tokens
of keys         matmuls only in the prefill: latents made keys again                   prompt's tokens + its past
attention       of sequences; of prompts, queries with a past                          sequences x context;
                                                                                       tokens x past x prompts
=============== ====================================================================== ================================

Each way is one time over a grid, by the formulas of :mod:`roofline.cost`, and steps interpolate between its points: a
million steps take about a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from roofline.cost import half_width, kernel_time, spread, uncertainty, values
from roofline.counting.counts import Kernel, KernelCount, kernels
from roofline.hardware.chip import Chip
from roofline.ir.dtypes import DTYPES
from roofline.ir.graph import Graph, once_per_graph
from roofline.ir.sizes import substitute, symbol, symbols
from roofline.ops.attention import attended

Floats = NDArray[np.float64]

#: Rows of a matmul are computed in tiles of 64 to 256: grid points lie at both sides of the edges of tiles.
_TILE = 64
#: Most tokens of a grid; steps beyond are continued in a line.
MOST_ROWS, MOST_CONTEXT = 32768, 2**20


def _rows() -> Floats:
    edges = np.concatenate([np.arange(_TILE, 2048, _TILE), np.arange(2048, 8192, 2 * _TILE),
                            np.arange(8192, MOST_ROWS + 1, 8 * _TILE)])  # fmt: skip
    return np.unique(np.concatenate([np.arange(1, 256), edges, edges + 1])).astype(float)


def _octaves(most: int, each: int, dense: int = 1) -> Floats:
    """Whole numbers up to ``most``, ``each`` of them from a number to twice it, and all up to ``dense``."""
    points = 2 ** (np.arange(round(np.log2(most)) * each + 1) / each)
    return np.unique(np.concatenate([np.arange(1, dense + 1), np.round(points)])).astype(float)


ROWS = _rows()
#: Keys of a decode step are read in waves over the cores, to which a sequence may add one: all up to 512 are there.
SEQUENCES, CONTEXTS = _octaves(4096, 16, 512), _octaves(MOST_CONTEXT, 2)
CHUNKS, PASTS, PROMPTS = _octaves(131072, 8), np.concatenate([[0.0], _octaves(MOST_CONTEXT, 1)[6:]]), _octaves(256, 1)


@dataclass(frozen=True)
class Table:
    """Seconds over a grid, between whose points lines are drawn; the last line goes on beyond the end."""

    axes: tuple[Floats, ...]
    seconds: Floats

    def __call__(self, *at: Any) -> Floats:
        """Interpolate at points that broadcast."""
        if not self:
            return np.zeros(np.broadcast_shapes(*map(np.shape, at)))
        places = [self._place(axis, np.asarray(x, dtype=np.float64)) for axis, x in zip(self.axes, at, strict=True)]
        total: Any = 0.0
        for corner in np.ndindex((2,) * len(places)):
            index = tuple(low + side for side, (low, _) in zip(corner, places, strict=True))
            weight: Any = 1.0
            for side, (_, share) in zip(corner, places, strict=True):
                weight = weight * (share if side else 1 - share)
            total = total + weight * self.seconds[index]
        return np.asarray(total)

    def __bool__(self) -> bool:
        return bool(self.seconds.any())

    @staticmethod
    def _place(axis: Floats, x: Floats) -> tuple[Any, Floats]:
        low = np.clip(np.searchsorted(axis, x, side="right") - 1, 0, len(axis) - 2)
        return low, (x - axis[low]) / (axis[low + 1] - axis[low])


@dataclass(frozen=True)
class _Stage:
    """Table of the kernels of one stage by what they are evaluated over."""

    tokens: Table
    experts: Table
    samples: Table
    sequences: Table
    prompts: Table
    keys: Table
    decoding: Callable[[int], Table]
    reading: Table

    def seconds(
        self, read: Any, past: Any, decodes: Any, context: Any, prompts: Any, queries: int, share: Any = 1.0
    ) -> Floats:
        """Return the time of a step of the fullest group, of whose rows all groups have such a share in the mean."""
        reads, decoding, fresh = read > 0, self.decoding(queries), decodes * queries
        someone = self.sequences(np.maximum(fresh, 1)) + decoding(np.maximum(decodes, 1), np.maximum(context, 1))
        own = np.where(decodes > 0, someone, 0.0)
        each = np.maximum(read / np.maximum(prompts, 1), 1)
        keys = self.keys(np.maximum(read + past * prompts, 1)) if self.keys else 0.0
        theirs: Any = 0.0
        if reads.any():
            each_prompt = self.prompts(np.maximum(read, 1)) + keys + self.reading(each, past, prompts)
            theirs = np.where(reads, each_prompt, 0.0)
        rows, heads = np.maximum(read + fresh, 1), np.maximum(fresh + np.where(reads, prompts, 0), 1)
        shared = self.experts(np.maximum(rows * share, 1))
        return np.asarray(self.tokens(rows) + shared + self.samples(heads) + own + theirs)


class Times(Protocol):
    """Something that says how long a step takes, as :meth:`StepTimes.seconds` does."""

    def seconds(
        self, prefill_tokens: Any, past: Any, decodes: Any, context: Any, prompts: Any = 1, queries: Any = 1
    ) -> Any:
        """Return the time of a step [s]."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds of the steps of a deployment; every argument may be an array, and all broadcast.

    From ``steps()`` of what :func:`roofline.serving.deployment` returns.

    Attributes:
        stages: Of the stages of a pipeline, which work on as many shares of the sequences at a time.
        attention_dp: Groups that attend to sequences of their own.
        overhead: What the server adds: to a step, and for each sequence in it [s].
        half_widths: Return the ranges of a decode step and of a prefill, natural logarithms of a factor.
    """

    stages: tuple[_Stage, ...]
    attention_dp: int
    overhead: tuple[float, float]
    half_widths: Callable[[], tuple[float, float]]

    def seconds(
        self, prefill_tokens: Any, past: Any, decodes: Any, context: Any, prompts: Any = 1, queries: int = 1
    ) -> Floats:
        """Return the time of one step in which every sequence gets a token [s].

        Prompts are whole, in whole chunks: of fewer prompts than groups or stages, some read none. With no sequence
        beside them, they pass all stages of a pipeline, else the step is a round of all stages' shares.

        Args:
            prefill_tokens: Tokens of prompts that it reads; 0 for a decode step.
            past: Tokens of each prompt that were read before and are attended to as well.
            decodes: Sequences that get a token; 0 for a prefill alone.
            context: Positions that each of them attends to, on average.
            prompts: Prompts that the tokens belong to, in equal shares.
            queries: Tokens of each of them that are computed: more than one to verify drafted ones.
        """
        read, past, decodes, context, prompts = (
            np.asarray(value, dtype=np.float64) for value in (prefill_tokens, past, decodes, context, prompts)
        )
        pp, groups = len(self.stages), np.clip(prompts, 1, self.attention_dp)
        share = self._fullest(decodes)
        read, prompts = read / groups, np.maximum(prompts / groups, 1.0)
        # Groups without a prompt bring none of its tokens to the experts; those that decode less are padded, or step
        # with a dummy: https://docs.vllm.ai/en/v0.12.0/serving/data_parallel_deployment/.
        even = (read * groups / self.attention_dp + share * queries) / np.maximum(read + share * queries, 1)
        share = share if pp == 1 else np.maximum(share / pp, np.minimum(share, 1.0))
        turns = np.clip(prompts, 1, pp)
        times = [
            stage.seconds(read / turns, past, share, context, prompts / turns, queries, even) for stage in self.stages
        ]
        total = turns * np.maximum.reduce(times)
        if pp > 1:
            others = np.maximum.reduce(
                [stage.seconds(0 * read, past, share, context, 1, queries) for stage in self.stages]
            )
            total = np.where(decodes > 0, total + (pp - turns) * others, total * pp / turns)
        step, sequence = self.overhead
        # Less than nothing is added where kernels are fused that are counted apart: a part of a step at most.
        return np.asarray(np.maximum(total + step + sequence * decodes, total / 2))

    def _fullest(self, sequences: Floats) -> Floats:
        """Return how many the fullest group has, which sets the pace; in the mean where the number is one."""
        whole = np.floor(sequences + 1e-9)
        fewer, more = (np.ceil(many / self.attention_dp) for many in (whole, whole + 1))
        return np.asarray(fewer + np.maximum(sequences - whole, 0.0) * (more - fewer))

    def decode(self, batch: Any, context: Any) -> Floats:
        """Return the time of a decode step [s].

        Args:
            batch: Sequences.
            context: Positions that each attends to, the new one among them.
        """
        return self.seconds(0, 0, batch, context)

    def prefill(self, tokens: Any, past: Any = 0, prompts: Any = 1) -> Floats:
        """Return the time in which prompts are read [s].

        Args:
            tokens: Tokens that are read, of all prompts together.
            past: Tokens of each prompt that were read before.
            prompts: Prompts that they belong to.
        """
        return self.seconds(tokens, past, 0, 1, prompts)

    def factor(self, prefill_tokens: Any, decodes: Any) -> Floats:
        """Return high over expected, and expected over low, of a step: the range of its device's time.

        Args:
            prefill_tokens: Tokens of prompts in it.
            decodes: Sequences that get a token.
        """
        decoding, reading = self.half_widths()
        rows = np.asarray(prefill_tokens, dtype=np.float64) + decodes
        share = np.asarray(prefill_tokens) / np.maximum(rows, 1)
        return np.asarray(np.exp(decoding + (reading - decoding) * share))


def step_times(
    programs: Sequence[tuple[Graph, Graph]], chip: Chip, regime: str, *, attention_dp: int = 1,
    local_experts: float = 1.0, overhead: tuple[float, float] = (0.0, 0.0),
    shallow: Sequence[tuple[Graph, Graph]] = (), beyond: float = 0.0,
) -> StepTimes:  # fmt: skip
    """Evaluate the programs of a deployment, decode and prefill of each stage, on their grids.

    Args:
        programs: A decode step and a prefill for each stage, as one device runs them.
        chip: Where.
        regime: Where operands lie, as for :func:`roofline.estimate`.
        attention_dp: Groups that attend to sequences of their own.
        local_experts: How much fewer experts a device holds than the programs say, each as much wider.
        overhead: Added to each step, and for each sequence in it [s].
        shallow: Programs of a model of fewer layers: times are then those of a deeper one, on the line through both.
        beyond: How far behind the programs it lies, as a share of the way between the two.
    """
    time, less, last = _Timer(chip, regime, local_experts), shallow or programs, len(programs) - 1
    first: dict[int, int] = {}  # of stages in the middle that hold as many layers, which are alike
    alike = [first.setdefault(len(decode.nodes) if 0 < at < last else -at, at)
             for at, (decode, _) in enumerate(programs)]  # fmt: skip
    known = {at: _stage(*programs[at], time, less[at], beyond) for at in set(alike)}
    widths = lru_cache(partial(_widths, time, programs[-1], less[-1], beyond))
    return StepTimes(tuple(known[at] for at in alike), attention_dp, overhead, widths)


def _widths(
    time: _Timer, programs: tuple[Graph, Graph], shallow: tuple[Graph, Graph], beyond: float
) -> tuple[float, float]:
    """Return the ranges of a decode step and of a prefill as natural logarithms of a factor."""
    decoding = time.half_width(programs[0], {"B": 32.0, "C": 4096.0}, shallow[0], beyond)
    return decoding, time.half_width(programs[1], {"B": 1.0, "S": 4096.0}, shallow[1], beyond)


@dataclass(frozen=True)
class _Timer:
    """Table kernels on a chip."""

    chip: Chip
    regime: str
    local_experts: float

    def total(self, counted: Callable[..., Iterable[tuple[float, KernelCount]]], axes: tuple[Floats, ...]) -> Table:
        """Add up times of kernels over a grid."""
        shape = tuple(map(len, axes))
        total = np.zeros(shape)
        for count, row in counted(*np.meshgrid(*axes, indexing="ij")):
            total = total + count * np.broadcast_to(np.asarray(self.one(row).expected, dtype=np.float64), shape)
        return Table(axes, total)

    def one(self, row: KernelCount) -> Any:
        return kernel_time(self._spread(row), self.chip, None, self.regime, "")

    def _spread(self, row: KernelCount) -> KernelCount:
        """Experts whole on fewer devices: as many weights and rows times widths, in fewer and wider matmuls."""
        if self.local_experts == 1 or row.kernel.main.op != "expert_linear":
            return row
        s, ratio = dict(row.sizes), self.local_experts
        wide = "k" if row.kernel.main.name.endswith("down") else "n"
        return replace(row, sizes={**s, "e": s["e"] / ratio, "t": s["t"] / ratio, wide: s[wide] * ratio})

    def appends(self) -> bool:
        """Tell whether figures of attention have the way of new keys into a paged cache in them."""
        return values(self.chip, "attention", self.regime).get("append", 1.0) > 1

    def half_width(self, graph: Graph, sizes: dict[str, float], shallow: Graph, beyond: float) -> float:
        pairs = zip(kernels(graph), kernels(shallow), strict=True)
        timed = [(own.count + beyond * (own.count - less.count), self.one(own.at(sizes))) for own, less in pairs]
        whole = sum(count * time.expected for count, time in timed)
        parts = {name: seconds / whole for name, seconds in uncertainty(timed).items()}  # type: ignore[arg-type]
        return float(half_width({**parts, "whole_program": spread(self.chip, "whole_program", "program")}))


def _stage(decode: Graph, prefill: Graph, time: _Timer, shallow: tuple[Graph, Graph], beyond: float) -> _Stage:
    ways = _on_line(_ways(*shallow, time.appends()), _ways(decode, prefill, time.appends()), beyond)

    def over(name: str, axes: tuple[Floats, ...], count: Callable[..., KernelCount]) -> Table:
        def counted(*at: Floats) -> list[tuple[float, KernelCount]]:
            return [(often, count(kernel, *at)) for often, kernel in ways[name]]

        return time.total(counted, axes)

    def rows(name: str, size: str, other: str) -> Table:
        return over(name, (ROWS,), lambda kernel, many: kernel.at({size: many, other: np.ones(1)}))

    @lru_cache(maxsize=8)
    def decoding(queries: int) -> Table:
        return over("decoding", (SEQUENCES, CONTEXTS), lambda kernel, b, c: _queries(kernel, queries, b, c))

    return _Stage(
        rows("tokens", "S", "B"), rows("experts", "S", "B"), rows("samples", "B", "S"),
        rows("sequences", "B", "C"), rows("prompts", "S", "B"), rows("keys", "S", "B"), decoding,
        over("reading", (CHUNKS, PASTS, PROMPTS), _with_past),
    )  # fmt: skip


# --- which kernel is evaluated over what ----------------------------------------------------------------------------

_Ways = dict[str, list[tuple[float, Kernel]]]


@once_per_graph
def _ways(decode: Graph, prefill: Graph, skip_cache: bool) -> _Ways:
    """Sort the kernels of both programs by what a mixed step evaluates them over, each with how often it runs."""
    names = ("tokens", "experts", "samples", "sequences", "prompts", "keys", "decoding", "reading")
    ways: _Ways = {name: [] for name in names}
    own, theirs = (
        [k for k in kernels(graph) if not (skip_cache and all(node.op == "cache_update" for node in k.nodes))]
        for graph in (decode, prefill)
    )
    left = {id(kernel): kernel.count for kernel in own}
    by_key = _by_key(own, {"B": symbol("N")})
    for kernel in theirs:
        reads = "S" in _depends(kernel)
        key = _key(kernel, {"B": 1, "S": symbol("N")} if reads else {"B": symbol("N")})
        count = 0
        for same in by_key.get(key, ()):
            taken = min(left[id(same)], kernel.count - count)
            left[id(same)] -= taken
            count += taken
        way = "experts" if kernel.main.op == "expert_linear" else "tokens" if reads else "samples"
        ways[way].append((count if reads else kernel.count, kernel))
        if reads and kernel.count > count:
            ways[_only_in_prefill(kernel)].append((kernel.count - count, kernel))
    for kernel in own:
        ways["decoding" if "C" in _depends(kernel) else "sequences"].append((left[id(kernel)], kernel))
    return {name: [(count, kernel) for count, kernel in some if count] for name, some in ways.items()}


def _on_line(small: _Ways, large: _Ways, beyond: float) -> _Ways:
    """Return how often kernels run in a model that is deeper than two others, of the same kernels."""
    return {
        name: [(count + beyond * (count - less), kernel)
               for (count, kernel), (less, _) in zip(some, small[name], strict=True)]
        for name, some in large.items()
    }  # fmt: skip


def _only_in_prefill(kernel: Kernel) -> str:
    if kernel.kind == "attention" and {"q", "k"} <= kernel.sizes.keys():
        return "reading"
    return "keys" if kernel.kind == "matmul" else "prompts"


def _depends(kernel: Kernel) -> frozenset[str]:
    sizes = (*kernel.sizes.values(), kernel.read, kernel.write, *kernel.flops.values())
    return frozenset().union(*map(symbols, sizes))


def _by_key(some: Iterable[Kernel], sizes: dict[str, Any]) -> dict[Any, list[Kernel]]:
    groups: dict[Any, list[Kernel]] = {}
    for kernel in some:
        groups.setdefault(_key(kernel, sizes), []).append(kernel)
    return groups


def _key(kernel: Kernel, sizes: dict[str, Any]) -> Any:
    """Return what kernels of both programs have in common where they are the same work on as many rows."""
    formats = tuple(tensor.dtype for tensor in kernel.inputs) if kernel.kind == "matmul" else ()
    return kernel.main.op, formats, tuple(sorted((axis, substitute(v, sizes)) for axis, v in kernel.sizes.items()))


# --- queries with a past --------------------------------------------------------------------------------------------


def _with_past(kernel: Kernel, queries: Any, past: Any, prompts: Any) -> KernelCount:
    """Count a prompt's attention where keys and values of earlier chunks are attended to as well."""
    row = kernel.at({"B": prompts, "S": queries})
    s, attrs = dict(row.sizes), kernel.attrs
    causal, window = bool(attrs.get("causal", False)), int(attrs.get("window", 0))
    keys = s["q"] + past
    more = attended(s["q"], keys, causal, window) / attended(s["q"], s["k"], causal, window)
    seen = np.minimum(past, window) if window else past
    width = sum(DTYPES[stored].bytes for stored in kernel.stored[1:2]) * 2
    return replace(
        row, sizes={**s, "k": keys}, flops_by={name: value * more for name, value in row.flops_by.items()},
        vector_by={name: value * more for name, value in row.vector_by.items()},
        read=row.read + prompts * s["g"] * seen * s["d"] * width,
    )  # fmt: skip


def _queries(kernel: Kernel, queries: int, sequences: Any, contexts: Any) -> KernelCount:
    """Count a decode step's kernel where each sequence has several queries on the same keys, all but its new ones."""
    if queries == 1 or "q" not in kernel.sizes:
        return kernel.at({"B": sequences * queries, "C": contexts})
    row = kernel.at({"B": sequences, "C": contexts})
    more = row.write * (queries - 1)
    return replace(
        row, sizes={**row.sizes, "q": queries}, read=row.read + more, write=row.write + more,
        flops_by={name: value * queries for name, value in row.flops_by.items()},
        vector_by={name: value * queries for name, value in row.vector_by.items()},
    )  # fmt: skip
