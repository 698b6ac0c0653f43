"""What looks wrong and is not: a sentence each, with its number.

A row of the table is a function that looks at a program, its chip and the measured time, and either has something to
say or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from roofline.cost import BOUNDS, KernelTime
from roofline.counting.counts import KernelCount, nbytes
from roofline.diagnosis.precision import at_peak, possible_in
from roofline.diagnosis.reference import Meant
from roofline.ir.errors import MissingFigure
from roofline.ir.sizes import evaluate
from roofline.ir.units import format_si
from roofline.traces.quantities import plural

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
MOST_RUNS = 64


@dataclass(frozen=True)
class Seen:
    """A program, its chip and the measured time, with the figures that remarks share.

    Attributes:
        meant: The program as it is meant.
        seconds: The measured time [s].
    """

    meant: Meant
    seconds: float

    @cached_property
    def rows(self) -> list[tuple[KernelCount, KernelTime]]:
        """Distinct kernels of the device alone, with their times."""
        reference = self.meant.reference
        return list(zip(reference.rows, reference.times[0], strict=True))

    @cached_property
    def bound(self) -> str:
        """What most of the device's time goes to."""
        return str(self.meant.reference.bound)

    @property
    def as_expected(self) -> bool:
        """Whether it is no slower than expected."""
        return self.seconds <= float(self.meant.expected.high)

    @cached_property
    def mfu(self) -> float:
        """Contractions at the peak of their format over the measured time."""
        return at_peak(self.meant) / self.seconds

    @cached_property
    def dtype(self) -> str:
        """The format of most contractions, as they run; empty where there is none."""
        total: dict[str, float] = {}
        for row in self.meant.expected.rows:
            for dtype, flops in row.flops_by.items():
                total[dtype] = total.get(dtype, 0.0) + row.kernel.count * float(flops)
        most = max(total, key=lambda dtype: total[dtype]) if total else ""
        return "tf32" if most == "fp32" and self.meant.tf32 and self.meant.has_tf32 else most

    @property
    def ridge(self) -> float:
        """Intensity where the roofs of that format meet [FLOP/byte]."""
        return self.meant.chip.ridge(self.dtype, tf32=self.dtype == "tf32")

    @property
    def peak(self) -> float:
        """Of that format [FLOP/s]."""
        return self.meant.chip.matmul_peak(self.dtype, tf32=self.dtype == "tf32")


Remark = Callable[[Seen], str | None]


def normal(meant: Meant, seconds: float) -> tuple[str, ...]:
    """Say what looks wrong and is not.

    Args:
        meant: The program as it is meant, and where it ran.
        seconds: The measured time [s].

    Example:
        >>> import roofline as rl
        >>> gemm = rl.workload([{"op": "gemm", "m": 8192, "n": 8192, "k": 8192}], dtype="bf16")
        >>> print(*normal(Meant(gemm, rl.chip("h100-sxm"), "graph", False, {}), 1.2e-3), sep="\\n")
        at the roof: 93% of the 989 TFLOP/s that bf16 has on h100-sxm; only a faster format helps (fp8: 1.98 PFLOP/s)
        compute-bound (2.73e+03 FLOP/byte, ridge 295): a bigger batch takes longer in proportion
    """
    seen = Seen(meant, seconds)
    return tuple(sentence for remark in REMARKS if (sentence := remark(seen)))


# --- memory ---


def _bandwidth(seen: Seen) -> str | None:
    """A run that moves what it must at the memory's rate."""
    chip, moved = seen.meant.chip, float(seen.meant.reference.bytes)
    reached = moved / chip.bandwidth / seen.seconds
    if seen.bound != "memory" or not BANDWIDTH_REACHED <= reached <= ABOVE:
        return None
    return (
        f"memory-bound: {format_si(moved, 'B')} cross the memory of {chip.name}, at least "
        f"{format_si(moved / chip.bandwidth, 's')} at {format_si(chip.bandwidth, 'B/s')}; this run reaches "
        f"{reached:.0%}, and twice as fast would need {format_si(2 * moved / seen.seconds, 'B/s')}: "
        "only fewer bytes help (narrower weights, a bigger batch for the same weights)"
    )


