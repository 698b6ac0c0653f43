"""Where the time of a traced iteration went: every launch and every gap was needed, or lost to a cause.

Groups of calls that show a fault of their own come first: :data:`RULES` are tried in order, and the first that applies
to a group decides. The remaining matmuls are compared with those of the reference: more work, pieces, or slow. The
remaining other kernels are compared with the reference's: the excess is a chain that should be fewer kernels. Gaps come
with their reasons (:mod:`~roofline.diagnosis.idle`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan, prod
from typing import Any

from roofline.diagnosis.groups import CONTRACTIONS, Group
from roofline.diagnosis.idle import EVIDENCE, VALUE_BYTES, Idle
from roofline.diagnosis.reference import LAUNCH_COST, Reference
from roofline.ir.sizes import evaluate
from roofline.ir.units import format_si

Shape = tuple[int, ...]

#: Classes of kernels that only sweep over memory or move data.
SWEEPS = ("pointwise", "rowwise", "reduction", "move")
#: A kernel may take this many times the model's best before anything is said about it.
TOLERANCE = 1.35
#: The reference's own kernels may be this many times slower than expected, without a cause.
SLOWER = 1.6
#: Clocks and power slow a chip down by less than this factor.
THROTTLED = 3.0
#: From this many times the reference's contractions on, more was computed than was asked for.
MORE_WORK = 1.3
#: This many times the reference's launches are pieces; among kernels other than matmuls, this many.
PIECES, SMALL_PIECES = 4, 20
#: Kernels shorter than this on average are launches more than work [s].
TINY = 8e-6
#: Kernels other than matmuls that need no explanation, as a share of all.
SMALL_CHANGE = 0.05
#: This many sizes of concatenations are one tensor that changes step by step.
MANY_SIZES = 4
#: Parts of a cause that its evidence names.
NAMED = 3
#: The label of time that is not lost.
NEEDED = ""


@dataclass(frozen=True)
class TraceContext:
    """A traced iteration and the program that it is compared with.

    Attributes:
        reference: The expected program, ``None`` where only the trace is known.
        groups: Calls that ran.
        idle: What the device waited for.
        calls: Whether calls of the runtime were recorded, which show launches.
    """

    reference: Reference | None
    groups: Sequence[Group]
    idle: Idle
    calls: bool = True

    def _rows(self, kinds: Iterable[str]) -> list[tuple[Any, Any]]:
        """Return the reference's kernels of some classes, each with its times."""
        if self.reference is None:
            return []
        est = self.reference.ideal
        return [pair for pair in zip(est.rows, est.times[0], strict=True) if pair[0].kernel.kind in kinds]

    def budget(self, *kinds: str) -> float:
        """Return the time of the reference's kernels of some classes [s]; infinite without a reference."""
        if self.reference is None:
            return float("inf")
        spent = sum(row.kernel.count * float(time.expected) for row, time in self._rows(kinds))
        return float(spent) - (self.reference.scattered if "move" in kinds else 0.0)

    def launches(self, *kinds: str) -> int:
        """Count the launches of the reference's kernels of some classes."""
        return sum(int(row.kernel.count) for row, _ in self._rows(kinds))

    @property
    def flops(self) -> float:
        """The reference's contractions [FLOP]; nan without a reference."""
        return float(self.reference.ideal.flops) if self.reference is not None else float("nan")

    @property
    def launched(self) -> int:
        """All launches of the reference."""
        return int(self.reference.ideal.launches) if self.reference is not None else 0

    @cached_property
    def attention(self) -> frozenset[Shape]:
        """Query length, key length and head size of each attention of the reference."""
        if self.reference is None:
            return frozenset()
        operands = [self.reference.shapes(row) for row, _ in self._rows(("attention",))]
        return frozenset((queries[2], keys[2], queries[3]) for queries, keys, *_ in operands)

    def is_score(self, shape: Shape) -> bool:
        """Tell whether a tensor is as large as attention scores, or as those of a part of the queries."""
        if len(shape) < 3:
            return False
        if self.reference is None:
            return shape[-2:] in self._softmaxed
        rows, columns = shape[-2:]
        return any(columns == keys and rows <= queries and rows != size for queries, keys, size in self.attention)

    @cached_property
    def _softmaxed(self) -> frozenset[Shape]:
        """Trailing sizes of a matmul's result that a softmax reads: attention written by hand."""
        made = {shape[-2:] for group in self.groups if group.kind == "matmul" for shape in results(group)}
        soft = {
            shape[-2:]
            for group in self.groups
            if "softmax" in group.op
            for shape in shapes(group)[:1]
            if len(shape) > 2
        }
        return frozenset(made & soft)

    @cached_property
    def has_slow_format(self) -> bool:
        """True if any contraction runs in a slower format than the chip has for its data."""
        return any(precision(self, group) for group in self.groups)

    @cached_property
    def sizes_of_concatenations(self) -> int:
        """Number of different sizes of the results of concatenations."""
        return len({sum(map(prod, shapes(group))) for group in self.groups if group.op == "aten::cat"})


