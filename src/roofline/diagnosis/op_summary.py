"""One row per operator of a trace: what it took, what bounds it, what it reached of its roofs, what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isnan
from typing import Any

from roofline.counting.counts import count_graph
from roofline.diagnosis.causes import FIXES, fix_of
from roofline.diagnosis.groups import Group, short
from roofline.diagnosis.idle import Idle
from roofline.diagnosis.reference import faster
from roofline.diagnosis.trace_causes import TraceContext, first_finding
from roofline.frontends.torch.schemas import FORMATS
from roofline.ir.errors import MissingFigure, RooflineError
from roofline.ir.units import format_si

#: A rule's label counts for an operator that loses at least this share of its time to it.
WORTH = 0.15
#: Longest text of shapes.
_LONGEST = 100
_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class OpSummary:
    """Calls of one operator with equal arguments; all figures are per iteration, nan where they are not known.

    Attributes:
        op: The operator, or the kernel where none is known.
        kernels: Names of its kernels, shortened.
        role: ``kernel``, ``copy_in``, ``copy_out``, ``communication`` or ``layout``; ``host`` on the CPU.
        kind: Its class, such as ``matmul``; empty where not known.
        shapes: Shapes of its arguments, in words.
        dtype: Number formats of its contractions, or of its tensors.
        formula: Whether it is known what it computes; ``free`` for views and operators that only call others.
        calls: Calls.
        launches: Launches.
        seconds: On the device, or on the CPU without the operators inside [s].
        share: Of the time of all operators.
        bound: ``compute``, ``memory``, ``launch``, ``communication`` or ``link``; empty where not known.
        flops: Contractions [FLOP].
        arithmetic: Contractions, or the other arithmetic where there are none [FLOP].
        bytes: Traffic by its formula; as counted, or as copied, where there is none [B].
        flops_share: Of the peak of its format.
        bytes_share: Of the memory's bandwidth.
        expected_s: What it should take as it was recorded [s].
        floor_s: Datasheet speed of light [s].
        above: Whether it was faster than its roof.
        label: What a rule says it lost time to, one of :data:`roofline.diagnosis.causes.LABELS`.
        lost_s: How much [s].
        proposal: What to do, in a sentence; empty where there is nothing to say.
        counters: What its profiler recorded besides, in words.
    """

    op: str
    kernels: str
    role: str
    kind: str
    shapes: str
    dtype: str
    formula: str
    calls: float
    launches: float
    seconds: float
    share: float
    bound: str
    flops: float
    arithmetic: float
    bytes: float
    flops_share: float
    bytes_share: float
    expected_s: float
    floor_s: float
    above: bool
    label: str
    lost_s: float
    proposal: str
    counters: str

    @property
    def flops_per_s(self) -> float:
        """Achieved rate of contractions; nan without any [FLOP/s]."""
        return self.flops / self.seconds if self.flops and self.seconds else _NAN

    @property
    def bytes_per_s(self) -> float:
        """Achieved traffic; nan where not known [B/s]."""
        return self.bytes / self.seconds if self.bytes and self.seconds else _NAN

    @property
    def ratio(self) -> float:
        """Time over expected time; nan where not known."""
        return self.seconds / self.expected_s if self.expected_s else _NAN

    @property
    def intensity(self) -> float:
        """Arithmetic over traffic; nan without either [FLOP/B]."""
        return self.arithmetic / self.bytes if self.arithmetic and self.bytes else _NAN

    def record(self) -> dict[str, Any]:
        """Return all figures by name; those that are not known are ``None``."""
        names = [*(field.name for field in fields(self)), "flops_per_s", "bytes_per_s", "ratio", "intensity"]
        figures = {"time_s" if name == "seconds" else name: getattr(self, name) for name in names}
        return {name: None if value != value else value for name, value in figures.items()}


def summaries(groups: Sequence[Group], counters: Mapping[str, Mapping[str, Any]]) -> tuple[OpSummary, ...]:
    """Summarize each group, the slowest first.

    Args:
        groups: What ran.
        counters: What else was recorded of a kernel, by its name.
    """
    total = sum(group.seconds for group in groups)
    context = TraceContext(None, groups, Idle())
    rows = []
    for group in groups:
        finding = first_finding(context, group) if judged(group) else None
        lost = (finding[1], max(group.seconds - finding[0], 0.0)) if finding else ("", 0.0)
        recorded = next((counters[name] for name in group.kernels if counters.get(name)), {})
        rows.append(_summary(group, total, lost, recorded))
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def judged(group: Group) -> bool:
    """Tell whether rules apply at all: they know kernels, and most compare with what the chip can do."""
    try:
        return group.role != "host" and bool(group.chip.bandwidth)
    except MissingFigure:
        return group.role != "kernel"


def _summary(group: Group, total: float, lost: tuple[str, float], counters: Mapping[str, Any]) -> OpSummary:
    formula = "none" if group.graph is None else "formula" if group.graph.nodes else "free"
    flops, vector, moved = _work(group) if formula == "formula" else (0.0, 0.0, group.moved)
    floor = group.calls * float(group.estimate.floor) if group.estimate is not None else _NAN
    above = group.seconds > 0 and floor > group.seconds * group.chip.clock_slack
    label, seconds = lost if lost[1] > WORTH * group.seconds and not above else ("", 0.0)
    bound, (flops_share, bytes_share), dtype = _bound(group, counters), _shares(group), _dtype(group)
    reached = {"compute": flops_share, "memory": bytes_share}.get(bound, _NAN)
    return OpSummary(
        op=group.op or group.kernel, kernels=_kernels(group), role=group.role, kind=group.kind, shapes=shapes(group),
        dtype=dtype, formula=formula, calls=group.calls if group.op else group.launches, launches=group.launches,
        seconds=group.seconds, share=group.seconds / total if total else 0.0, bound=bound, flops=flops,
        arithmetic=flops or vector, bytes=moved, flops_share=flops_share if flops else _NAN, bytes_share=bytes_share,
        expected_s=group.expected, floor_s=floor, above=above, label=label, lost_s=seconds,
        proposal="" if formula == "free" else proposal(group, bound, dtype, label, above, reached),
        counters=", ".join(filter(None, (_recorded(counters), _tensix(group, counters), _link(group)))),
    )  # fmt: skip


def _work(group: Group) -> tuple[float, float, float]:
    """Return contractions, other arithmetic and traffic of all calls, which need no chip."""
    assert group.graph is not None
    try:
        counts = count_graph(group.graph)
    except RooflineError:
        return 0.0, 0.0, group.moved
    flops, vector, moved = (group.calls * float(x) for x in (counts.flops, counts.vector_flops, counts.bytes))
    return flops, vector, moved


def _shares(group: Group) -> tuple[float, float]:
    """Return the shares that it reached of the peak and of the bandwidth."""
    est = group.estimate
    if not group.seconds:
        return _NAN, _NAN
    if est is not None:
        scale = group.calls * float(est.time) / group.seconds
        return float(est.mfu) * scale, float(est.mbu) * scale
    try:
        on_chip = group.role == "kernel" and group.moved
        return _NAN, group.moved / group.seconds / group.chip.bandwidth if on_chip else _NAN
    except MissingFigure:
        return _NAN, _NAN


def _kernels(group: Group) -> str:
    """Name its kernels, without those that only clear memory for them."""
    if group.role == "host":
        return ""
    names = (name for name in map(short, group.kernels) if name != "Memset")
    return ", ".join(dict.fromkeys(names))[:_LONGEST] or group.kernel


#: What bounds a launch that is no kernel.
_BY_ROLE = {"copy_in": "link", "copy_out": "link", "communication": "communication", "layout": "memory"}


def _bound(group: Group, counters: Mapping[str, Any]) -> str:
    if group.role in _BY_ROLE:
        return _BY_ROLE[group.role]
    return str(group.estimate.bound) if group.estimate is not None else busiest(counters)


def shapes(group: Group) -> str:
    """Return the shapes of the tensors that it was given, in words."""
    if group.signature is None:
        return ""
    parts = []
    for dims in group.signature.dims:
        if dims and isinstance(dims[0], tuple):
            parts.append(f"{len(dims)} tensors")
        elif dims:
            parts.append("x".join(map(str, dims)))
    text = ", ".join(parts)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _dtype(group: Group) -> str:
    """Return the formats of its contractions, else of its first tensor."""
    if group.dtypes:
        as_tf32 = group.estimate is not None and group.estimate.tf32
        return "+".join(sorted("tf32" if dtype == "fp32" and as_tf32 else dtype for dtype in group.dtypes))
    types = group.signature.types if group.signature is not None else ()
    return next((FORMATS[name] for name in types if name in FORMATS), "")


# --- counters of profilers --------------------------------------------------------------------------------------------

_SM = ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput")
_DRAM = ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "DRAM Throughput")
#: Counters worth a word: key, how it is written.
_COUNTERS = (
    ("cores", "{} cores"), ("available cores", "{} available"), ("math fidelity", "{}"), ("parallelization", "{}"),
    ("Collective name", "{}"), ("Group size", "on {} devices"),
    *((key, "SM busy {:.3g}%") for key in _SM), *((key, "DRAM busy {:.3g}%") for key in _DRAM),
)  # fmt: skip
#: Counters of how busy a unit was [%], the best first, and what a kernel is bound by where it is the busiest.
_BUSY = (
    ("compute", _SM),
    ("memory", ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", *_DRAM, "Memory Throughput")),
)
#: Where no unit is busier than this, a kernel waits more than it works [%].
_WAITING = 40.0


def busiest(counters: Mapping[str, Any]) -> str:
    """Return what counters say that a kernel is bound by; empty without them.

    Example:
        >>> busiest({"Compute (SM) Throughput": 20.0, "DRAM Throughput": 75.0}), busiest({})
        ('memory', '')
    """
    busy = {unit: next((counters[key] for key in keys if _is_number(counters.get(key))), None) for unit, keys in _BUSY}
    known = {unit: float(value) for unit, value in busy.items() if value is not None}
    if len(known) < len(_BUSY):
        return ""
    unit = max(known, key=lambda unit: known[unit])
    return unit if known[unit] >= _WAITING else "launch"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isnan(value)


def _recorded(counters: Mapping[str, Any]) -> str:
    """Write counters in words; anything else where a number is expected is left out."""
    words = []
    for key, form in _COUNTERS:
        value = counters.get(key)
        if value not in (None, "") and (_is_number(value) or "{:" not in form):
            words.append(form.format(value))
    return ", ".join(dict.fromkeys(words))


#: Passes of the matrix unit that each fidelity takes.
_PHASES = {"LoFi": 1, "HiFi2": 2, "HiFi3": 3, "HiFi4": 4}


def _tensix(group: Group, counters: Mapping[str, Any]) -> str:
    """State the peak of the cores that an operator of Tenstorrent's ran on: 16-bit formats are listed at all passes."""
    phases, cores, chip = _PHASES.get(counters.get("math fidelity", "")), counters.get("cores", 0), group.chip
    if not phases or not cores or not chip.cores or "fp16" not in chip.matrix:
        return ""
    return f"peak {format_si(chip.peak('fp16') * 4 / phases * min(cores / chip.cores, 1.0), 'FLOP/s')}"


