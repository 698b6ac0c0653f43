"""Notes on expected behaviour: what looks wrong and is not, a sentence each, with its number.

A note is a function that looks at a program, its chip and the measured time, and either has something to say or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor

from roofline.cost import BOUNDS, KernelTime, uses_tf32
from roofline.counting.counts import KernelCount, nbytes
from roofline.diagnosis.reference import Reference, possible_in
from roofline.ir.errors import MissingFigure
from roofline.ir.sizes import evaluate
from roofline.ir.units import format_si
from roofline.traces.formats.quantities import plural

#: A share of the memory's bandwidth, or of a link's, from which a run is at its limit.
BANDWIDTH_REACHED = 0.5
#: A share of the peak from which a run is at the roof.
PEAK_REACHED = 0.85
#: A share of a peak up to which clocks, or caches, explain that it is above 1.
ABOVE = 1.05
#: An MFU from which nobody asks.
HIGH_MFU = 0.5
#: A share of the weights read, or of the time, that is worth a sentence.
MUCH = 0.1
#: A step that takes longer may be several: of training, of a loop [s].
LONG_STEP = 5e-3
#: Runs that one reported step is made of, at most.
MAX_RUNS = 64


@dataclass(frozen=True)
class Observation:
    """A program, its chip and the measured time, with the figures that notes share.

    Attributes:
        reference: The program as it is expected to run.
        seconds: The measured time [s].
    """

    reference: Reference
    seconds: float

    @cached_property
    def rows(self) -> list[tuple[KernelCount, KernelTime]]:
        """Distinct kernels of the device alone, with their times."""
        ideal = self.reference.ideal
        return list(zip(ideal.rows, ideal.times[0], strict=True))

    @cached_property
    def bound(self) -> str:
        """The bound of most of the device's time."""
        return str(self.reference.ideal.bound)

    @property
    def as_expected(self) -> bool:
        """True if it is no slower than expected."""
        return self.seconds <= float(self.reference.expected.high)

    @cached_property
    def mfu(self) -> float:
        """Contractions at the peak of their format over the measured time."""
        return self.reference.at_peak / self.seconds

    @cached_property
    def dtype(self) -> str:
        """The format of most contractions, as they run; empty where there is none."""
        total: dict[str, float] = {}
        for row in self.reference.expected.rows:
            tf32 = self.reference.has_tf32 and uses_tf32(row, self.reference.chip, self.reference.tf32)
            for dtype, flops in row.flops_by.items():
                name = "tf32" if tf32 and dtype == "fp32" else dtype
                total[name] = total.get(name, 0.0) + row.kernel.count * float(flops)
        return max(total, key=lambda dtype: total[dtype]) if total else ""

    @property
    def intensity(self) -> float:
        """Contractions over traffic [FLOP/byte]."""
        return float(self.reference.ideal.intensity)

    @property
    def ridge(self) -> float:
        """Intensity where the roofs of that format meet [FLOP/byte]."""
        return self.reference.chip.ridge(self.dtype, tf32=self.dtype == "tf32")

    @property
    def peak(self) -> float:
        """The peak of that format [FLOP/s]."""
        return self.reference.chip.matmul_peak(self.dtype, tf32=self.dtype == "tf32")


Note = Callable[[Observation], str | None]


def normal(reference: Reference, seconds: float) -> tuple[str, ...]:
    """Say what looks wrong and is not.

    Args:
        reference: The program as it is expected to run, and where it ran.
        seconds: The measured time [s].

    Example:
        >>> import roofline as rl
        >>> gemm = rl.workload([{"op": "gemm", "m": 8192, "n": 8192, "k": 8192}], dtype="bf16")
        >>> print(*normal(Reference(gemm, rl.chip("h100-sxm"), "graph", False, {}), 1.2e-3), sep="\\n")
        at the roof: 93% of the 989 TFLOP/s that bf16 has on h100-sxm; only a faster format helps (fp8: 1.98 PFLOP/s)
        compute-bound (2.73e+03 FLOP/byte, ridge 295): a bigger batch takes longer in proportion
    """
    run = Observation(reference, seconds)
    return tuple(sentence for note in NOTES if (sentence := note(run)))


# --- memory ---


