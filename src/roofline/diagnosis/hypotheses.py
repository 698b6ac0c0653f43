"""Without a trace: each cause as a counterfactual, the times that the program could take if that were what is wrong.

A hypothesis gives the least and the most time with it. The nearer the measured time and the narrower the range, the
likelier; what occurs more often counts more (``prior``). Times come from physics where there is any (the same graph
unfused, in another format, over the host link), and from what launches, read-backs and CPUs cost: :data:`RANGES` has
these figures, each with its unit, its meaning and its source. They were set on half of the planted programs ``first``
(tests/planted); a source says how many of all planted programs with that fault, and of which hypothesis holds, took a
time within, and the middle 80 % of what their times amount to (``python benchmarks/planted_table.py --ranges``).
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from math import log, prod

from roofline.cost import COMPUTE
from roofline.cost.cpu import is_cpu
from roofline.counting.counts import KernelCount
from roofline.diagnosis.causes import Candidate
from roofline.diagnosis.reference import SCATTERED, Reference, replays
from roofline.hardware.library import data_file
from roofline.ir.errors import RooflineError
from roofline.ir.sizes import evaluate
from roofline.passes.formats.cast import cast
from roofline.passes.fusion.fuse import unfuse
from roofline.programs.workload import is_listed

#: Least and most time [s].
Span = tuple[float, float]

#: How far outside of its range a time may be before a candidate is unlikely, as a logarithm.
BLUR = 0.25
#: How much likelier launches are where the estimate itself is bound by them, up to what its range gives to the host.
BY_ESTIMATE = 4.0
#: What a candidate loses by being outside at all, more than any prior can make up for.
OUTSIDE = 10.0


@dataclass(frozen=True, slots=True)
class Range:
    """What a fault costs.

    Attributes:
        low: Least.
        high: Most.
        unit: What one of it is: ``x reference`` is the time of good kernels, others are of what the meaning names.
        meaning: What it is, in a phrase.
        source: Where the figures come from.
    """

    low: float
    high: float
    unit: str
    meaning: str
    source: str

    def of(self, quantity: float, base: float = 0.0) -> Span:
        """Return the times of some quantity, on top of a base [s]."""
        return base + self.low * quantity, base + self.high * quantity


RANGES: dict[str, Range] = {
    "unfused": Range(0.75, 1.75, "x estimate", "a chain with each step as a kernel of its own",
                     "planted: 13 of 16 within, most 0.81 to 1.65"),
    "by_hand": Range(1, 1, "x kernels", "operators as chains of simple ones, BY_HAND has how many",
                     "planted: 14 of 30 within"),
    "scores": Range(3.5, 23, "x traffic", "attention scores cross the memory, on top",
                    "planted: 17 of 20 within, most 7.4 to 22"),
    "wide_format": Range(0.75, 2.2, "x estimate", "contractions in fp32 or fp64",
                         "planted: 43 of 44 within, most 0.85 to 1.1"),
    "odd_rows": Range(0.5, 1.2, "x estimate", "matmuls whose rows are not aligned; ODD_ROWS bounds it",
                      "planted: 21 of 21 within, most 0.57 to 0.81"),
    "edges": Range(1 / 14e9, 1 / 1.2e9, "s/B", "copies of inputs or outputs through pageable memory",
                   "planted: 21 of 23 within, most 1.4 to 13 GB/s"),
    "copies": Range(1 / 14e9, 1 / 1.2e9, "s/B", "copies of the program through pageable memory",
                    "as edges; no planted program"),
    "launch": Range(5e-6, 45e-6, "s/launch", "the host's part of an eager launch, back to back",
                    "planted: 17 of 17 within, most 11 to 27 us"),
    "module": Range(8e-6, 120e-6, "s/launch", "the same with the modules of a model around it",
                    "assumed; no planted program"),
    "wrapped": Range(5e-6, 120e-6, "s/launch", "a call through a compiler's guards or hooks, on top",
                     "assumed; no planted program"),
    "piece": Range(9e-6, 45e-6, "s/piece", "a piece cut off, its operator, and its result kept",
                   "planted: 6 of 6 within, most 20 to 35 us"),
    "read_back": Range(20e-6, 130e-6, "s/launch", "a launch, a wait and the way back, on top",
                       "planted: 16 of 22 within, most 18 to 92 us"),
    "preparation": Range(2.5e-3, 3e-2, "s", "loading and preparing data between steps, on top",
                         "planted: 18 of 22 within, most 3.9 to 19 ms"),
    "one_hot": Range(0.8, 5, "x matmul", "a one-hot matrix made and multiplied, on top", "planted: 1 of 3 within"),
    "more_work": Range(1.8, 30, "x reference", "several times the work that was asked for",
                       "planted: 18 of 26 within, most 2.9 to 63"),
    "layout": Range(2, 16, "x traffic", "inputs and outputs copied into another order, on top",
                    "planted: 12 of 16 within, most 5.3 to 48"),
    "gathers": Range(0.5, 3, "x gathers", "gathers from anywhere; SCATTER bounds it",
                     "planted: 9 of 12 within, most 0.95 to 4.5"),
    "strides": Range(2, 10, "x reference", "copies and elementwise kernels across the rows",
                     "planted: 16 of 20 within, most 4.2 to 14"),
    "cache_copy": Range(1.5, 4, "x cache", "the cache of a decode step copied before it is read, on top",
                        "planted: 4 of 5 within, most 2.3 to 6.9"),
    "growth": Range(3, 300, "x reference", "a tensor copied again for each part that is added",
                    "planted: 7 of 9 within, most 18 to 1,700"),
    "cpu_flops": Range(0.2e12, 2e12, "FLOP/s", "contractions on a server's CPU",
                       "planted: 19 of 20 within, with cpu_bytes"),
    "cpu_bytes": Range(5e9, 100e9, "B/s", "traffic on a server's CPU", "planted: with cpu_flops"),
    "clocks": Range(1.15, 2, "x reference", "power, heat or other work on the chip",
                    "assumed; no planted program"),
    "weights": Range(2, 30, "x reference", "a batch in pieces that read all weights each",
                     "planted: 3 of 3 within, most 6.2 to 13"),
    "ill_suited": Range(3, 50, "x reference", "a library's kernel for other shapes", "assumed; no planted program"),
    "waiting": Range(1.2, 10, "x reference", "devices that wait for each other", "planted: 0 of 1 within, 225"),
}  # fmt: skip

#: Kernels that an operator becomes when it is written out by hand in eager mode: from, to.
BY_HAND = {
    "gelu": (5, 12), "silu": (3, 5), "softmax": (4, 8), "layernorm": (6, 14), "rmsnorm": (4, 12), "groupnorm": (6, 14),
    "batchnorm2d": (4, 8), "sigmoid": (3, 4), "tanh": (4, 7), "elementwise": (2, 10),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What may be wrong.

    Attributes:
        label: The cause, one of :data:`~roofline.diagnosis.causes.LABELS`.
        question: What to look for.
        prior: How common it is against the others.
        range: Its figures in :data:`RANGES`.
        span: The times that it gives, ``None`` where it does not apply.
        unless: Where it cannot be, words of :data:`RULED_OUT`.
    """

    label: str
    question: str
    prior: float
    range: str
    span: Callable[[Reference, Range], Span | None]
    unless: str = ""