def shapes(group: Group) -> list[Shape]:
    """Return the shapes of the tensors that a call was given, those in lists included."""
    return _flat(group.signature.dims) if group.signature is not None else []


def _flat(parts: Iterable[Any]) -> list[Shape]:
    flat: list[Shape] = []
    for part in parts:
        flat += part if part and isinstance(part[0], tuple) else [part]
    return [shape for shape in flat if shape]


def strides(group: Group) -> list[Shape]:
    """Return the strides of those tensors, where they were recorded."""
    return _flat(group.signature.strides) if group.signature is not None else []


def results(group: Group) -> list[Shape]:
    """Return the shapes of what a call returns, by its formula."""
    graph = group.graph
    if graph is None:
        return []
    return [tuple(int(evaluate(size, {})) for size in graph.tensors[name].shape) for name in graph.outputs]


def largest(group: Group) -> list[int]:
    """Return the shape of a call's largest operand."""
    return list(max(shapes(group), key=prod, default=()))


# --- faults of one group: what was needed of its time, what the rest was lost to, and what was seen -------------------

#: Time needed [s], label and evidence; ``None`` where the rule does not apply.
Finding = tuple[float, str, str] | None


def host_copies(context: TraceContext, group: Group) -> Finding:
    """Find copies between host and device; single values are read back, which is a wait and no copy."""
    if group.role not in ("copy_in", "copy_out"):
        return None
    if group.role == "copy_out" and group.moved < VALUE_BYTES * group.launches:  # False of nan
        return 0.0, "sync", f"{group.launches:g} values read back"
    pageable = ", pageable" if "pageable" in " ".join(group.kernels).lower() else ""
    way = "to the device" if group.role == "copy_in" else "to the host"
    if isnan(group.moved):
        return 0.0, "host_copy", f"{group.launches:g} copies {way}, of unknown size{pageable}"
    rate = format_si(group.moved / group.lasted, "B/s") if group.lasted else "no time"
    return 0.0, "host_copy", f"{format_si(group.moved, 'B')} {way} at {rate}{pageable}"


def communication(context: TraceContext, group: Group) -> Finding:
    """Find collectives that no kernel hides."""
    if group.role != "communication":
        return None
    needed = min(context.budget("network"), group.seconds) if context.reference else 0.0
    return needed, "communication", group.kernel


def on_the_cpu(context: TraceContext, group: Group) -> Finding:
    """Find operators that ran on the CPU although the program is for a device, where launches would have been seen."""
    if group.role != "host":
        return None
    if not context.calls:
        return 0.0, "unknown", f"{group.op} on the host; whether it launched anything was not recorded"
    return 0.0, "wrong_device", f"{group.op} on the CPU"


def dispatch(context: TraceContext, group: Group) -> Finding:
    """Find operators on a CPU that only call others or inspect tensors."""
    if not group.op or group.kernels != (group.op,) or group.graph is None or group.graph.nodes:
        return None
    return 0.0, "launch_bound", f"{group.calls:g} calls of {group.op}, which computes nothing itself"


def layouts(context: TraceContext, group: Group) -> Finding:
    """Find copies that only change the order of the elements in memory."""
    if group.role == "layout":
        return 0.0, "layout_copy", group.kernel
    if group.op != "aten::copy_" or len(strides(group)) < 2:
        return None
    to, source = strides(group)[:2]
    shape = shapes(group)[0]
    order, other = _order(to, shape), _order(source, shape)
    moved = tuple(axis for axis in order if axis in other)  # others are repeated, such as those of a bias
    if moved == tuple(axis for axis in other if axis in order):
        return None
    return 0.0, "layout_copy", f"{list(shape)} from strides {list(source)} to {list(to)}"