def _link(group: Group) -> str:
    """State how much of the link to the host a copy reaches."""
    link = next((link for link in group.chip.links if link.kind == "host"), None)
    if link is None or group.role not in ("copy_in", "copy_out") or not group.moved or not group.seconds:
        return ""
    return f"{100 * group.moved / group.seconds / link.bandwidth:.3g}% of {link.name}"


# --- what to do about it ----------------------------------------------------------------------------------------------

#: From this many times the expected time on, an operator is slow.
SLOW = 1.6
#: From this share of its roof on, an operator that is as fast as expected is at it.
NEAR = 0.75
ABOVE = "above the roof: wrong chip, format or cache? a figure that cannot be is not to be trusted"
NO_FORMULA = "no formula for it: compare it with its own best run"


@dataclass(frozen=True)
class Case:
    """A case and what helps; an empty text stands for any.

    Attributes:
        bounds: What bounds it, words with spaces between.
        kinds: Its class, likewise.
        dtypes: Its format, likewise.
        text: What to do.
        slow: Whether it is far slower than expected.
        needs: A format that the chip has to be faster in.
    """

    bounds: str
    kinds: str
    dtypes: str
    text: str
    slow: bool = False
    needs: str = ""

    def fits(self, group: Group, bound: str, dtype: str, slow: bool) -> bool:
        """Tell whether an operator is the case."""
        pairs = ((self.bounds, bound), (self.kinds, group.kind), (self.dtypes, dtype))
        own = all(not allowed or value in allowed.split() for allowed, value in pairs)
        return own and self.slow == slow and (not self.needs or faster(group.chip, self.needs, dtype))


