"""The verdict on a measured time: impossible, as expected, slow or very slow, with causes as counterfactuals.

A cause is a change of the program or of how it runs ("attention was materialised", "it ran in fp32"). Its estimate,
less the expected time, is what it would explain. Advice is the same read the other way: changes that save time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite, log
from typing import Any

from roofline.chip import Chip
from roofline.count import KernelCount, Scope, nbytes, unknown_operations
from roofline.data import chip as find_chip
from roofline.dtypes import DTYPES
from roofline.efficiency import COMPUTE, HOST_HIGH
from roofline.errors import MissingFigure, RooflineError, UsageError
from roofline.estimate import Estimate, Mode, estimate
from roofline.graph import Graph
from roofline.ops import OPS, node_work
from roofline.passes import retype, unfuse
from roofline.sizes import evaluate
from roofline.units import format_si, parse

#: From here on a time is very slow.
VERY_SLOW = 10.0
#: A strided or transposing kernel against a plain copy of the same bytes, measured on an H100 (measurements/h100-sxm:
#: transpose_copy against copy).
STRIDED_SLOWDOWN = 6.0
#: Pageable host copies reach a fraction of the link (measurements/h100-sxm/transfers_and_launches.csv: 7.2 of 64 GB/s).
PAGEABLE_SHARE = 0.11


@dataclass(frozen=True, slots=True)
class Cause:
    """What may have made it slow.

    Attributes:
        label: The question in a word.
        question: The question.
        explains_s: Time it would add to the expected [s].
        time_s: What the program would take with it [s].
        fix: What to do.
    """

    label: str
    question: str
    explains_s: float
    time_s: float
    fix: str


@dataclass(frozen=True, slots=True)
class Advice:
    """A change, what the program would take with it and what that saves [s]."""

    change: str
    time_s: float
    saves_s: float


@dataclass(frozen=True, repr=False)
class Verdict:
    """The answer to "does my time make sense?".

    Attributes:
        verdict: ``impossible``, ``as_expected``, ``slow`` or ``very_slow``.
        reason: Why, in one sentence.
        measured: The measured time [s].
        ratio: Measured over expected.
        impossible_below: No run of this program on this chip takes less [s].
        estimate: What was expected.
        causes: What may have made it slow, nearest to the measured time first.
        advice: What would make it faster, most saving first.
    """

    verdict: str
    reason: str
    measured: float
    ratio: float
    impossible_below: float
    estimate: Estimate
    causes: tuple[Cause, ...]
    advice: tuple[Advice, ...]

    @property
    def ok(self) -> bool:
        """Whether the time is as expected."""
        return self.verdict == "as_expected"

    def record(self) -> dict[str, Any]:
        """The stable keys of ``roofline check --json``."""
        return {
            **self.estimate.records()[0],
            "verdict": self.verdict,
            "reason": self.reason,
            "ratio": self.ratio,
            "measured_s": self.measured,
            "impossible_below_s": self.impossible_below,
            "causes": [
                {
                    "label": c.label,
                    "question": c.question,
                    "explains_s": c.explains_s,
                    "time_s": c.time_s,
                    "fix": c.fix,
                }
                for c in self.causes
            ],
            "advice": [{"change": a.change, "time_s": a.time_s, "saves_s": a.saves_s} for a in self.advice],
        }

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}"

    def __repr__(self) -> str:
        return f"<Verdict {self}>"


def check(
    graph: Graph,
    chip: str | Chip,
    measured: str | float,
    *,
    mode: Mode = "eager",
    tf32: bool = False,
    **sizes: Any,
) -> Verdict:
    """Judge a measured time.

    Args:
        graph: The program that was meant to run.
        chip: Where it ran.
        measured: The time of one run, such as ``"41 ms"`` or seconds.
        mode: How it ran.
        tf32: Whether fp32 contractions used tf32.
        sizes: ``B``, ``S``, ``C`` as single numbers.

    Raises:
        UsageError: A time that is not above zero, or sizes that span axes.

    Example:
        >>> import roofline as rl
        >>> decode = rl.model("llama-3-8b", phase="decode")
        >>> rl.check(decode, "h100-sxm", "1 ms", B=1, S=2048).verdict
        'impossible'
    """
    seconds = parse(measured, "s")
    if not seconds > 0:
        raise UsageError(f"measured={measured!r}: a time is above zero")
    expected = estimate(graph, find_chip(chip), mode=mode, tf32=tf32, **sizes)
    if expected.shape:
        raise UsageError("a measured time belongs to one point; give single numbers for B, S and C")
    return _judge(graph, expected, seconds)


def _judge(graph: Graph, expected: Estimate, seconds: float) -> Verdict:
    bottom = speed_limit(expected)
    ratio = seconds / expected.time
    verdict, reason = _verdict(expected, seconds, bottom)
    slow = verdict in ("slow", "very_slow")
    causes = _causes(graph, expected, seconds) if slow else ()
    if causes and not any(abs(log(cause.time_s / seconds)) <= log(EXPLAINS) for cause in causes):
        reason += "; none of the causes below explains it alone"
    if missing := unknown_operations(expected.graph):
        reason += f"; expected without the arithmetic of {', '.join(missing)}, which no rule translates"
    return Verdict(
        verdict=verdict,
        reason=reason,
        measured=seconds,
        ratio=ratio,
        impossible_below=bottom,
        estimate=expected,
        causes=causes,
        advice=_advice(graph, expected) if verdict != "impossible" else (),
    )


def speed_limit(expected: Estimate) -> float:
    """The least time of any run of the program [s].

    The larger of two sums, with the chip's own slack for clocks above the listed boost. Of its kernels one after the
    other: each takes its contractions at the datasheet peak, its traffic through the last-level cache, or what that
    cache can neither hold before nor keep after, from main memory, and never less than :data:`LAUNCH_LIMIT`. Of the
    program as a whole: all contractions, and what must come from main memory. A compiler may fuse further than the
    graph says, so in mode ``compiled`` only the whole counts.
    """
    chip = expected.chip
    kept = max((level.capacity or 0.0 for level in chip.memory[1:]), default=0.0)
    compute = [row.kernel.count * _least_compute(row, expected) for row in expected.rows]
    moved = max(_compulsory_bytes(expected) - kept, 0.0)
    whole = max(sum(compute), moved / chip.bandwidth)
    if expected.mode == "compiled":
        return float(whole / chip.clock_slack)
    each = sum(
        row.kernel.count * max(least / row.kernel.count, _least_traffic(row, chip, kept), LAUNCH_LIMIT)
        for row, least in zip(expected.rows, compute, strict=True)
    )
    return float(max(whole, each) / chip.clock_slack)


#: No kernel ends sooner after the one before it; the smallest ones measured take 1.1 us (h100-sxm/ops.csv).
LAUNCH_LIMIT = 0.5e-6


def _least_traffic(row: KernelCount, chip: Chip, kept: float) -> float:
    """Time of what must cross the cache, and of what it cannot keep, in one launch [s]; 0 where no cache is known."""
    level = chip.cache
    if level is None:
        return 0.0
    near = float(row.bytes) / level.bandwidth if level.bandwidth else 0.0
    return max(near, max(float(row.bytes) - 2 * kept, 0.0) / chip.bandwidth)


#: Multiplications of a 3x3 convolution that Winograd's F(4x4, 3x3) leaves (Lavin and Gray 2015): 36 for 144.
WINOGRAD = 1 / 4


def _least_compute(row: KernelCount, expected: Estimate) -> float:
    """Contractions of one launch by the fastest known algorithm, in the fastest format that its operands allow [s]."""
    if not row.flops_by:
        return 0.0
    rates = [expected.chip.matmul_peak(dtype, tf32=expected.tf32) for dtype in row.flops_by]
    stored = {DTYPES[tensor].compute for tensor in _operand_formats(row, expected)}
    for dtype in stored - {None}:
        try:
            rates.append(expected.chip.matmul_peak(str(dtype), tf32=expected.tf32))
        except MissingFigure:
            continue
    return float(row.flops) * _least_share(row) / max(rates)


def _operand_formats(row: KernelCount, expected: Estimate) -> set[str]:
    return {expected.graph.tensors[name].dtype for name in row.kernel.main.inputs}


def _least_share(row: KernelCount) -> float:
    """Share of the direct algorithm's contractions that the fastest known algorithm needs."""
    kernel = row.kernel
    options = {"stride": 1, "dilation": 1, **dict(kernel.main.attrs)}
    winograd = (
        kernel.main.op == "conv2d"
        and tuple(kernel.shapes[1][2:]) == (3, 3)
        and options["stride"] in (1, (1, 1))
        and options["dilation"] in (1, (1, 1))
    )
    return WINOGRAD if winograd else 1.0