def _bandwidth(run: Observation) -> str | None:
    """Note a run that moves what it must at the memory's rate."""
    chip, moved = run.reference.chip, float(run.reference.ideal.bytes)
    reached = moved / chip.bandwidth / run.seconds
    if run.bound != "memory" or not BANDWIDTH_REACHED <= reached <= ABOVE:
        return None
    return (
        f"memory-bound: {format_si(moved, 'B')} cross the memory of {chip.name}, at least "
        f"{format_si(moved / chip.bandwidth, 's')} at {format_si(chip.bandwidth, 'B/s')}; this run reaches "
        f"{reached:.0%}, and twice as fast would need {format_si(2 * moved / run.seconds, 'B/s')}: "
        "only fewer bytes help (narrower weights, a bigger batch for the same weights)"
    )


def _experts(run: Observation) -> str | None:
    """Note that of a mixture of experts only those are read that a token picked."""
    ideal = run.reference.ideal
    stored = read = 0.0
    for row, _ in run.rows:
        if row.kernel.main.op in ("moe", "expert_linear"):
            tensors = (ideal.graph.tensors[name] for name in row.kernel.main.inputs)
            whole = sum(evaluate(nbytes(tensor), ideal.grid.sizes) for tensor in tensors if tensor.kind == "weight")
            stored += row.kernel.count * float(whole)
            read += row.kernel.count * min(float(row.read), float(whole))
    if read > (1 - MUCH) * stored or not stored:
        return None
    return (
        f"only experts that a token picked are read: {format_si(read, 'B')} of {format_si(stored, 'B')} per run, "
        "so the time may be less than reading all weights takes"
    )


def _low_intensity(run: Observation) -> str | None:
    """Note convolutions, depthwise ones above all, that do little with each byte: FLOPs do not predict their time."""
    chip, tf32 = run.reference.chip, bool(run.reference.ideal.tf32)
    moved = flops = computed = 0.0
    for row in (row for row, _ in run.rows if row.kernel.kind == "conv"):
        at_peak = sum(float(part) / chip.matmul_peak(dtype, tf32=tf32) for dtype, part in row.flops_by.items())
        if float(row.bytes) / chip.bandwidth > at_peak:
            moved += row.kernel.count * float(row.bytes)
            flops += row.kernel.count * float(row.flops)
            computed += row.kernel.count * at_peak
    if not moved or moved / chip.bandwidth < MUCH * run.seconds:
        return None
    return (
        f"convolutions of {flops / moved:.3g} FLOP/byte, under the ridge of {flops / computed / chip.bandwidth:.3g}, "
        f"are memory-bound: {format_si(moved / chip.bandwidth, 's')} of traffic for {format_si(computed, 's')} of "
        "arithmetic: fewer FLOPs are no less time"
    )


# --- arithmetic ---


def _no_units(run: Observation) -> str | None:
    """Note a format that the chip runs by the units of another one."""
    chip = run.reference.chip
    for dtype in sorted(run.reference.contracts_in & chip.fallback.keys()):
        runs_as = chip.fallback[dtype].runs_as
        better = [name for name in ("bf16", "fp16") if name not in chip.fallback and name in chip.matrix]
        advice = "".join(f"; {name} has ({format_si(chip.matmul_peak(name), 'FLOP/s')})" for name in better[:1])
        return (
            f"{dtype} has no units on {chip.name}: it runs as {runs_as} and is no faster than its "
            f"{format_si(chip.matmul_peak(dtype), 'FLOP/s')}{advice}"
        )
    return None


def _roof(run: Observation) -> str | None:
    """Note contractions at the peak of their format: the hardware does all it can in it."""
    if not run.dtype or not PEAK_REACHED <= run.mfu <= ABOVE:
        return None
    rate, where = format_si(run.peak, "FLOP/s"), run.reference.chip.name
    return f"at the roof: {run.mfu:.0%} of the {rate} that {run.dtype} has on {where}{_faster(run)}"


def _faster(run: Observation) -> str:
    """Name the next faster format."""
    chip = run.reference.chip
    for name in ("tf32", "bf16", "fp16", "fp8"):
        try:
            peak = chip.matmul_peak(name, tf32=name == "tf32")
        except MissingFigure:
            continue
        if peak > 1.2 * run.peak and name not in chip.fallback:
            return f"; only a faster format helps ({name}: {format_si(peak, 'FLOP/s')})"
    return "; no format is faster"