def _order(stride: Shape, shape: Shape) -> tuple[int, ...]:
    """Return the axes from the slowest to the fastest, without those of one element or stride 0; none if unknown."""
    if len(stride) != len(shape):
        return ()
    axes = [axis for axis, (step, size) in enumerate(zip(stride, shape, strict=True)) if size > 1 and step > 0]
    return tuple(sorted(axes, key=lambda axis: -stride[axis]))


def precision(context: TraceContext, group: Group) -> Finding:
    """Find contractions in a slower format than the chip has for the same data."""
    if not group.contracts or not group.dtypes & {"fp32", "fp64"} or not group.expected > 1.2 * group.best:
        return None
    best = min(group.best, context.budget(*CONTRACTIONS))
    if group.seconds < 1.5 * best:
        return None
    assert group.estimate is not None
    flops = ((dtype, row.kernel.count * part) for row in group.estimate.rows for dtype, part in row.flops_by.items())
    # What the contractions take at least in the recorded format: a faster run used another one.
    at_peak = float(group.calls * sum(part / group.chip.matmul_peak(dtype) for dtype, part in flops))
    if group.seconds < 0.9 * at_peak:
        return None
    return best, "precision", f"{group.op} in {'+'.join(sorted(group.dtypes))}: {group.kernel}"


def doubles(context: TraceContext, group: Group) -> Finding:
    """Find other kernels on fp64, which is rarely intended."""
    if group.contracts or group.signature is None or isnan(group.best):
        return None
    tensors = zip(group.signature.types, group.signature.dims, strict=False)
    if not any(type_ == "double" and dims for type_, dims in tensors):
        return None
    return min(group.best, group.seconds), "precision", f"{group.op} in fp64"


def casts(context: TraceContext, group: Group) -> Finding:
    """Find conversions of formats where contractions run in a slow one."""
    if group.op != "aten::copy_" or group.signature is None or len(set(group.signature.types[:2])) < 2:
        return None
    return (0.0, "precision", f"conversion of {largest(group)}") if context.has_slow_format else None


def alignment(context: TraceContext, group: Group) -> Finding:
    """Find matmuls whose rows, and convolutions whose channels, are not multiples of 8 elements."""
    if group.kind == "conv":  # a few colour channels are expected to be slow
        odd = sorted({shape[1] for shape in shapes(group) if len(shape) > 2 and shape[1] > 8 and shape[1] % 8})
        if not odd or group.seconds < 1.35 * group.best:
            return None
        return group.best, "alignment", f"{group.op} with {', '.join(map(str, odd))} channels: {group.kernel}"
    if group.kind != "matmul" or group.estimate is None or group.seconds < 1.25 * group.best:
        return None
    odd = sorted({step for stride in strides(group) for step in stride if step % 8 and step > 8})
    if not odd and group.expected < 1.2 * group.best:
        return None
    rows = ", ".join(map(str, odd)) or "odd length"
    return group.best, "alignment", f"{group.op} with rows of {rows}: {group.kernel}"


def companions(context: TraceContext, group: Group) -> Finding:
    """Accept the small kernels that a convolution launches, such as its bias."""
    if group.contracts or not any(name.startswith("aten::conv") for name in group.path):
        return None
    return group.seconds, NEEDED, ""


def materialised(context: TraceContext, group: Group) -> Finding:
    """Find kernels that write or read attention scores."""
    if group.kind in ("attention", "conv", "") or not any(map(context.is_score, (*shapes(group), *results(group)))):
        return None
    return 0.0, "materialised", f"{group.op} on {largest(group)}"


#: Operators that return a changed copy of a tensor, where writing in place would touch a part of it.
_COPY_AND_CHANGE = re.compile(r"aten::(index_copy|index_put|index_add|index_fill|scatter|scatter_add|constant_pad_nd)$")