#: What rules hypotheses out, whatever the time. A captured program is the one that ran: it shows which operators are
#: written out, which formats they are in and what is computed how often. A CPU has no link to itself. A replayed graph
#: has no host in it, and some devices replay none.
RULED_OUT: dict[str, Callable[[Reference], bool]] = {
    "captured": lambda reference: reference.captured,
    "cpu": lambda reference: is_cpu(reference.chip),
    "replayed": lambda reference: reference.mode == "graph",
    "unreplayable": lambda reference: not replays(reference.chip),
    "training": lambda reference: reference.graph.info.phase == "train",
}


def candidates(reference: Reference, seconds: float) -> tuple[Candidate, ...]:
    """Return every counterfactual that a program can suffer from, the likeliest first.

    Args:
        reference: The program as it is expected to run.
        seconds: The measured time [s].
    """
    out = {word for word, holds in RULED_OUT.items() if holds(reference)}
    possible = (hypothesis for hypothesis in HYPOTHESES if out.isdisjoint(hypothesis.unless.split()))
    options = (option for hypothesis in possible if (option := _candidate(hypothesis, reference, seconds)))
    return tuple(sorted(options, key=lambda option: -option.score))


def _candidate(hypothesis: Hypothesis, reference: Reference, seconds: float) -> Candidate | None:
    try:
        span = hypothesis.span(reference, RANGES[hypothesis.range])
    except RooflineError:
        return None  # a counterfactual that the chip cannot run, such as one without a figure for fp64
    if span is None or span[1] <= reference.attainable:
        return None
    low, high = max(span[0], reference.attainable), span[1]
    gap = seconds / low if seconds < low else max(seconds / high, 1.0)
    run = reference.expected
    launches = hypothesis.label == "launch_bound" and run.bound == "host" and seconds <= run.high
    score = (
        log(hypothesis.prior * (BY_ESTIMATE if launches else 1.0))
        - log(log(high / low) + 2.5 * BLUR)
        - (log(gap) / BLUR) ** 2 / 2
    )
    right, named = record().get(hypothesis.question, (0, 0))
    return Candidate(hypothesis.label, hypothesis.question, low, high, gap, score - OUTSIDE * (gap != 1), right, named)