def _experts(seen: Seen) -> str | None:
    """Of a mixture of experts only those are read that a token picked."""
    stored = read = 0.0
    for row, _ in seen.rows:
        if row.kernel.main.op in ("moe", "expert_linear"):
            all_of_it = _weight_bytes(seen, row)
            stored += row.kernel.count * all_of_it
            read += row.kernel.count * min(float(row.read), all_of_it)
    if read > (1 - MUCH) * stored or not stored:
        return None
    return (
        f"only experts that a token picked are read: {format_si(read, 'B')} of {format_si(stored, 'B')} a run, "
        "so the time may be less than reading all weights takes"
    )


def _weight_bytes(seen: Seen, row: KernelCount) -> float:
    tensors = (seen.meant.reference.graph.tensors[name] for name in row.kernel.main.inputs)
    sizes = seen.meant.reference.grid.sizes
    return float(sum(evaluate(nbytes(tensor), sizes) for tensor in tensors if tensor.kind == "weight"))


def _low_intensity(seen: Seen) -> str | None:
    """Convolutions, depthwise ones above all, that do little with each byte: FLOPs do not predict their time."""
    bandwidth = seen.meant.chip.bandwidth
    rows = [(row, _at_peak(seen, row)) for row, _ in seen.rows if row.kernel.kind == "conv"]
    low = [(row, seconds) for row, seconds in rows if float(row.bytes) / bandwidth > seconds]
    moved, flops = (sum(row.kernel.count * float(getattr(row, part)) for row, _ in low) for part in ("bytes", "flops"))
    computed = sum(row.kernel.count * seconds for row, seconds in low)
    if not moved or moved / bandwidth < MUCH * seen.seconds:
        return None
    return (
        f"convolutions of {flops / moved:.3g} FLOP/byte, under the ridge of {flops / computed / bandwidth:.3g}, are "
        f"memory-bound: {format_si(moved / bandwidth, 's')} of traffic for {format_si(computed, 's')} of arithmetic: "
        "fewer FLOPs are no less time"
    )


def _at_peak(seen: Seen, row: KernelCount) -> float:
    """Contractions of a launch at the peak of their format [s]."""
    chip, tf32 = seen.meant.chip, seen.meant.reference.tf32
    return sum(float(flops) / chip.matmul_peak(dtype, tf32=tf32) for dtype, flops in row.flops_by.items())


# --- arithmetic ---


def _no_units(seen: Seen) -> str | None:
    """A format that the chip runs by the units of another one."""
    chip = seen.meant.chip
    for dtype in sorted(seen.meant.contracts_in & chip.fallback.keys()):
        runs_as = chip.fallback[dtype].runs_as
        better = [name for name in ("bf16", "fp16") if name not in chip.fallback and name in chip.matrix]
        advice = "".join(f"; {name} has ({format_si(chip.matmul_peak(name), 'FLOP/s')})" for name in better[:1])
        return (
            f"{dtype} has no units on {chip.name}: it runs as {runs_as} and is no faster than its "
            f"{format_si(chip.matmul_peak(dtype), 'FLOP/s')}{advice}"
        )
    return None


def _roof(seen: Seen) -> str | None:
    """Contractions at the peak of their format: the hardware does all it can in it."""
    if not seen.dtype or not PEAK_REACHED <= seen.mfu <= ABOVE:
        return None
    rate, where = format_si(seen.peak, "FLOP/s"), seen.meant.chip.name
    return f"at the roof: {seen.mfu:.0%} of the {rate} that {seen.dtype} has on {where}{_faster(seen)}"


def _faster(seen: Seen) -> str:
    """The next faster format."""
    chip = seen.meant.chip
    for name in ("tf32", "bf16", "fp16", "fp8"):
        try:
            peak = chip.matmul_peak(name, tf32=name == "tf32")
        except MissingFigure:
            continue
        if peak > 1.2 * seen.peak and name not in chip.fallback:
            return f"; only a faster format helps ({name}: {format_si(peak, 'FLOP/s')})"
    return "; no format is faster"


def _below_peak(seen: Seen) -> str | None:
    """Faster than the multiplications of the direct algorithm take, though some algorithm could do it."""
    if seen.mfu <= ABOVE:
        return None
    least, where = format_si(at_peak(seen.meant), "s"), possible_in(seen.meant, seen.seconds)
    return (
        f"{format_si(seen.seconds, 's')} is less than the {least} that its "
        f"{format_si(float(seen.meant.expected.flops), 'FLOP')} take at the peak of {seen.dtype} "
        f"({format_si(seen.peak, 'FLOP/s')}): "
        + "; or ".join(filter(None, (where, "an algorithm with fewer multiplications, or another program than said")))
    )


