"""One row per operator of a trace: what it took, what bounds it, what it reached of its roofs, what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isnan
from typing import Any

from roofline.counting.counts import count_graph
from roofline.diagnosis.causes import FIXES, fix_of
from roofline.diagnosis.counters import Counted, counted
from roofline.diagnosis.groups import Group, short
from roofline.diagnosis.idle import Idle
from roofline.diagnosis.reference import faster
from roofline.diagnosis.trace_causes import TraceContext, first_finding
from roofline.frontends.torch.schemas import FORMATS
from roofline.hardware.chip import Chip
from roofline.ir.errors import MissingFigure, RooflineError
from roofline.ir.units import format_si
from roofline.traces.events import Signature

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
        formula: How it is known what it computes: by ``formula``, as ``counted`` by a profiler, or ``none``; ``free``
            for views and operators that only call others.
        calls: Calls.
        launches: Launches.
        seconds: Its part of the time on the device, or on the CPU without the operators inside [s].
        lasted_s: From start to end of its launches, more than ``seconds`` where others ran too; rates are of it [s].
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
    lasted_s: float
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
        return self.flops / self.lasted_s if self.flops and self.lasted_s else _NAN

    @property
    def bytes_per_s(self) -> float:
        """Achieved traffic; nan where not known [B/s]."""
        return self.bytes / self.lasted_s if self.bytes and self.lasted_s else _NAN

    @property
    def ratio(self) -> float:
        """Time over expected time; nan where not known."""
        return self.lasted_s / self.expected_s if self.expected_s else _NAN

    @property
    def intensity(self) -> float:
        """Arithmetic over traffic; nan without either [FLOP/B]."""
        return self.arithmetic / self.bytes if self.arithmetic and self.bytes else _NAN

    def record(self) -> dict[str, Any]:
        """Return all figures by name; those that are not known are ``None``."""
        names = [*(field.name for field in fields(self)), "flops_per_s", "bytes_per_s", "ratio", "intensity"]
        figures = {"time_s" if name == "seconds" else name: getattr(self, name) for name in names}
        return {name: None if value != value else value for name, value in figures.items()}


def summaries(groups: Sequence[Group]) -> tuple[OpSummary, ...]:
    """Summarize each group, the slowest first."""
    total = sum(group.seconds for group in groups)
    context = TraceContext(None, groups, Idle())
    rows = []
    for group in groups:
        finding = first_finding(context, group) if judged(group) else None
        lost = (finding[1], max(group.seconds - finding[0], 0.0)) if finding else ("", 0.0)
        rows.append(_summary(group, total, lost))
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def judged(group: Group) -> bool:
    """Tell whether rules apply at all: they know kernels, and most compare with what the chip can do."""
    try:
        return group.role != "host" and bool(group.chip.bandwidth)
    except MissingFigure:
        return group.role != "kernel"


def _summary(group: Group, total: float, lost: tuple[str, float]) -> OpSummary:
    formula = "none" if group.graph is None else "formula" if group.graph.nodes else "free"
    work = Work(0.0, 0.0, group.moved, "", _NAN, _NAN)
    if formula == "formula":
        work = _by_formula(group)
    elif formula == "none" and (counts := counted(group.facts)):
        formula, work = "counted", _as_counted(group, counts)
    above = group.lasted > 0 and work.floor > group.lasted * group.chip.clock_slack
    label, seconds = lost if lost[1] > WORTH * group.seconds and not above else ("", 0.0)
    bytes_share = work.bytes_share if work.bytes_share == work.bytes_share else _copied_share(group)
    bound = _bound(group, work.flops_share, bytes_share)
    reached = {"compute": work.flops_share, "memory": bytes_share}.get(bound, _NAN)
    dtype = work.dtype or _dtype(group)
    return OpSummary(
        op=group.op or group.kernel, kernels=_kernels(group), role=group.role, kind=group.kind,
        shapes=words(group.signature), dtype=dtype, formula=formula,
        calls=group.calls if group.op else group.launches, launches=group.launches,
        seconds=group.seconds, lasted_s=group.lasted, share=group.seconds / total if total else 0.0, bound=bound,
        flops=work.flops, arithmetic=work.flops or work.vector, bytes=work.bytes,
        flops_share=work.flops_share if work.flops or formula == "counted" else _NAN, bytes_share=bytes_share,
        expected_s=group.expected, floor_s=work.floor, above=above, label=label, lost_s=seconds,
        proposal="" if formula == "free" else proposal(group, bound, dtype, label, above, reached),
        counters=", ".join(filter(None, (_recorded(group.facts), _tensix(group), _link(group)))),
    )  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What calls compute and move, and the roofs that they reach.

    Attributes:
        flops: Contractions [FLOP].
        vector: Other arithmetic [FLOP].
        bytes: Traffic, nan where not known [B].
        dtype: Number format, empty where it is left to the arguments.
        flops_share: Of the peak; nan where not known.
        bytes_share: Of the memory's bandwidth, likewise.
        floor: Datasheet speed of light, likewise [s].
    """

    flops: float
    vector: float
    bytes: float
    dtype: str
    flops_share: float
    bytes_share: float
    floor: float = _NAN


def _by_formula(group: Group) -> Work:
    """Return the work of all calls, which needs no chip, and what they reach of the chip's roofs."""
    assert group.graph is not None
    try:
        counts = count_graph(group.graph)
    except RooflineError:
        return Work(0.0, 0.0, group.moved, "", _NAN, _NAN)
    flops, vector, moved = (group.calls * float(x) for x in (counts.flops, counts.vector_flops, counts.bytes))
    est = group.estimate
    if est is None:
        return Work(flops, vector, moved, "", _NAN, _NAN)
    scale = group.calls * float(est.time) / group.lasted if group.lasted else _NAN
    floor = group.calls * float(est.floor)
    return Work(flops, vector, moved, "", float(est.mfu) * scale, float(est.mbu) * scale, floor)