@cache
def record() -> dict[str, tuple[int, int]]:
    """Return how often each question was the answer, and how often it was the first that fitted.

    Of the planted programs with a known cause (tests/planted), judged by their time alone; written by
    ``python benchmarks/planted_table.py --record``.
    """
    with data_file("measurements", "hypotheses.csv").open(encoding="utf-8") as file:
        return {row["question"]: (int(row["right"]), int(row["named"])) for row in csv.DictReader(file)}


Test = Callable[[Reference], bool]
Quantity = Callable[[Reference], float]


def _times(applies: Test) -> Callable[[Reference, Range], Span | None]:
    """Make a span of multiples of the reference, where that applies."""
    return lambda reference, cost: cost.of(reference.attainable) if applies(reference) else None


def _on_top(quantity: Quantity) -> Callable[[Reference, Range], Span | None]:
    """Make a span of extra time on top of good kernels; no quantity is no case."""
    return lambda reference, cost: cost.of(part, reference.attainable) if (part := quantity(reference)) else None


def _instead(quantity: Quantity) -> Callable[[Reference, Range], Span | None]:
    """Make a span of that quantity's time alone; no quantity is no case."""
    return lambda reference, cost: cost.of(part) if (part := quantity(reference)) else None


def _rows(reference: Reference, *kinds: str) -> list[KernelCount]:
    return [row for row in reference.ideal.rows if row.kernel.kind in kinds]


# --- how it was written ---


def _unfused(reference: Reference) -> float:
    """Return the time of fused chains taken apart [s]."""
    if not any(len(row.kernel.nodes) > 1 and row.kernel.kind != "attention" for row in reference.ideal.rows):
        return 0.0
    return float(reference.estimate(unfuse(reference.plain), mode="graph").device_time)


def _by_hand(reference: Reference, cost: Range) -> Span | None:
    """Estimate composite operators as chains of simple ones, each reading and writing everything."""
    extra = [0.0, 0.0]
    for row, time in zip(reference.ideal.rows, reference.ideal.times[0], strict=True):
        steps = [BY_HAND.get(node.op, (1, 1)) for node in row.kernel.nodes]
        if row.kernel.kind not in ("pointwise", "rowwise", "reduction") or not any(high > 1 for _, high in steps):
            continue
        for at in (0, 1):
            extra[at] += row.kernel.count * float(time.expected) * (sum(step[at] for step in steps) - 1)
    worth = extra[1] > reference.attainable / 2
    return (reference.attainable + extra[0], reference.attainable + extra[1]) if worth else None


def _attention(reference: Reference) -> list[KernelCount]:
    return [row for row in _rows(reference, "attention") if len(row.kernel.nodes) > 1]


def _scores(reference: Reference) -> float:
    """Return the time of one pass over the attention scores of more than one query [s]."""
    moved = 0.0
    for row in _attention(reference):
        (batch, heads, queries, _), (_, _, keys, _) = reference.shapes(row)[:2]
        moved += 2.0 * row.kernel.count * batch * heads * queries * keys if queries > 1 else 0.0
    return moved / (reference.chip.bandwidth * 0.9)


def _one_hot(reference: Reference) -> float:
    """Return the time of lookups as matmuls with a one-hot matrix, which has to be made as well [s]."""
    extra = 0.0
    for row in reference.ideal.rows:
        if row.kernel.main.op == "embedding":
            (vocab, dim), tokens = reference.shapes(row)[0], prod(reference.shapes(row)[1])
            extra += row.kernel.count * 2.0 * vocab * dim * tokens / reference.chip.matmul_peak("bf16")
            extra += row.kernel.count * 4.0 * vocab * tokens / reference.chip.bandwidth
    return extra