def _compulsory_bytes(expected: Estimate) -> float:
    """Bytes of the program's sources that some node reads, each once: of a table only the rows asked for."""
    scope, sizes = Scope(expected.graph), expected.grid.sizes
    most: dict[str, float] = {}
    for node in expected.graph.nodes:
        if OPS[node.op].kind == "view":
            continue
        reads = node_work(node, scope.shapes(node)).reads
        for position, name in enumerate(node.inputs):
            source = scope.tensors[scope.root(name)]
            if source.kind != "activation":
                elements = evaluate(reads.get(position, scope.tensors[name].numel), sizes)
                most[source.name] = max(most.get(source.name, 0.0), float(elements))
    whole = {name: float(evaluate(scope.tensors[name].numel, sizes)) for name in most}
    return float(sum(nbytes(scope.tensors[name], min(read, whole[name])) for name, read in most.items()))


def _verdict(expected: Estimate, seconds: float, bottom: float) -> tuple[str, str]:
    time, low, high = (format_si(value, "s") for value in (expected.time, expected.low, expected.high))
    given = format_si(seconds, "s")
    if seconds < bottom:
        limit = format_si(bottom, "s")
        return "impossible", (
            f"{given} is less than {limit}, the least that {expected.graph.name} can take on {expected.chip.name}: "
            "look for a missing synchronise, another size or format than said, or work that was cached or skipped"
        )
    if seconds <= expected.high:
        ease = "" if seconds >= expected.low else ", faster than the range but possible: check size and format"
        return (
            "as_expected",
            f"{given} against {time} expected ({low} to {high}){ease}; {expected.bound}-bound",
        )
    ratio = seconds / expected.time
    word = "very_slow" if ratio >= VERY_SLOW else "slow"
    return word, f"{given} is {ratio:.3g} times the {time} expected ({low} to {high})"