def changed_copies(context: TraceContext, group: Group) -> Finding:
    """Find whole tensors that are copied to change or add a part."""
    around = next((name for name in group.path if _COPY_AND_CHANGE.match(name)), None)
    if around is None or group.op not in ("aten::copy_", "aten::clone", "aten::fill_"):
        return None
    return 0.0, "reallocation", f"{around} copies {largest(group)}"


def grown(context: TraceContext, group: Group) -> Finding:
    """Find concatenations that copy much to add little."""
    if group.op == "aten::roll":
        return 0.0, "reallocation", f"{group.calls:g} times {largest(group)} moved along"
    expected = context.reference is not None and context.budget("move") >= 0.5 * group.seconds
    sizes = sorted(prod(shape) for shape in shapes(group))
    little = len(sizes) > 1 and sizes[-1] >= 4 * sizes[-2]
    if group.op != "aten::cat" or expected or not (little or context.sizes_of_concatenations >= MANY_SIZES):
        return None
    each = format_si(group.bytes / group.calls, "B")
    return 0.0, "reallocation", f"{group.calls:g} times {each} moved to change little"


#: Operators that order everything to find a little of it.
_ORDERING = re.compile(r"aten::(_?sort|argsort|msort|_?unique\w*|kthvalue|median)$")


def ordering(context: TraceContext, group: Group) -> Finding:
    """Find sorting where the reference does not sort."""
    if not _ORDERING.match(group.op) or context.reference is None:
        return None
    needed = min(context.budget("rowwise", "reduction"), group.seconds)
    return needed, "wasted_work", f"{group.op} on {largest(group)}"


#: Operators that read or write wherever an index says.
_INDEXING = re.compile(r"aten::(_?index|_unsafe_index|gather|take|scatter|embedding|put)")


def scattered(context: TraceContext, group: Group) -> Finding:
    """Find gathers and scatters far slower than moving as much in order, and copies that skip elements."""
    moved = group.bytes or 4.0 * group.calls * max(map(prod, results(group)), default=0)
    in_order = moved / (0.85 * group.chip.bandwidth) + group.calls * LAUNCH_COST
    rate = format_si(group.bytes / group.seconds, "B/s") if group.seconds and group.bytes else "little"
    if _INDEXING.match(group.op) and group.seconds > 1.5 * in_order:
        return in_order, "uncoalesced", f"{group.op} on {largest(group)}: {rate} reached"
    if group.op not in ("aten::copy_", "aten::clone") or not group.seconds > 2 * group.best:
        return None
    # An operand skips elements where no axis has its elements side by side.
    if any(min((step for step in stride if step > 0), default=1) > 1 for stride in strides(group)):
        return group.best, "uncoalesced", f"{group.op} with strides {list(strides(group)[-1])}: {rate} reached"
    return None


# --- what could show it -----------------------------------------------------------------------------------------------

#: What may be recorded of calls, and how that is told.
RECORDS: Mapping[str, Callable[[Group], bool]] = {
    "operator": lambda group: bool(group.op),
    "path": lambda group: bool(group.path),
    "shapes": lambda group: bool(shapes(group)),
    "strides": lambda group: bool(strides(group)),
    "formula": lambda group: group.graph is not None,
    "class": lambda group: bool(group.kind),
    # Not a record, but what makes the time of a launch the launching of it.
    "short": lambda group: group.seconds <= TINY * group.launches,
}


@dataclass(frozen=True)
class Rule:
    """A rule about calls, and the records that could show what it says.

    Attributes:
        find: Says what of their time was needed and what the rest was lost to.
        needs: Names of :data:`RECORDS`; without them the rule is not asked.
    """

    find: Callable[[TraceContext, Group], Finding]
    needs: frozenset[str] = frozenset()


def _rule(find: Callable[[TraceContext, Group], Finding], *needs: str) -> Rule:
    return Rule(find, frozenset(needs))


RULES: tuple[Rule, ...] = (
    _rule(host_copies), _rule(communication), _rule(on_the_cpu, "operator"),
    _rule(dispatch, "operator", "formula", "short"), _rule(layouts), _rule(precision, "shapes", "formula"),
    _rule(doubles, "shapes"), _rule(alignment, "shapes", "class"), _rule(casts, "shapes", "operator"),
    _rule(companions, "path"), _rule(materialised, "shapes"), _rule(changed_copies, "path"),
    _rule(grown, "operator", "shapes"), _rule(ordering, "operator"), _rule(scattered, "operator", "shapes"),
)  # fmt: skip