def _as_counted(group: Group, counts: Sequence[Counted]) -> Work:
    """Return the work that a profiler counted; units of a chip work side by side, so that the busiest counts."""
    times = {one: one.flops / peak if (peak := _peak(group.chip, one)) else _NAN for one in counts}
    main = max(counts, key=lambda one: times[one] if times[one] == times[one] else one.flops)
    every, matrix = (
        sum(one.flops for one in counts if one.unit in units) for units in (("matrix", "vector"), "matrix")
    )
    flops = every if group.contracts or main.unit == "matrix" else matrix
    try:
        memory = group.moved / group.chip.bandwidth
    except MissingFigure:
        memory = _NAN
    floor = max((time for time in (times[main], memory) if time == time), default=_NAN)
    lasted = group.lasted or _NAN
    return Work(flops, every - flops, group.moved, main.dtype, times[main] / lasted, memory / lasted, floor)


def _peak(chip: Chip, one: Counted) -> float:
    """Return the peak of the unit that work was counted on; 0 where none is published [FLOP/s]."""
    try:
        return chip.peak(one.dtype, "matrix") if one.unit == "matrix" else chip.vector_peak(one.dtype)
    except RooflineError:
        return 0.0


def _copied_share(group: Group) -> float:
    """Return the share of the bandwidth that a copy on the device, or a kernel with counted bytes, reached."""
    try:
        known = group.role == "kernel" and group.lasted > 0 and group.moved > 0
        return group.moved / group.lasted / group.chip.bandwidth if known else _NAN
    except MissingFigure:
        return _NAN


def _kernels(group: Group) -> str:
    """Name its kernels, without those that only clear memory for them."""
    if group.role == "host":
        return ""
    names = (name for name in map(short, group.kernels) if name != "Memset")
    return ", ".join(dict.fromkeys(names))[:_LONGEST] or group.kernel


#: What bounds a launch that is no kernel.
_BY_ROLE = {"copy_in": "link", "copy_out": "link", "communication": "communication", "layout": "memory"}


def _bound(group: Group, flops_share: float, bytes_share: float) -> str:
    if group.role in _BY_ROLE:
        return _BY_ROLE[group.role]
    if group.estimate is not None:
        return str(group.estimate.bound)
    return busiest(group.facts) or _limit({"compute": 100 * flops_share, "memory": 100 * bytes_share})


def words(signature: Signature | None) -> str:
    """Return the shapes of the tensors that an operator was given, in words; empty where they were not recorded."""
    if signature is None:
        return ""
    parts = []
    for dims in signature.dims:
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
    ("Collective name", "{}"), ("Group size", "on {} devices"), ("Process Group Name", "group {}"),
    ("In msg nelems", "{:,.0f} elements"),
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
    return _limit({unit: next((counters[key] for key in keys if _is_number(counters.get(key))), _NAN)
                   for unit, keys in _BUSY})  # fmt: skip


def _limit(busy: Mapping[str, float]) -> str:
    """Return the busiest of all units [%]; empty where one is not known."""
    if any(isnan(value) for value in busy.values()):
        return ""
    unit = max(busy, key=lambda unit: busy[unit])
    return unit if busy[unit] >= _WAITING else "launch"


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


def _tensix(group: Group) -> str:
    """State the peak of the cores that an operator of Tenstorrent's ran on: 16-bit formats are listed at all passes."""
    phases, cores, chip = _PHASES.get(group.facts.get("math fidelity", "")), group.facts.get("cores", 0), group.chip
    if not phases or not _is_number(cores) or not cores or not chip.cores or "fp16" not in chip.matrix:
        return ""
    return f"peak {format_si(chip.peak('fp16') * 4 / phases * min(cores / chip.cores, 1.0), 'FLOP/s')}"


def _link(group: Group) -> str:
    """State how much of the link to the host a copy reaches."""
    link = next((link for link in group.chip.links if link.kind == "host"), None)
    if link is None or group.role not in ("copy_in", "copy_out") or not group.moved > 0 or not group.lasted:
        return ""
    return f"{100 * group.moved / group.lasted / link.bandwidth:.3g}% of {link.name}"


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
        needs: Formats that the chip has to be faster in.
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
        return own and self.slow == slow and all(faster(group.chip, other, dtype) for other in self.needs.split())


#: The first that fits counts.
CASES: tuple[Case, ...] = (
    Case("compute", "", "", "far below its roof: look at clocks, row lengths and the kernel chosen", slow=True),
    Case("memory", "matmul moe", "", "far below the bandwidth: look at the layout of its operands, or batch more",
         slow=True),
    Case("memory", "", "", "far below the bandwidth: look at strides, row lengths and the order of the axes",
         slow=True),
    Case("launch", "", "", "small and slow: batch its calls, or use a kernel made for this size", slow=True),
    Case("compute", "matmul conv moe", "fp32 fp64", "cast to bf16, or allow tf32", needs="bf16 tf32"),
    Case("compute", "matmul conv moe", "fp32 fp64", "cast to bf16", needs="bf16"),
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
    slow = bool(group.expected) and group.lasted / group.expected > SLOW  # False of nan
    text = next((case.text for case in CASES if case.fits(group, bound, dtype, slow)), "")
    if bound == "launch" and not slow and fix_of("launch_bound", group.chip) is not FIXES["launch_bound"]:
        text = "too small to fill the chip: batch it, or fuse it"
    if not text or slow or bound not in ("compute", "memory"):
        return text
    if reached >= NEAR:
        return f"at its roof: {text}"
    return text if isnan(group.expected) else f"as fast as such kernels get: {text}"