# --- causes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A row of the table of causes: the estimate of a counterfactual, or ``None`` where it cannot be."""

    label: str
    question: str
    fix: str
    time: Callable[[Graph, Estimate], float | None]


def _again(
    graph: Graph, expected: Estimate, mode: str | None = None, tf32: bool | None = None, **sizes: int
) -> Estimate:
    """The same estimate with something changed."""
    return estimate(
        graph,
        expected.chip,
        mode=mode or expected.mode,  # type: ignore[arg-type]
        tf32=expected.tf32 if tf32 is None else tf32,
        reserve=expected.reserve,
        **{**expected.grid.values, **sizes},
    )


def _if_eager(graph: Graph, expected: Estimate) -> float | None:
    eager = _again(graph, expected, mode="eager")
    return float(max(eager.device_time, eager.host_time * HOST_HIGH))


def _if_unfused(graph: Graph, expected: Estimate) -> float | None:
    if not any(len(row.kernel.nodes) > 1 for row in expected.rows):
        return None
    return float(_again(unfuse(graph), expected, mode="eager" if expected.mode == "eager" else "graph").time)


def _if_copied(graph: Graph, expected: Estimate) -> float | None:
    link = next((link for link in expected.chip.links if link.kind == "host"), None)
    if link is None:
        return None
    outputs = sum(float(row.write) for row in expected.rows[-1:])
    moved = float(expected.memory.inputs) + outputs
    return float(expected.time) + moved / (link.bandwidth * PAGEABLE_SHARE)


def _if_strided(graph: Graph, expected: Estimate) -> float | None:
    extra = 0.0
    for row, time in zip(expected.rows, expected.times[0], strict=True):
        if row.kernel.kind in ("pointwise", "rowwise", "reduction", "move"):
            extra += row.kernel.count * float(time.memory) * (STRIDED_SLOWDOWN - 1)
    return float(expected.time) + extra if extra else None


def _if_fp32(graph: Graph, expected: Estimate) -> float | None:
    formats = {dtype for row in expected.rows for dtype in row.flops_by}
    if not formats - {"fp32", "fp64"}:
        return None
    return float(_again(retype(graph, "fp32", compute="fp32"), expected, tf32=False).time)


#: The questions of inefficiency, each with the time that the program would take if the answer were the bad one.
SUSPECTS: tuple[_Suspect, ...] = (
    _Suspect("not compiled", "Is it compiled, or is every op launched by a busy host?",
             "replay it as a CUDA graph or compile it, so that the host no longer launches each kernel", _if_eager),
    _Suspect("host copies", "Do inputs or outputs cross the host link in every step?",
             "keep tensors on the device; pin host memory and overlap the copies", _if_copied),
    _Suspect("not vectorised", "Do elementwise kernels run strided or not vectorised?",
             "make operands contiguous and aligned; fuse elementwise chains", _if_strided),
    _Suspect("materialised", "Are intermediates, such as attention scores, written out?",
             "use a fused attention kernel and fuse epilogues", _if_unfused),
    _Suspect("precision", "Did it run in fp32 without tf32?",
             "cast to the intended format, or allow tf32", _if_fp32),
)  # fmt: skip