#: The records that could show what groups together were lost to.
TOGETHER: Mapping[str, frozenset[str]] = {
    "wasted_work": frozenset({"class"}),
    "small_batch": frozenset({"class", "formula"}),
    "launch_bound": frozenset({"class", "short"}),
    "clock_or_power": frozenset({"class", "formula"}),
    "kernel_choice": frozenset({"class", "formula"}),
    "uncoalesced": frozenset({"class", "formula"}),
    "unfused": frozenset({"class"}),
}


def first_finding(context: TraceContext, group: Group) -> Finding:
    """Return the finding of the first rule that applies to a group and that its records could show."""
    recorded = {name for name, is_there in RECORDS.items() if is_there(group)}
    findings = (rule.find(context, group) for rule in RULES if rule.needs <= recorded)
    return next((finding for finding in findings if finding is not None), None)


def _shown(label: str, groups: Sequence[Group]) -> tuple[str, str]:
    """Return a label where the records of most of the time could show it, else that it is not known, and why."""
    spent = sum(group.seconds for group in groups)
    lacking = [
        name
        for name in sorted(TOGETHER.get(label, ()))
        if 2 * sum(group.seconds for group in groups if RECORDS[name](group)) < spent
    ]
    if not lacking:
        return label, ""
    return "unknown", "; shapes, which would tell why, were not recorded" if "formula" in lacking else ""


