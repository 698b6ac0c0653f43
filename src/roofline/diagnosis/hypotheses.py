"""Without a trace: each cause as a counterfactual, the times that the program could take if that were what is wrong.

A suspect gives the least and the most time with it. The nearer the measured time and the narrower the range, the
likelier; what occurs more often counts more (``weight``). Ranges come from physics where there is any (the same graph
unfused, in another format, over the host link) and else from what launches, read-backs and processors cost on the
machines of measurements/.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log, prod

from roofline.cost import COMPUTE
from roofline.counting.counts import KernelCount
from roofline.diagnosis.causes import Candidate
from roofline.diagnosis.reference import SCATTERED, Meant
from roofline.ir.errors import RooflineError
from roofline.passes.formats.cast import retype
from roofline.passes.fusion.fuse import unfuse
from roofline.programs.workload import is_listed

Span = tuple[float, float]

#: Rows up to which a product is skinny.
SKINNY = 8

#: How far outside of its range a time may be before a candidate is unlikely, as a logarithm.
BLUR = 0.25


@dataclass(frozen=True, slots=True)
class Suspect:
    """A row of the table: what to look for, how common it is, and the times that it gives."""

    label: str
    question: str
    weight: float
    span: Callable[[Meant], Span | None]


def candidates(meant: Meant, seconds: float) -> tuple[Candidate, ...]:
    """Every counterfactual that this program can suffer from, the likeliest first."""
    found = (candidate for suspect in SUSPECTS if (candidate := _candidate(suspect, meant, seconds)))
    return tuple(sorted(found, key=lambda candidate: -candidate.score))


def _candidate(suspect: Suspect, meant: Meant, seconds: float) -> Candidate | None:
    try:
        span = suspect.span(meant)
    except RooflineError:
        return None  # a counterfactual that the chip cannot run, such as one without a figure for fp64
    if span is None or span[1] <= meant.attainable:
        return None
    low, high = max(span[0], meant.attainable), span[1]
    gap = seconds / low if seconds < low else max(seconds / high, 1.0)
    score = log(suspect.weight) - log(log(high / low) + 2.5 * BLUR) - (log(gap) / BLUR) ** 2 / 2
    return Candidate(suspect.label, suspect.question, low, high, gap, score)


def _around(meant: Meant, low: float, high: float) -> Span:
    """A range of extra time on top of good kernels."""
    return meant.attainable + low, meant.attainable + high


# --- how it was written ---

#: Kernels that an operator becomes when it is written out by hand in eager mode.
BY_HAND = {
    "gelu": (5, 12), "silu": (3, 5), "softmax": (4, 8), "layernorm": (6, 14), "rmsnorm": (4, 12), "groupnorm": (6, 14),
    "batchnorm2d": (4, 8), "sigmoid": (3, 4), "tanh": (4, 7), "elementwise": (2, 10),
}  # fmt: skip


def _by_hand(meant: Meant) -> Span | None:
    """Composite operators as chains of simple ones, each reading and writing everything."""
    extra = [0.0, 0.0]
    for row, time in zip(meant.reference.rows, meant.reference.times[0], strict=True):
        steps = [BY_HAND.get(node.op, (1, 1)) for node in row.kernel.nodes]
        if row.kernel.kind not in ("pointwise", "rowwise", "reduction") or not any(high > 1 for _, high in steps):
            continue
        for at in (0, 1):
            extra[at] += row.kernel.count * float(time.expected) * (sum(step[at] for step in steps) - 1)
    return _around(meant, extra[0], extra[1]) if extra[1] > meant.attainable / 2 else None


def _unfused(meant: Meant) -> Span | None:
    """Fused chains taken apart."""
    if not any(len(row.kernel.nodes) > 1 and row.kernel.kind != "attention" for row in meant.reference.rows):
        return None
    apart = float(meant.estimate(unfuse(meant.plain), mode="graph").device_time)
    return 0.75 * apart, 1.2 * apart


def _attention(meant: Meant) -> list[tuple[KernelCount, float]]:
    """Attention kernels, each with the bytes of its scores."""
    rows = [row for row in meant.reference.rows if row.kernel.kind == "attention" and len(row.kernel.nodes) > 1]
    return [(row, _score_bytes(meant, row)) for row in rows]


def _score_bytes(meant: Meant, row: KernelCount) -> float:
    (batch, heads, queries, _), (_, _, keys, _) = meant.shapes(row)[:2]
    return 2.0 * row.kernel.count * batch * heads * queries * keys


def _materialised(meant: Meant) -> Span | None:
    """Scores written and read, at least around the softmax; at most scaled, masked and cast one by one as well."""
    scores = sum(size for row, size in _attention(meant) if meant.shapes(row)[0][2] > 1)
    if not scores:
        return None
    once = scores / (meant.chip.bandwidth * 0.9)
    return _around(meant, 3.5 * once, 16 * once)


def _one_hot(meant: Meant) -> Span | None:
    """A lookup as a product with a one-hot matrix, which has to be made as well."""
    extra = 0.0
    for row in meant.reference.rows:
        if row.kernel.main.op == "embedding":
            (vocab, dim), tokens = meant.shapes(row)[0], prod(meant.shapes(row)[1])
            extra += row.kernel.count * 2.0 * vocab * dim * tokens / meant.chip.matmul_peak("bf16")
            extra += row.kernel.count * 4.0 * vocab * tokens / meant.chip.bandwidth
    return _around(meant, 0.8 * extra, 5 * extra) if extra else None


def _more_work(meant: Meant) -> Span | None:
    """Several times the work that was asked for."""
    return 1.8 * meant.attainable, 30 * meant.attainable


def _layout(meant: Meant) -> Span | None:
    """Each input and output copied into another order, once to several times."""
    rows = [row for row in meant.reference.rows if row.kernel.kind in ("conv", "attention", "matmul")]
    moved = sum(row.kernel.count * float(row.bytes) for row in rows)
    return _around(meant, 2 * moved / meant.chip.bandwidth, 16 * moved / meant.chip.bandwidth) if moved else None


def _layout_of_images(meant: Meant) -> Span | None:
    rows = [row for row in meant.reference.rows if row.kernel.kind == "conv"]
    return _layout(meant) if rows and len(rows) < 5 else None


def _scattered(meant: Meant) -> Span | None:
    """Gathers from anywhere instead of neighbours."""
    rows = [row for row in meant.reference.rows if row.kernel.main.op in SCATTERED and _narrow(meant, row)]
    if not rows:
        return None
    return meant.attainable + 0.5 * meant.scattered, 3 * (meant.attainable + meant.scattered)


def _narrow(meant: Meant, row: KernelCount) -> bool:
    """Rows shorter than two memory transactions of 32 bytes."""
    return 2 * prod(meant.shapes(row)[0][1:]) < 64


def _strided(meant: Meant) -> Span | None:
    """Copies and elementwise kernels that read across the rows."""
    kinds = {row.kernel.kind for row in meant.reference.rows}
    return (2 * meant.attainable, 10 * meant.attainable) if kinds <= {"move", "pointwise", "reduction"} else None


def _grown(meant: Meant) -> Span | None:
    """The cache of a decode step copied before it is read."""
    steps = [row for row, _ in _attention(meant) if meant.shapes(row)[0][2] == 1]
    cache = sum(row.kernel.count * float(row.read) for row in steps)
    return _around(meant, 1.5 * cache / meant.chip.bandwidth, 4 * cache / meant.chip.bandwidth) if steps else None


def _grown_copies(meant: Meant) -> Span | None:
    """What is kept copied again each time that something is added."""
    ops = {row.kernel.main.op for row in meant.reference.rows}
    return (3 * meant.attainable, 300 * meant.attainable) if ops <= {"copy", "cat", "cache_update", "put"} else None


# --- formats and shapes ---


def _in_format(dtype: str, given: bool) -> Callable[[Meant], Span | None]:
    """Contractions in a wide format, which the program was ``given`` in, or which it was cast to by accident."""

    def span(meant: Meant) -> Span | None:
        formats = meant.contracts_in
        if not formats or given != (dtype in formats) or "fp64" in formats - {dtype}:
            return None
        graph = meant.plain if dtype in formats else retype(meant.plain, dtype, compute=dtype)
        slow = meant.estimate(graph, mode="graph", tf32=False)
        if float(slow.device_time) < 1.15 * meant.attainable:
            return None
        return 0.75 * float(slow.device_time), 1.3 * float(slow.device_time)

    return span


def _unaligned(meant: Meant) -> Span | None:
    """Products whose rows do not start at multiples of 16 bytes."""
    rows = [row for row in meant.reference.rows if row.kernel.kind == "matmul"]
    if not any(size % 8 for row in rows for shape in meant.shapes(row)[:2] for size in shape[-2:]):
        return None
    odd = float(meant.estimate(meant.graph, mode="graph").device_time)
    if odd < 1.15 * meant.attainable:
        return None
    return max(0.5 * odd, 1.5 * meant.attainable), max(1.2 * odd, 8 * meant.attainable)


# --- host and link ---

#: Host time of one eager launch [s]: back to back, and with the modules of a model around it.
LAUNCH_S, MODULE_S = (5e-6, 45e-6), (8e-6, 120e-6)
#: A call through a compiler's guards or a framework's hooks [s].
WRAPPED_S = 120e-6
#: Kernels that take longer on average hide the launches [s].
HIDES_S = 20e-6
#: Host time of a step that cuts a piece off, runs one operator and keeps the result [s].
PIECE_S = (9e-6, 45e-6)
#: Nobody waits for more pieces than this.
MOST_PIECES = 2048
#: A step that ends with a read-back: launches, wait and the way back [s].
READ_BACK_S = (20e-6, 130e-6)
#: Host copies through pageable memory: allocated anew, and at best [B/s].
COPY_RATES = (1.2e9, 14e9)
#: A server's processor [FLOP/s, B/s]: least and most.
PROCESSOR = ((0.2e12, 2e12), (5e9, 100e9))


def _steps(meant: Meant) -> int:
    """Launches when every operator is one."""
    return int(meant.estimate(unfuse(meant.plain), mode="graph").launches)


def _launches(meant: Meant) -> Span | None:
    launches, listed = _steps(meant), is_listed(meant.graph)
    if meant.mode == "graph" or launches < 10 or meant.attainable > launches * (HIDES_S if listed else MODULE_S[1]):
        return None
    low, high = LAUNCH_S if listed else MODULE_S
    return launches * low, launches * high


def _not_replayed(meant: Meant) -> Span | None:
    """Said to be a replayed graph, and launched one by one all the same."""
    return _launches(replace(meant, mode="eager")) if meant.mode == "graph" else None


def _wrapped(meant: Meant) -> Span | None:
    """One short kernel behind a call with guards, hooks and wrappers."""
    launches = _steps(meant)
    if meant.mode == "graph" or launches >= 10 or meant.attainable > launches * WRAPPED_S:
        return None
    return _around(meant, launches * LAUNCH_S[0], launches * WRAPPED_S)


def _in_pieces(meant: Meant) -> Span | None:
    """One operator called row by row, or entry by entry of its batch."""
    rows = [row for row in meant.reference.rows if row.kernel.kind in ("matmul", "rowwise", "attention", "conv")]
    if meant.mode == "graph" or meant.reference.launches > 4 or not rows:
        return None
    pieces = max(meant.shapes(row)[0][0] for row in rows)
    return (pieces * PIECE_S[0], pieces * PIECE_S[1]) if 16 <= pieces <= MOST_PIECES else None


def _read_backs(meant: Meant) -> Span | None:
    launches = _steps(meant)
    if meant.mode == "graph" or not is_listed(meant.graph) or not 5 <= launches <= 1000:
        return None
    return _around(meant, launches * READ_BACK_S[0], launches * READ_BACK_S[1])


def _edges(meant: Meant) -> tuple[float, float]:
    """Bytes that enter and leave the program."""
    last = meant.reference.rows[-1]
    return float(meant.reference.memory.inputs), float(last.write) * last.kernel.count


def _host_copies(meant: Meant) -> Span | None:
    inputs, outputs = _edges(meant)
    if meant.mode == "graph" or any(row.kernel.kind == "transfer" for row in meant.reference.rows):
        return None
    slow, fast = COPY_RATES
    return _around(meant, max(min(inputs, outputs), 1e4) / fast, max(inputs + outputs, 1e4) / slow)


def _pageable(meant: Meant) -> Span | None:
    """Copies that were meant, through memory that is not pinned."""
    copies = [row for row in meant.reference.rows if row.kernel.kind == "transfer"]
    moved = sum(row.kernel.count * float(row.read) for row in copies)
    return (moved / COPY_RATES[1], moved / COPY_RATES[0]) if copies else None


def _processor(meant: Meant) -> Span | None:
    """All of it on the host."""
    if meant.mode == "graph":
        return None
    (least, most), (narrow, wide) = PROCESSOR
    flops, moved = float(meant.reference.flops), float(meant.reference.bytes)
    return flops / most + moved / wide, flops / least + moved / narrow


def _processor_fp32(meant: Meant) -> Span | None:
    """Programs in fp32 end up on the processor more often: it is the default of both."""
    wide = {t.dtype for t in meant.graph.tensors.values()} <= {"fp32", "int64", "bool"}
    return _processor(meant) if wide else None


def _host(meant: Meant) -> Span | None:
    """Loading and preparing data between steps."""
    return _around(meant, 2.5e-3, 3e-2) if meant.mode != "graph" else None


def _clocks(meant: Meant) -> Span | None:
    """The chip runs slower than its boost: power, heat, neighbours."""
    device = zip(meant.reference.rows, meant.reference.times[0], strict=True)
    computing = sum(row.kernel.count * float(time.expected) for row, time in device if int(time.bound) == COMPUTE)
    return (1.15 * meant.attainable, 2 * meant.attainable) if computing > meant.attainable / 2 else None


def _ill_suited(meant: Meant) -> Span | None:
    """A library's kernel for other shapes than this one."""
    products = [row for row in meant.reference.rows if row.flops_by]
    return (3 * meant.attainable, 50 * meant.attainable) if products else None