def _layout(reference: Reference) -> float:
    """Return the time of one pass over all inputs and outputs [s]."""
    moved = sum(row.kernel.count * float(row.bytes) for row in _rows(reference, "conv", "attention", "matmul"))
    return moved / reference.chip.bandwidth


#: Most time of scattered gathers, as a multiple of good kernels and gathers together.
SCATTER = 3
#: Rows shorter than two memory transactions of 32 bytes are narrow [B].
NARROW = 64


def _scattered(reference: Reference, cost: Range) -> Span | None:
    """Estimate gathers from anywhere instead of neighbours."""
    gathers = [row for row in reference.ideal.rows if row.kernel.main.op in SCATTERED]
    if not any(2 * prod(reference.shapes(row)[0][1:]) < NARROW for row in gathers):
        return None
    best, extra = reference.attainable, reference.scattered
    return best + cost.low * extra, SCATTER * best + cost.high * extra


def _cache(reference: Reference) -> float:
    """Return the time of one pass over the cache of a decode step [s]."""
    steps = [row for row in _attention(reference) if reference.shapes(row)[0][2] == 1]
    return sum(row.kernel.count * float(row.read) for row in steps) / reference.chip.bandwidth


# --- formats and shapes ---

#: A slower format or odd rows matter from this many times good kernels on.
MATTERS = 1.15
#: Odd rows cost at least and at most this many times good kernels, whatever the model says.
ODD_ROWS = 1.5, 8


def _in_format(dtype: str, own: bool, reference: Reference) -> float:
    """Return the time of contractions in a wide format: its ``own``, or one they are cast to by accident [s]."""
    formats = reference.contracts_in
    if not formats or own != (dtype in formats) or "fp64" in formats - {dtype}:
        return 0.0
    graph = reference.plain if dtype in formats else cast(reference.plain, dtype, compute=dtype)
    slow = float(reference.estimate(graph, mode="graph", tf32=False).device_time)
    return slow if slow >= MATTERS * reference.attainable else 0.0


def _unaligned(reference: Reference, cost: Range) -> Span | None:
    """Estimate matmuls whose rows do not start at multiples of 16 bytes."""
    shapes = (shape for row in _rows(reference, "matmul") for shape in reference.shapes(row)[:2])
    if not any(size % 8 for shape in shapes for size in shape[-2:]):
        return None
    odd, best = float(reference.estimate(reference.graph, mode="graph").device_time), reference.attainable
    if odd < MATTERS * best:
        return None
    low, high = cost.of(odd)
    return max(low, ODD_ROWS[0] * best), max(high, ODD_ROWS[1] * best)


# --- host and link ---

#: Kernels that take longer on average hide the launches [s].
HIDES_S = 20e-6
#: From this many launches on, a program waits for launches; below, for single calls.
MANY_LAUNCHES = 10
#: An operator in fewer pieces is no loop, and nobody waits for more.
PIECES = 16, 2048
#: Read-backs are looked for among this many launches.
READ_BACKS = 5, 1000
#: The least that inputs or outputs are [B].
LEAST_EDGE = 1e4


def _steps(reference: Reference) -> int:
    """Count the launches when every operator is one."""
    return int(reference.estimate(unfuse(reference.plain), mode="graph").launches)


def _launches(reference: Reference, cost: Range) -> Span | None:
    """Estimate a program whose device waits for one launch after the other."""
    launches, listed = _steps(reference), is_listed(reference.graph)
    cost = cost if listed else RANGES["module"]
    hidden = reference.attainable > launches * (HIDES_S if listed else cost.high)
    return None if launches < MANY_LAUNCHES or hidden else cost.of(launches)


def _wrapped(reference: Reference, cost: Range) -> Span | None:
    """Estimate a few short kernels behind a call with guards, hooks and wrappers."""
    launches = _steps(reference)
    if launches >= MANY_LAUNCHES or reference.attainable > launches * cost.high:
        return None
    return cost.of(launches, reference.attainable)


def _pieces(reference: Reference) -> float:
    """Count the rows, or entries of its batch, that one operator may be called for one by one."""
    rows = _rows(reference, "matmul", "rowwise", "attention", "conv")
    if reference.ideal.launches > 4 or not rows:
        return 0
    pieces = max(reference.shapes(row)[0][0] for row in rows)
    return pieces if PIECES[0] <= pieces <= PIECES[1] else 0