# --- all of an iteration ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """Some of an iteration's time.

    Attributes:
        label: What it was lost to; :data:`NEEDED` where it was not.
        seconds: [s]; below zero where other parts of the label counted too much.
        evidence: What was seen.
    """

    label: str
    seconds: float
    evidence: str = ""


def attribute(context: TraceContext) -> tuple[float, list[tuple[str, float, str]]]:
    """Split the time of an iteration into what was needed and what was lost.

    Args:
        context: The iteration and what it is compared with.

    Returns:
        The time that was not lost [s]; label, time [s] and evidence of each cause, the most time first.
    """
    parts = take_apart(context)
    totals: dict[str, float] = defaultdict(float)
    for part in parts:
        totals[part.label] += part.seconds
    needed = totals.pop(NEEDED, 0.0)
    by_time = sorted(totals.items(), key=lambda total: -total[1])
    return needed, [(label, seconds, _evidence(parts, label)) for label, seconds in by_time]


def take_apart(context: TraceContext) -> list[Part]:
    """Return all parts of an iteration; together they are its time."""
    parts: list[Part] = []
    rest: list[Group] = []
    for group in context.groups:
        if (finding := first_finding(context, group)) is None:
            rest.append(group)
        else:
            parts += _split(group.seconds, *finding)
    parts += _credit(context, parts, "materialised", context.budget("attention"), "less what attention takes anyway")
    parts += _contractions(context, [group for group in rest if group.contracts])
    parts += _sweeps(context, [group for group in rest if not group.contracts], parts)
    parts += _waits(context)
    elsewhere = 0.0  # contractions of the reference that the device did not do, so that they were done elsewhere
    if context.reference is not None and context.flops:
        done = sum(group.flops for group in context.groups if group.role == "kernel")
        elsewhere = max(1 - done / context.flops, 0.0) * context.budget(*CONTRACTIONS)
    return parts + _credit(context, parts, "wrong_device", elsewhere, "less what the device would take")


def _split(spent: float, needed: float, label: str, evidence: str) -> list[Part]:
    needed = min(needed, spent)
    return [Part(NEEDED, needed), Part(label, spent - needed, evidence)]


def _credit(context: TraceContext, parts: Sequence[Part], label: str, seconds: float, why: str) -> list[Part]:
    """Give back what was needed of the time lost to a label."""
    part = min(seconds, sum(one.seconds for one in parts if one.label == label))
    return [Part(NEEDED, part), Part(label, -part, why)] if context.reference is not None and part > 0 else []


def _judged(groups: Sequence[Group], needed: float, label: str, evidence: str) -> list[Part]:
    label, lacking = _shown(label, groups)
    return _split(sum(group.seconds for group in groups), needed, label, evidence + lacking)


def _contractions(context: TraceContext, groups: Sequence[Group]) -> list[Part]:
    """Judge matmuls, convolutions and attention: too much work, pieces, or slow."""
    spent = sum(group.seconds for group in groups)
    if context.reference is None:
        return [Part(NEEDED, spent)]
    budget, done = context.budget(*CONTRACTIONS), sum(group.flops for group in groups)
    if done > MORE_WORK * context.flops:
        why = f"{format_si(done, 'FLOP')} computed where {format_si(context.flops, 'FLOP')} are expected"
        return _split(spent, min(spent * context.flops / done, budget), "wasted_work", why)
    calls = sum(group.calls for group in groups)
    if calls >= PIECES * max(context.launched, 1) and spent > TOLERANCE * budget:
        waiting = context.idle.seconds.get("launch_bound", 0.0) > spent - budget
        why = f"{calls:g} calls where {context.launched} are expected"
        short = waiting and spent <= TINY * sum(group.launches for group in groups)
        return _judged(groups, budget, "launch_bound" if short else "small_batch", why)
    best = max(sum(group.best for group in groups if not isnan(group.best)), budget)
    if spent and not best:  # none is expected, and those that ran have no formula
        return _split(spent, 0.0, "wasted_work", "matmuls of unknown size where none are expected")
    if spent > TOLERANCE * best:
        label = "clock_or_power" if spent < THROTTLED * best else "kernel_choice"
        return _judged(groups, best, label, f"matmuls take {spent / best:.2g} times what they should")
    return [Part(NEEDED, spent)]


def _sweeps(context: TraceContext, groups: Sequence[Group], before: Sequence[Part]) -> list[Part]:
    """Judge elementwise, row-wise and moving kernels: the reference's share is needed, the rest is a chain."""
    spent = sum(group.seconds for group in groups)
    budget, launches = context.budget(*SWEEPS), sum(group.launches for group in groups)
    few = launches <= context.launches(*SWEEPS)
    if context.reference is None or not spent or (few and spent <= SLOWER * budget):
        return [Part(NEEDED, spent)]
    needed = min(spent, max(budget, SMALL_CHANGE * sum(group.seconds for group in context.groups)))
    pieces = launches > SMALL_PIECES * max(context.launched, 1) and spent < TINY * launches
    label = (
        "uncoalesced" if few
        else "wasted_work" if any(part.label == "wasted_work" for part in before)
        else "launch_bound" if pieces
        else "unfused"
    )  # fmt: skip
    lost = (spent - needed) / spent
    label, lacking = _shown(label, groups)
    shares = [Part(label, group.seconds * lost, f"{_named(group)}{lacking}") for group in groups]
    return [Part(NEEDED, needed), *shares]


def _named(group: Group) -> str:
    on = largest(group)
    return f"{group.op or group.kernel} on {on}" if on else group.op or group.kernel


#: Operators of programs, rather than of preparing their inputs, when they are seen on the CPU.
_PROGRAM = ("mm", "linear", "conv", "softmax", "attention", "norm", "embedding", "lstm", "gelu", "relu")


def _waits(context: TraceContext) -> Iterator[Part]:
    for label, seconds in context.idle.seconds.items():
        if label != "host_compute":
            yield Part(label, seconds, EVIDENCE[label])
            continue
        for name, part in context.idle.heavy.items():
            program = any(word in name for word in _PROGRAM)
            yield Part("wrong_device" if program else "host_bound", part, f"{name} on the CPU")


def _evidence(parts: Iterable[Part], label: str) -> str:
    """Name the largest parts of a cause, and sum the others."""
    seen: Counter[str] = Counter()
    for part in parts:
        if part.label == label:
            seen[part.evidence] += part.seconds  # type: ignore[assignment]
    gains = [(text, seconds) for text, seconds in seen.most_common() if seconds > 0]
    named = [f"{text} ({format_si(seconds, 's')})" for text, seconds in gains[:NAMED]]
    if more := gains[NAMED:]:
        named.append(f"{len(more)} more ({format_si(sum(seconds for _, seconds in more), 's')})")
    named += [f"{text} ({format_si(-seconds, 's')})" for text, seconds in seen.items() if seconds < 0]
    return "; ".join(named)