def _causes(graph: Graph, expected: Estimate, seconds: float) -> tuple[Cause, ...]:
    """Every question with what it would explain; what this program cannot suffer from explains nothing."""
    found = []
    for suspect in SUSPECTS:
        time = _or_none(suspect.time, graph, expected)
        worse = max(time, expected.time) if time is not None and isfinite(time) else expected.time
        found.append(Cause(suspect.label, suspect.question, worse - expected.time, worse, suspect.fix))
    return tuple(sorted(found, key=lambda cause: _distance(cause.time_s, seconds)))


#: A cause whose time is within this factor of the measured one may be all of it.
EXPLAINS = 1.5


def _distance(time: float, seconds: float) -> float:
    """How far a cause is from the measured time; causes that explain too little keep the order of the questions."""
    off = abs(log(time / seconds))
    return off if off <= log(EXPLAINS) else float(log(EXPLAINS)) + 1.0


def _or_none(function: Callable[[Graph, Estimate], float | None], graph: Graph, expected: Estimate) -> float | None:
    try:
        return function(graph, expected)
    except RooflineError:
        # A counterfactual that the chip cannot run (no fp32 rate, say) explains nothing and saves nothing.
        return None


# --- advice ---------------------------------------------------------------------------------------------------------

#: Formats to store in, from wide to narrow.
_NARROWER: tuple[dict[str, str], ...] = (
    {"dtype": "bf16"},
    {"weights": "int8", "cache": "int8"},
    {"weights": "int4-g128", "cache": "int8"},
)


def _advice(graph: Graph, expected: Estimate) -> tuple[Advice, ...]:
    options = [*_run_options(graph, expected), *_narrower(graph, expected)]
    if expected.bound == "compute":
        options += [*_smaller_batch(graph, expected), _less_work(expected)]
    useful = [
        Advice(what, time, expected.time - time)
        for what, time in options
        if time is not None and time < 0.99 * expected.time
    ]
    return tuple(sorted(useful, key=lambda advice: -advice.saves_s))


def _run_options(graph: Graph, expected: Estimate) -> Iterable[tuple[str, float | None]]:
    if expected.mode == "eager":
        yield "replay as a CUDA graph", float(_again(graph, expected, mode="graph").time)
    if expected.mode != "compiled":
        yield "compile: fuse elementwise chains", float(_again(graph, expected, mode="compiled").time)
    if not expected.tf32 and any("fp32" in row.flops_by for row in expected.rows):
        yield "allow tf32 for fp32 contractions", _or_none(_with_tf32, graph, expected)


def _with_tf32(graph: Graph, expected: Estimate) -> float:
    return float(_again(graph, expected, tf32=True).time)


def _plain_time(graph: Graph, expected: Estimate) -> float:
    return float(_again(graph, expected).time)


def _narrower(graph: Graph, expected: Estimate) -> Iterable[tuple[str, float | None]]:
    for change in _NARROWER:
        smaller = retype(graph, **change)
        if _stored_bits(smaller) < _stored_bits(graph):
            parts = (f"{part.replace('dtype', 'everything')} in {name}" for part, name in change.items())
            yield ", ".join(parts), _or_none(_plain_time, smaller, expected)


def _stored_bits(graph: Graph) -> float:
    return sum(float(DTYPES[t.dtype].bits_per_element) for t in graph.tensors.values() if t.kind in ("weight", "cache"))


def _smaller_batch(graph: Graph, expected: Estimate) -> Iterable[tuple[str, float]]:
    batch = expected.grid.values.get("B")
    if isinstance(batch, int) and batch > 1:
        halved = _again(graph, expected, B=batch // 2)
        yield f"batch {batch // 2} for latency (throughput is saturated)", float(halved.time)


def _less_work(expected: Estimate) -> tuple[str, float]:
    """Half the contractions: what pruning whole channels or distilling to half the size would save."""
    halved = sum(
        row.kernel.count * float(time.expected) / 2
        for row, time in zip(expected.rows, expected.times[0], strict=True)
        if int(time.bound) == COMPUTE and OPS[row.kernel.main.op].kind != "pointwise"
    )
    return "prune whole channels, or distil, to half the contractions", float(expected.time) - halved