def _read_backs(reference: Reference) -> float:
    launches = _steps(reference)
    return launches if is_listed(reference.graph) and READ_BACKS[0] <= launches <= READ_BACKS[1] else 0


def _host_copies(reference: Reference, cost: Range) -> Span | None:
    """Estimate inputs or outputs, or both, that cross the host link."""
    if _rows(reference, "transfer"):
        return None
    last, trained = reference.ideal.rows[-1], reference.graph.info.phase == "train"  # a step leaves its results there
    inputs, outputs = float(reference.ideal.memory.inputs), 0.0 if trained else float(last.write) * last.kernel.count
    least, most = max(min(inputs, outputs or inputs), LEAST_EDGE), max(inputs + outputs, LEAST_EDGE)
    return reference.attainable + least * cost.low, reference.attainable + most * cost.high


def _cpu(reference: Reference, rate: Range) -> Span | None:
    """Estimate all of it on the host."""
    flops, moved, bandwidth = float(reference.ideal.flops), float(reference.ideal.bytes), RANGES["cpu_bytes"]
    return flops / rate.high + moved / bandwidth.high, flops / rate.low + moved / bandwidth.low


def _cpu_fp32(reference: Reference, rate: Range) -> Span | None:
    """Estimate the same of programs in fp32, which end up on the CPU more often: it is the default of both."""
    wide = {tensor.dtype for tensor in reference.graph.tensors.values()} <= {"fp32", "int64", "bool"}
    return _cpu(reference, rate) if wide else None


# --- the device itself ---

#: Rows up to which a matmul is skinny.
SKINNY = 8


def _computes(reference: Reference) -> bool:
    """Tell whether most of the time is compute-bound."""
    device = zip(reference.ideal.rows, reference.ideal.times[0], strict=True)
    computing = sum(row.kernel.count * float(time.expected) for row, time in device if int(time.bound) == COMPUTE)
    return bool(computing > reference.attainable / 2)


def _skinny(reference: Reference) -> bool:
    """Tell whether all matmuls have a few rows, for which libraries have kernels of their own, or have not."""
    rows = [row for row in reference.ideal.rows if row.flops_by]
    few = [row.kernel.kind == "matmul" and prod(reference.shapes(row)[0][:-1]) <= SKINNY for row in rows]
    return bool(rows) and all(few)


def _cut(reference: Reference, cost: Range) -> Span | None:
    """Estimate a batch in pieces that read all weights each: no more pieces than there are entries.

    Without a symbol for it, the batch is the first axis of what a program is given; of listed operators, the rows.
    """
    inputs = [tensor.shape for tensor in reference.graph.tensors.values() if tensor.kind == "input" and tensor.shape]
    rows = (shape[-2] for row in _rows(reference, "matmul") if len(shape := reference.shapes(row)[0]) > 1)
    entries = rows if is_listed(reference.graph) else (int(evaluate(shape[0], reference.sizes)) for shape in inputs)
    batch = reference.sizes.get("B") or max(entries, default=1)
    if not _rows(reference, "matmul") or batch < cost.low:
        return None
    return cost.low * reference.attainable, min(cost.high, float(batch)) * reference.attainable


def _shared(reference: Reference) -> bool:
    """Tell whether several devices talk to each other."""
    return any(dict(row.kernel.main.attrs).get("devices", 2) > 1 for row in _rows(reference, "network"))


#: Classes of kernels that only sweep over memory, and operators that do nothing but move a tensor.
_SWEEPING = {"move", "pointwise", "reduction"}
_MOVING = {"copy", "cat", "cache_update", "put"}

