"""One line an operator of a trace: what it took, what bounds it, what it reached of its roofs, what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any

from roofline.counting.counts import count
from roofline.diagnosis.context import Scene
from roofline.diagnosis.counters import busiest, told
from roofline.diagnosis.groups import Group, short
from roofline.diagnosis.idle import Idle
from roofline.diagnosis.proposals import proposal
from roofline.diagnosis.rules import first_finding
from roofline.frontends.torch.schemas import FORMATS
from roofline.ir.errors import MissingFigure, RooflineError

#: A rule's label counts for an operator that loses at least this share of its time to it.
WORTH = 0.15
#: Longest text of shapes.
_LONGEST = 100


@dataclass(frozen=True, slots=True)
class OpLine:
    """Calls of one operator with equal arguments; all figures are of one iteration, nan where they are not known.

    Attributes:
        op: The operator, or the kernel where none is known.
        kernels: Names of its kernels, shortened.
        role: ``kernel``, ``copy_in``, ``copy_out``, ``communication`` or ``layout``; ``host`` on the processor.
        kind: Its class, such as ``matmul``; empty where not known.
        shapes: Of its arguments, in words.
        dtype: Number formats of its contractions, or of its tensors.
        formula: Whether it is known what it computes; ``free`` for views and operators that only call others.
        calls: Calls.
        launches: Launches.
        seconds: On the device, or on the processor without the operators inside [s].
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
        facts: What its profiler says besides.
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
    facts: str

    @property
    def flops_per_s(self) -> float:
        """Achieved rate of contractions; nan of none [FLOP/s]."""
        return self.flops / self.seconds if self.flops and self.seconds else float("nan")

    @property
    def bytes_per_s(self) -> float:
        """Achieved traffic; nan where not known [B/s]."""
        return self.bytes / self.seconds if self.bytes and self.seconds else float("nan")

    @property
    def ratio(self) -> float:
        """Time over expected time; nan where not known."""
        return self.seconds / self.expected_s if self.expected_s else float("nan")

    @property
    def intensity(self) -> float:
        """Arithmetic over traffic; nan without either [FLOP/B]."""
        return self.arithmetic / self.bytes if self.arithmetic and self.bytes else float("nan")

    def record(self) -> dict[str, Any]:
        """Stable keys; what is not known is ``None``."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        rates = {key: getattr(self, key) for key in ("flops_per_s", "bytes_per_s", "ratio", "intensity")}
        return {key: _finite(value) for key, value in (own | rates).items()}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not isfinite(value) else value


def lines(groups: Sequence[Group], facts: Mapping[str, Mapping[str, Any]]) -> tuple[OpLine, ...]:
    """A line a group, the slowest first.

    Args:
        groups: What ran.
        facts: What else was recorded of a kernel, by its name.
    """
    total = sum(one.seconds for one in groups)
    lost = findings(groups)
    made = (_line(one, total, lost[at], _known(one, facts)) for at, one in enumerate(groups))
    return tuple(sorted(made, key=lambda line: -line.seconds))


def findings(groups: Sequence[Group]) -> list[tuple[str, float]]:
    """What the rules say of each group without a meant program: a label and the time lost to it [s]."""
    scene = Scene(None, groups, Idle({}, {}, {}))
    pairs = ((one, first_finding(scene, one) if judged(one) else None) for one in groups)
    return [(found[1], max(one.seconds - found[0], 0.0)) if found else ("", 0.0) for one, found in pairs]


def judged(one: Group) -> bool:
    """Whether rules can say something: they know kernels, and most compare with what the chip can do."""
    try:
        return one.role != "host" and bool(one.chip.bandwidth)
    except MissingFigure:
        return one.role != "kernel"


def _line(one: Group, total: float, lost: tuple[str, float], known: Mapping[str, Any]) -> OpLine:
    formula = _formula(one)
    flops, vector, moved = _work(one) if formula == "formula" else (0.0, 0.0, one.moved)
    floor = one.calls * float(one.estimate.floor) if one.estimate is not None else float("nan")
    above = one.seconds > 0 and floor > one.seconds * one.chip.clock_slack
    label, seconds = lost if lost[1] > WORTH * one.seconds and not above else ("", 0.0)
    bound, shares = _bound(one, known), _shares(one)
    dtype = _dtype(one)
    reached = {"compute": shares[0], "memory": shares[1]}.get(bound, float("nan"))
    return OpLine(
        op=one.op or one.kernel, kernels=_kernels(one), role=one.role, kind=one.kind, shapes=shapes(one), dtype=dtype,
        formula=formula, calls=one.calls if one.op else one.launches, launches=one.launches, seconds=one.seconds,
        share=one.seconds / total if total else 0.0, bound=bound, flops=flops, arithmetic=flops or vector, bytes=moved,
        flops_share=shares[0] if flops else float("nan"), bytes_share=shares[1],
        expected_s=one.expected, floor_s=floor, above=above, label=label, lost_s=seconds,
        proposal="" if formula == "free" else proposal(one, bound, dtype, label, above, reached),
        facts=told(one, known),
    )  # fmt: skip


def _known(one: Group, facts: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """What else was recorded of its kernels."""
    return next((facts[name] for name in one.kernels if facts.get(name)), {})


def _formula(one: Group) -> str:
    if one.graph is None:
        return "none"
    return "formula" if one.graph.nodes else "free"


def _work(one: Group) -> tuple[float, float, float]:
    """Contractions, other arithmetic and traffic of all calls, which need no chip."""
    assert one.graph is not None
    try:
        counts = count(one.graph)
        return tuple(one.calls * float(x) for x in (counts.flops, counts.vector_flops, counts.bytes))  # type: ignore[return-value]
    except RooflineError:
        return 0.0, 0.0, one.moved


def _shares(one: Group) -> tuple[float, float]:
    """Reached shares of the peak and of the bandwidth."""
    est = one.estimate
    if not one.seconds:
        return float("nan"), float("nan")
    if est is not None:
        scale = one.calls * float(est.time) / one.seconds
        return float(est.mfu) * scale, float(est.mbu) * scale
    try:
        on_chip = one.role == "kernel" and one.moved
        return float("nan"), one.moved / one.seconds / one.chip.bandwidth if on_chip else float("nan")
    except MissingFigure:
        return float("nan"), float("nan")


def _kernels(one: Group) -> str:
    """Its kernels in a few words, without what only clears memory for them."""
    if one.role == "host":
        return ""
    names = [short(name) for name in one.kernels]
    return ", ".join(dict.fromkeys(name for name in names if name != "Memset"))[:_LONGEST] or one.kernel


#: What bounds a launch that is no kernel.
_BY_ROLE = {"copy_in": "link", "copy_out": "link", "communication": "communication", "layout": "memory"}


def _bound(one: Group, facts: Mapping[str, Any]) -> str:
    if one.role in _BY_ROLE:
        return _BY_ROLE[one.role]
    if one.estimate is not None:
        return str(one.estimate.bound)
    return busiest(facts)


def shapes(one: Group) -> str:
    """Shapes of the tensors that it was given, in words."""
    if one.signature is None:
        return ""
    parts = []
    for dims in one.signature.dims:
        if dims and isinstance(dims[0], tuple):
            parts.append(f"{len(dims)} tensors")
        elif dims:
            parts.append("x".join(map(str, dims)))
    text = ", ".join(parts)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _dtype(one: Group) -> str:
    """Formats of its contractions, else of its first tensor."""
    if one.dtypes:
        as_tf32 = one.estimate is not None and one.estimate.tf32
        return "+".join(sorted("tf32" if dtype == "fp32" and as_tf32 else dtype for dtype in one.dtypes))
    types = one.signature.types if one.signature is not None else ()
    return next((FORMATS[name] for name in types if name in FORMATS), "")