def _below_peak(run: Observation) -> str | None:
    """Note a time that the direct algorithm cannot reach, though some algorithm or format could."""
    if run.mfu <= ABOVE:
        return None
    reference = run.reference
    where = possible_in(reference, run.seconds)
    options = filter(None, (where, "an algorithm with fewer multiplications, or another program than said"))
    return (
        f"{format_si(run.seconds, 's')} is less than the {format_si(reference.at_peak, 's')} that its "
        f"{format_si(float(reference.expected.flops), 'FLOP')} take at the peak of {run.dtype} "
        f"({format_si(run.peak, 'FLOP/s')}): {'; or '.join(options)}"
    )


def _batch(run: Observation) -> str | None:
    """Note that past the ridge throughput does not grow with the batch."""
    if run.bound != "compute" or not run.dtype or not run.as_expected or run.intensity < run.ridge:
        return None
    figures = f"{run.intensity:.3g} FLOP/byte, ridge {run.ridge:.3g}"
    return f"compute-bound ({figures}): a bigger batch takes longer in proportion"


def _low_mfu(run: Observation) -> str | None:
    """Note a low MFU with its reason."""
    if not run.dtype or not run.as_expected or run.mfu >= HIGH_MFU:
        return None
    expected, total = run.reference.expected, float(run.reference.ideal.device_time)
    why = _WHY_LOW[str(expected.bound)](run)
    other = sum(row.kernel.count * float(time.expected) for row, time in run.rows if not row.flops_by)
    share = f"; {other / total:.0%} of the time goes to kernels without matmuls" if other > MUCH * total else ""
    return f"an MFU of {run.mfu:.1%} is normal here ({float(expected.mfu):.1%} expected): {why}{share}"


def _memory_bound(run: Observation) -> str:
    if run.intensity < run.ridge:
        return f"memory-bound, {run.intensity:.3g} FLOP/byte where the ridge of {run.dtype} is {run.ridge:.3g}"
    return "most of its time goes to kernels that are memory-bound"


def _launches(run: Observation) -> str:
    launches = run.reference.expected.launches
    each = format_si(float(run.reference.ideal.device_time) / launches, "s")
    return f"{plural(launches, 'kernel')} of {each} on average, too short to hide what a launch costs"


#: Why the MFU is low, by what the program is bound by.
_WHY_LOW: dict[str, Callable[[Observation], str]] = {
    "compute": lambda run: "by the efficiencies of matmuls of this size that the chip file has",
    "memory": _memory_bound,
    "communication": lambda run: "most of its time it waits for a link",
    "launch": _launches,
    "host": _launches,
}
assert set(_WHY_LOW) == set(BOUNDS)


# --- links, and several runs in one ---


def _link(run: Observation) -> str | None:
    """Note copies and collectives at the rate of the link."""
    moving = [(row, time) for row, time in run.rows if row.kernel.kind in ("transfer", "network")]
    floor = sum(row.kernel.count * float(time.floor) for row, time in moving)
    reached = floor / run.seconds
    if run.bound != "communication" or not BANDWIDTH_REACHED <= reached <= ABOVE:
        return None
    return (
        f"bound by the link: at its rate {format_si(floor, 's')} at least, this run reaches {reached:.0%}; only fewer "
        "bytes help (uint8 images are a quarter of fp32), or overlapping it with compute"
    )


def _runs(run: Observation) -> str | None:
    """Note a reported step that is several runs: micro-batches whose gradients are accumulated, a loop."""
    expected = run.reference.expected
    runs = round(min(run.seconds / float(expected.time), MAX_RUNS + 1))
    long = float(expected.device_time) >= LONG_STEP
    if run.as_expected or not long or not 2 <= runs <= MAX_RUNS:
        return None
    if not float(expected.low) <= run.seconds / runs <= float(expected.high):
        return None
    # The time alone does not tell the number where the range of one run allows several.
    numbers = (ceil(run.seconds / float(expected.high)), min(floor(run.seconds / float(expected.low)), MAX_RUNS))
    each = [format_si(run.seconds / number, "s") for number in reversed(numbers)]
    rate = [f"{run.mfu * number:.0%}" for number in numbers]
    return (
        f"if the reported step is {_span(map(str, numbers))} runs of this program (accumulated micro-batches, a loop), "
        f"each takes {_span(each)}, as expected, at an MFU of {_span(rate)}"
    )


def _span(ends: Iterable[str]) -> str:
    """Write two ends of a range, or what they share."""
    return " to ".join(dict.fromkeys(ends))


#: The most telling first.
NOTES: tuple[Note, ...] = (
    _below_peak, _no_units, _experts, _bandwidth, _link, _roof, _batch, _low_intensity, _low_mfu, _runs,
)  # fmt: skip