def _batch(seen: Seen) -> str | None:
    """Past the ridge throughput does not grow with the batch."""
    if seen.bound != "compute" or not seen.dtype or not seen.as_expected:
        return None
    intensity = float(seen.meant.reference.intensity)
    if intensity < seen.ridge:
        return None
    return (
        f"compute-bound ({intensity:.3g} FLOP/byte, ridge {seen.ridge:.3g}): a bigger batch takes longer in proportion"
    )


def _low_mfu(seen: Seen) -> str | None:
    """A low MFU with its reason."""
    if not seen.dtype or not seen.as_expected or seen.mfu >= HIGH_MFU:
        return None
    expected = seen.meant.expected
    why = _WHY_LOW[str(expected.bound)](seen)
    return f"an MFU of {seen.mfu:.1%} is normal here ({float(expected.mfu):.1%} expected): {why}{_beside(seen)}"


def _intensity(seen: Seen) -> str:
    intensity = float(seen.meant.reference.intensity)
    if intensity < seen.ridge:
        return f"memory-bound, {intensity:.3g} FLOP/byte where the ridge of {seen.dtype} is {seen.ridge:.3g}"
    return "most of its time goes to kernels that are memory-bound"


def _launches(seen: Seen) -> str:
    launches = seen.meant.expected.launches
    each = format_si(float(seen.meant.reference.device_time) / launches, "s")
    return f"{plural(launches, 'kernel')} of {each} on average, too short to hide what a launch costs"


#: Why the MFU is low, by what the program is bound by.
_WHY_LOW: dict[str, Callable[[Seen], str]] = {
    "compute": lambda seen: "by the efficiencies of products of this size that the chip file has",
    "memory": _intensity,
    "communication": lambda seen: "most of its time it waits for a link",
    "launch": _launches,
    "host": _launches,
}
assert set(_WHY_LOW) == set(BOUNDS)


def _beside(seen: Seen) -> str:
    """The share of kernels that do no contractions."""
    total = float(seen.meant.reference.device_time)
    other = sum(row.kernel.count * float(time.expected) for row, time in seen.rows if not row.flops_by)
    return f"; {other / total:.0%} of the time goes to kernels without matrix products" if other > MUCH * total else ""


# --- links, and several runs in one ---


def _link(seen: Seen) -> str | None:
    """Copies and collectives at the rate of the link."""
    floor = sum(
        row.kernel.count * float(time.floor) for row, time in seen.rows if row.kernel.kind in ("transfer", "network")
    )
    reached = floor / seen.seconds
    if seen.bound != "communication" or not BANDWIDTH_REACHED <= reached <= ABOVE:
        return None
    return (
        f"bound by the link: at its rate {format_si(floor, 's')} at least, this run reaches {reached:.0%}; only fewer "
        "bytes help (uint8 images are a quarter of fp32), or overlapping it with compute"
    )


def _runs(seen: Seen) -> str | None:
    """A reported step that is several runs: micro-batches whose gradients are accumulated, a loop."""
    expected = seen.meant.expected
    runs = round(min(seen.seconds / float(expected.time), MOST_RUNS + 1))
    long = float(expected.device_time) >= LONG_STEP
    if seen.as_expected or not long or not 2 <= runs <= MOST_RUNS:
        return None
    each, rate = seen.seconds / runs, seen.mfu * runs
    if not float(expected.low) <= each <= float(expected.high):
        return None
    return (
        f"if the reported step is {runs} runs of this program (accumulated micro-batches, a loop), each takes "
        f"{format_si(each, 's')}, as expected, at an MFU of {rate:.0%}"
    )


#: A row a remark, the most telling first.
REMARKS: tuple[Remark, ...] = (
    _below_peak, _no_units, _experts, _bandwidth, _link, _roof, _batch, _low_intensity, _low_mfu, _runs,
)  # fmt: skip


def pruned(share: float) -> str:
    """What zeros in dense tensors change: nothing.

    Args:
        share: Of the weights that are zero.

    Example:
        >>> pruned(0.9).partition(":")[0]
        'with 90% of the weights zero in dense tensors the expected time and memory are 1.0 times those without'
    """
    return (
        f"with {share:.0%} of the weights zero in dense tensors the expected time and memory are 1.0 times those "
        "without: dense kernels multiply zeros as they do anything else; only structure that is gone (channels, heads, "
        "2:4 with sparse kernels) saves time"
    )