#: The first that fits counts.
CASES: tuple[Case, ...] = (
    Case("compute", "", "", "far below its roof: look at clocks, row lengths and the kernel chosen", slow=True),
    Case("memory", "matmul moe", "", "far below the bandwidth: look at the layout of its operands, or batch more",
         slow=True),
    Case("memory", "", "", "far below the bandwidth: look at strides, row lengths and the order of the axes",
         slow=True),
    Case("launch", "", "", "small and slow: batch its calls, or use a kernel made for this size", slow=True),
    Case("compute", "matmul conv moe", "fp32 fp64", "cast to bf16, or allow tf32", needs="bf16"),
    Case("compute", "matmul conv moe", "tf32", "cast to bf16", needs="bf16"),
    Case("compute", "matmul moe", "bf16 fp16", "fewer FLOPs or a narrower format (fp8)", needs="fp8"),
    Case("compute", "attention", "", "a causal mask, a window or a shorter sequence"),
    Case("compute", "", "", "fewer FLOPs, or a chip with more of them"),
    Case("memory", "matmul moe conv", "", "batch more, or keep operands in a narrower format"),
    Case("memory", "attention", "", "fewer key-value heads, or a narrower cache"),
    Case("memory", "pointwise rowwise reduction", "", "fuse it with its neighbours (torch.compile)"),
    Case("memory", "move", "", "avoid the copy, with a view or by writing in place"),
    Case("memory", "", "", "move less, in a narrower format"),
    Case("launch", "", "", "too small to fill the chip: batch it, fuse it, or replay a CUDA graph"),
    Case("communication", "", "", FIXES["communication"].text),
)  # fmt: skip


def proposal(group: Group, bound: str, dtype: str, label: str, above: bool, reached: float) -> str:
    """Say what to do about an operator, in a sentence.

    Args:
        group: Its calls.
        bound: What bounds it.
        dtype: Its format.
        label: What a rule says it lost time to.
        above: Whether it was faster than its roof.
        reached: Share of its roof; nan where it has none.
    """
    if above:
        return ABOVE
    if label in FIXES:
        return fix_of(label, group.chip).text
    if not bound:
        return NO_FORMULA if group.op and group.graph is None else ""
    slow = bool(group.expected) and group.seconds / group.expected > SLOW  # False of nan
    text = next((case.text for case in CASES if case.fits(group, bound, dtype, slow)), "")
    if not text or slow or bound not in ("compute", "memory"):
        return text
    return f"at its roof: {text}" if reached >= NEAR else f"as fast as such kernels get: {text}"