def _skinny(meant: Meant) -> Span | None:
    """A few rows against a large matrix, for which libraries have kernels of their own, or have not."""
    products = [row for row in meant.reference.rows if row.flops_by]
    few = [row for row in products if row.kernel.kind == "matmul" and prod(meant.shapes(row)[0][:-1]) <= SKINNY]
    return _ill_suited(meant) if few and len(few) == len(products) else None


def _weights_again(meant: Meant) -> Span | None:
    """A batch in pieces, each of which reads all weights."""
    rows = [row for row in meant.reference.rows if row.kernel.kind == "matmul"]
    return (2 * meant.attainable, 30 * meant.attainable) if rows else None


def _network(meant: Meant) -> Span | None:
    devices = [row for row in meant.reference.rows if row.kernel.kind == "network"]
    return (1.2 * meant.attainable, 10 * meant.attainable) if devices else None


#: Every cause with its question and how often it is the answer.
SUSPECTS: tuple[Suspect, ...] = (
    Suspect("unfused", "Does each step of a chain run as a kernel of its own?", 2.0, _unfused),
    Suspect("unfused", "Is an operator written out by hand as a chain of simple ones?", 1.5, _by_hand),
    Suspect("materialised", "Are attention scores written out?", 3.0, _materialised),
    Suspect("precision", "Do contractions run in fp32 without tf32?", 4.0, _in_format("fp32", given=True)),
    Suspect("precision", "Do contractions run in fp64?", 4.0, _in_format("fp64", given=True)),
    Suspect("precision", "Are operands cast to fp32 before they are multiplied?", 0.2, _in_format("fp32", given=False)),
    Suspect("precision", "Are operands cast to fp64 before they are multiplied?", 0.1, _in_format("fp64", given=False)),
    Suspect("alignment", "Are rows of operands no multiple of 8 elements?", 6.0, _unaligned),
    Suspect("host_copy", "Do inputs or outputs cross the host link in every step?", 1.0, _host_copies),
    Suspect("host_copy", "Is the memory of the host pageable?", 3.0, _pageable),
    Suspect("launch_bound", "Does the device wait for one launch after the other?", 2.0, _launches),
    Suspect("launch_bound", "Was the CUDA graph not replayed, but each kernel launched?", 0.5, _not_replayed),
    Suspect("launch_bound", "Does the call cost the host more than its kernel takes?", 1.0, _wrapped),
    Suspect("launch_bound", "Is one operator called piece by piece in a Python loop?", 0.8, _in_pieces),
    Suspect("sync", "Is a result read back in every step?", 1.2, _read_backs),
    Suspect("host_bound", "Does the device wait for data that the host prepares?", 1.0, _host),
    Suspect("wasted_work", "Is a lookup computed as a product with a one-hot matrix?", 2.0, _one_hot),
    Suspect("wasted_work", "Is more computed than was asked for?", 0.5, _more_work),
    Suspect("layout_copy", "Do tensors change their layout between operators?", 0.3, _layout),
    Suspect("layout_copy", "Do images change their layout between convolutions?", 1.0, _layout_of_images),
    Suspect("uncoalesced", "Are single elements or short rows read from anywhere?", 3.0, _scattered),
    Suspect("uncoalesced", "Do kernels read across the rows?", 0.5, _strided),
    Suspect("reallocation", "Is the cache grown by concatenation?", 1.5, _grown),
    Suspect("reallocation", "Is a tensor grown by copying it?", 2.0, _grown_copies),
    Suspect("wrong_device", "Does it run on the processor?", 0.5, _processor),
    Suspect("wrong_device", "Does it run on the processor, where fp32 is the default?", 2.0, _processor_fp32),
    Suspect("clock_or_power", "Does the chip run below its clocks?", 0.15, _clocks),
    Suspect("small_batch", "Is a batch cut into pieces that read all weights each?", 0.2, _weights_again),
    Suspect("kernel_choice", "Was a kernel chosen that does not suit the shape?", 0.2, _ill_suited),
    Suspect("kernel_choice", "Is there no kernel for so few rows?", 0.6, _skinny),
    Suspect("communication", "Do devices wait for each other?", 1.0, _network),
)