HYPOTHESES: tuple[Hypothesis, ...] = (
    Hypothesis("unfused", "Does each step of a chain run as a kernel of its own?", 2.0, "unfused", _instead(_unfused),
               "captured"),
    Hypothesis("unfused", "Is an operator written out by hand as a chain of simple ones?", 1.5, "by_hand", _by_hand,
               "captured"),
    Hypothesis("materialised", "Are attention scores written out?", 3.0, "scores", _on_top(_scores), "captured"),
    Hypothesis("precision", "Do contractions run in fp32 without tf32?", 4.0, "wide_format",
               _instead(partial(_in_format, "fp32", True))),
    Hypothesis("precision", "Do contractions run in fp64?", 4.0, "wide_format",
               _instead(partial(_in_format, "fp64", True))),
    Hypothesis("precision", "Are operands cast to fp32 before they are multiplied?", 0.2, "wide_format",
               _instead(partial(_in_format, "fp32", False)), "captured"),
    Hypothesis("precision", "Are operands cast to fp64 before they are multiplied?", 0.1, "wide_format",
               _instead(partial(_in_format, "fp64", False)), "captured"),
    Hypothesis("alignment", "Are rows of operands not a multiple of 8 elements?", 6.0, "odd_rows", _unaligned),
    Hypothesis("host_copy", "Do inputs or outputs cross the host link in every step?", 1.0, "edges", _host_copies,
               "cpu replayed"),
    Hypothesis("host_copy", "Is the memory of the host pageable?", 3.0, "copies",
               _instead(lambda reference: sum(
                   row.kernel.count * float(row.read) for row in _rows(reference, "transfer"))), "cpu"),
    Hypothesis("launch_bound", "Does the device wait for one launch after the other?", 2.0, "launch", _launches,
               "cpu replayed"),
    Hypothesis("launch_bound", "Was the CUDA graph not replayed, but each kernel launched?", 0.5, "launch",
               lambda reference, cost: _launches(reference, cost) if reference.mode == "graph" else None,
               "unreplayable"),
    Hypothesis("launch_bound", "Does the call cost the host more than its kernel takes?", 1.0, "wrapped", _wrapped,
               "replayed"),
    Hypothesis("launch_bound", "Is one operator called piece by piece in a Python loop?", 0.8, "piece",
               _instead(_pieces), "captured replayed"),
    Hypothesis("sync", "Is a result read back in every step?", 1.2, "read_back", _on_top(_read_backs), "cpu replayed"),
    Hypothesis("host_bound", "Does the device wait for data that the host prepares?", 1.0, "preparation",
               _on_top(lambda reference: 1.0), "replayed"),
    Hypothesis("wasted_work", "Is a lookup computed as a matmul with a one-hot matrix?", 2.0, "one_hot",
               _on_top(_one_hot), "captured"),
    Hypothesis("wasted_work", "Is more computed than was asked for?", 0.5, "more_work", _times(lambda _: True),
               "captured"),
    Hypothesis("layout_copy", "Do tensors change their layout between operators?", 0.3, "layout", _on_top(_layout),
               "captured"),
    Hypothesis("layout_copy", "Do images change their layout between convolutions?", 1.0, "layout",
               _on_top(lambda reference: _layout(reference) if 0 < len(_rows(reference, "conv")) < 5 else 0.0)),
    Hypothesis("uncoalesced", "Are single elements or short rows read from anywhere?", 3.0, "gathers", _scattered),
    Hypothesis("uncoalesced", "Do kernels read across the rows?", 0.5, "strides",
               _times(lambda reference: {row.kernel.kind for row in reference.ideal.rows} <= _SWEEPING)),
    Hypothesis("reallocation", "Is the cache grown by concatenation?", 1.5, "cache_copy", _on_top(_cache),
               "captured training"),
    Hypothesis("reallocation", "Is a tensor grown by copying it?", 2.0, "growth",
               _times(lambda reference: {row.kernel.main.op for row in reference.ideal.rows} <= _MOVING), "captured"),
    Hypothesis("wrong_device", "Does it run on the CPU?", 0.5, "cpu_flops", _cpu, "cpu replayed"),
    Hypothesis("wrong_device", "Does it run on the CPU, where fp32 is the default?", 2.0, "cpu_flops", _cpu_fp32,
               "cpu replayed"),
    Hypothesis("clock_or_power", "Does the chip run below its clocks?", 0.15, "clocks", _times(_computes)),
    Hypothesis("small_batch", "Is a batch cut into pieces that read all weights each?", 0.2, "weights", _cut),
    Hypothesis("kernel_choice", "Was a kernel chosen that does not suit the shape?", 0.2, "ill_suited",
               _times(lambda reference: any(row.flops_by for row in reference.ideal.rows))),
    Hypothesis("kernel_choice", "Is there no kernel for so few rows?", 0.6, "ill_suited", _times(_skinny)),
    Hypothesis("communication", "Do devices wait for each other?", 1.0, "waiting", _times(_shared)),
)  # fmt: skip
