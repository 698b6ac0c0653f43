"""For a pair of kernels: whether they can be one, what that saves, why not, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from roofline.analysis.estimates import Estimate
from roofline.analysis.fusing.pressure import Pressure, pressure_of
from roofline.analysis.fusing.reasons import Pair, Reason, Side, attention_of, reasons
from roofline.analysis.fusing.recompute import StoreOrRecompute, store_or_recompute
from roofline.analysis.fusing.table import one_point
from roofline.cost import COMPUTE, LAUNCH, KernelTime, kernel_time
from roofline.cost.compiled import THREAD_REGISTERS
from roofline.counting.counts import Boundaries, KernelCount, kernel_boundaries, kernels
from roofline.frontends.source import Program
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph
from roofline.ir.report import Report, subject
from roofline.ir.units import format_si
from roofline.ops.registry import OPS
from roofline.passes.fusion.fuse import POLICIES, fuse

#: Policies that somebody's compiler or library implements.
_REAL = tuple(policy for policy in POLICIES if policy not in ("eager", "ideal"))


@dataclass(frozen=True, repr=False)
class Explanation(Report):
    """Whether two kernels can be one, and what of it.

    From :func:`roofline.analysis.explain_fusion`.

    Attributes:
        first: The earlier kernel.
        second: The later one.
        fusible: Whether some compiler or library makes one kernel of them.
        policies: Fusion policies that do.
        together: The kernels that become one, others included that lie between or belong to the same attention.
        before_bytes: What the kernels move apart, each time [byte].
        after_bytes: What one kernel of them would move, spilled registers included [byte].
        before_s: Expected time apart [s]; ``None`` without a chip.
        after_s: Expected time as one kernel, what is spilled included [s]; ``None`` without a chip, and where they
            cannot be one.
        reasons: Why, why not and what it is worth, a line each.
        hurts: What fusing costs: registers, shared memory, arithmetic done again.
        about: The program, the chip and the sizes.
    """

    schema = "fuse_pair"

    first: str
    second: str
    fusible: bool
    policies: tuple[str, ...]
    together: tuple[str, ...]
    before_bytes: float
    after_bytes: float
    before_s: float | None = None
    after_s: float | None = None
    reasons: tuple[str, ...] = ()
    hurts: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def saves_bytes(self) -> float:
        """Bytes that one kernel would move less, each time [byte]; of a pair that cannot be one, what it would."""
        return self.before_bytes - self.after_bytes

    @property
    def saves_s(self) -> float | None:
        """Time that one kernel takes less, each time [s]; ``None`` without a chip, and where they cannot be one."""
        return None if self.before_s is None or self.after_s is None else self.before_s - self.after_s

    def subject(self) -> dict[str, Any]:
        """Return the program, the chip and the sizes."""
        return dict(self.about)

    def records(self) -> list[dict[str, Any]]:
        """Return the verdict as one row, with what one kernel saves."""
        row = {**asdict(self), "saves_bytes": self.saves_bytes, "saves_s": self.saves_s}
        del row["about"]
        return [row]

    def __str__(self) -> str:
        verdict = "can be one kernel" if self.fusible else "cannot be one kernel"
        lines = [f"{self.first} + {self.second}: {verdict}", *self.reasons]
        if self.saves_bytes:
            lines.append(self._worth())
        lines += [f"hurts: {text}" for text in self.hurts]
        return "\n  ".join(lines)

    def _worth(self) -> str:
        before, after = (format_si(value, "B") for value in (self.before_bytes, self.after_bytes))
        text = f"{before} -> {after}" if self.fusible else f"it would move {after} instead of {before}"
        if self.before_s is None or self.after_s is None:
            return text
        return f"{text}, {format_si(self.before_s, 's')} -> {format_si(self.after_s, 's')}"

    __repr__ = __str__


def explain_fusion(
    program: Program | Estimate,
    first: str,
    second: str,
    chip: AnyChip | None = None,
    *,
    phase: str | None = None,
    dtype: str | None = None,
    **sizes: Any,
) -> Explanation:
    """Explain whether two kernels can be one, what that saves, why not, and what it costs.

    Args:
        program: A graph, a shipped name, or the path of a model file, workload, config or script.
        first: A kernel or a node of one.
        second: Another, in either order.
        chip: Where it runs, for times and registers; without them when absent.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``batch``, ``seq``, ``context`` and any other size of the program, single numbers.

    Returns:
        The verdict with its reasons, and bytes and times before and after.

    Raises:
        UsageError: No such kernel, or a size that spans an axis.
        UnboundSize: A symbol of the graph has no value.

    Example:
        >>> import roofline as rl
        >>> b = rl.ops.Builder("mlp", "bf16")
        >>> h = b.op("linear", b.input("x", (8192, 4096)), b.weight("w", (16384, 4096)), name="up")
        >>> graph = b.graph([b.op("gelu", h, name="gelu")])
        >>> print(explain_fusion(graph, "up", "gelu", "h100-sxm").reasons[0])
        up is a cuBLAS kernel, which takes no other code; cuBLASLt has gelu as an epilogue
    """
    graph, target, at = one_point(program, chip, sizes, phase, dtype)
    where = find_chip(target) if target is not None else None
    scope = kernel_boundaries(graph)
    labels = sorted((_label(graph, name) for name in (first, second)), key=list(scope.graph.kernels).index)
    about = subject(graph, where.name if where else None, sizes=at)
    if labels[0] == labels[1]:
        return replace(_already_one(graph, labels[0], (first, second), where, at), about=about)
    if labels[0] in _reach(scope, labels[1], forwards=True):
        labels.reverse()
    return replace(_Explainer(scope, labels[0], labels[1], where, at).explain(), about=about)


def _label(graph: Graph, name: str) -> str:
    """The kernel of that name, or of the node of that name.

    Raises:
        UsageError: Neither, or a view, which is no kernel.
    """
    for node in graph.nodes:
        if name in (node.name, node.label) and OPS[node.op].kind != "view":
            return node.label
    if any(name == node.name for node in graph.nodes):
        raise UsageError(f"{graph.name}: {name!r} is a view, which moves nothing and is no kernel")
    names = {name for node in graph.nodes if OPS[node.op].kind != "view" for name in (node.name, node.label)}
    raise UsageError(f"{graph.name} has no kernel or node {name[:60]!r}{did_you_mean(name, names)}")


def _already_one(
    graph: Graph, label: str, names: tuple[str, str], chip: Chip | None, sizes: Mapping[str, int]
) -> Explanation:
    """Two nodes of one kernel: what it saves against each of its operators alone."""
    scope = kernel_boundaries(graph)
    members = [node.name for node in scope.graph.kernels[label] if OPS[node.op].kind != "view"]
    before = _cost(fuse(graph, "eager"), members, chip, sizes)
    after = _cost(graph, [label], chip, sizes)
    pressure = pressure_of(scope, label, scope.graph.kernels[label], chip, sizes) if chip else Pressure(label)
    text = f"they run in one kernel already, {label}, of {len(members)} operator{'s' if len(members) > 1 else ''}"
    return _Change(before, after, pressure, tuple(members)).explanation(names, [Reason(text)], (), chip)


@dataclass(frozen=True)
class _Cost:
    """Kernels, each once: traffic, expected time, and the parts that these are sums of."""

    bytes: float
    seconds: float | None
    parts: tuple[tuple[KernelCount, KernelTime | None], ...]


def _cost(graph: Graph, labels: Sequence[str], chip: Chip | None, sizes: Mapping[str, int]) -> _Cost:
    rows = {name: kernel for kernel in kernels(graph) for name in kernel.names if name in labels}
    counted = [rows[name].at(sizes) for name in labels]
    times = [kernel_time(row, chip) if chip else None for row in counted]
    often = [row.kernel.main.count for row in counted]
    return _Cost(
        float(sum(n * row.bytes for n, row in zip(often, counted, strict=True))),
        float(sum(n * t.expected for n, t in zip(often, times, strict=True) if t)) if chip else None,
        tuple(zip(counted, times, strict=True)),
    )


@dataclass(frozen=True)
class _Change:
    """Kernels apart and as one, and what the one asks of a core."""

    before: _Cost
    after: _Cost
    asked: Pressure
    together: tuple[str, ...]

    def explanation(
        self,
        names: tuple[str, str],
        remarks: Sequence[Reason],
        policies: tuple[str, ...],
        chip: Chip | None,
        recomputation: StoreOrRecompute | None = None,
    ) -> Explanation:
        """The answer, from what the rules found and what computing something again would take."""
        fusible = not any(reason.blocks for reason in remarks)
        worth = list(_worth(self.before))
        costly: list[str] = []
        if recomputation:
            (worth if recomputation.recompute else costly).append(str(recomputation))
        spilled, after_s = self.asked.spill_bytes, self.after.seconds if fusible else None
        if after_s is not None and chip is not None:
            after_s += spilled / (chip.bandwidth * chip.efficiency.memory)
        return Explanation(
            first=names[0],
            second=names[1],
            fusible=fusible,
            policies=policies,
            together=self.together,
            before_bytes=self.before.bytes,
            after_bytes=self.after.bytes + spilled,
            before_s=self.before.seconds,
            after_s=after_s,
            reasons=(*(reason.text for reason in remarks), *(worth if fusible else ())),
            hurts=(*_overflow(self.asked), *(f"recomputation: {text}" for text in costly)) if fusible else (),
        )


def _worth(before: _Cost) -> Iterator[str]:
    """Say what the saved bytes are worth in time, where traffic does not set the pace."""
    timed = [(row, time) for row, time in before.parts if time is not None]
    for row, time in timed:
        if int(time.bound) == COMPUTE and row.flops_by:
            yield (
                f"{row.kernel.name} is compute-bound ({format_si(float(time.compute), 's')} against "
                f"{format_si(float(time.memory), 's')} of traffic): fewer bytes do not shorten it; fusing saves only "
                "the other kernel's own time and launch"
            )
            return
    if timed and all(int(time.bound) == LAUNCH for _, time in timed):
        yield "they are launch-bound: one kernel saves a launch, the bytes hardly matter"


def _overflow(pressure: Pressure) -> Iterator[str]:
    """Say what of the fused body does not fit a core."""
    registers = pressure.registers
    if registers and registers.spilled:
        instead = f"; {pressure.narrower} elements per thread would fit" if pressure.narrower else ""
        yield (
            f"registers: {registers.live} live values x {registers.width} elements take {registers.needed} of "
            f"{THREAD_REGISTERS} per thread: {format_si(registers.spill_bytes, 'B')} spilled and read back{instead}"
        )
    rows = pressure.rows
    if rows and not rows.held:
        yield (
            f"shared memory: a row takes {format_si(float(rows.row_bytes), 'B')}, a core has "
            f"{format_si(rows.room, 'B')}: {format_si(float(rows.again), 'B')} are read again"
        )


class _Explainer:
    """Looks at two kernels of a program."""

    def __init__(self, scope: Boundaries, first: str, second: str, chip: Chip | None, sizes: Mapping[str, int]) -> None:
        self.scope, self.graph, self.chip, self.sizes = scope, scope.graph, chip, sizes
        self.first, self.second = self.side(first), self.side(second)

    def side(self, label: str) -> Side:
        nodes = tuple(node for node in self.scope.graph.kernels[label] if OPS[node.op].kind != "view")
        return Side(self.scope, label, nodes, self.sizes)

    def explain(self) -> Explanation:
        vendor = self.chip.vendor if self.chip else "NVIDIA"
        pair = Pair(self.graph, self.first, self.second, self._between(), vendor)
        policies = tuple(policy for policy in _REAL if self._unites(policy))
        members, remarks = self._verdict(pair, policies)
        one = self._as_one(members)
        nodes = [node for label in members for node in self.scope.graph.kernels[label]]
        pressure = (
            pressure_of(kernel_boundaries(one), members[0], nodes, self.chip, self.sizes)
            if self.chip
            else Pressure(members[0])
        )
        before = _cost(self.graph, members, self.chip, self.sizes)
        same = len({node.count for node in nodes if OPS[node.op].kind != "view"}) == 1
        after = _cost(one, members[:1], self.chip, self.sizes) if same else before
        names, recomputation = (self.first.label, self.second.label), self._computed_again(pair, members)
        return _Change(before, after, pressure, tuple(members)).explanation(
            names, remarks, policies, self.chip, recomputation
        )

    def _verdict(self, pair: Pair, policies: Sequence[str]) -> tuple[list[str], list[Reason]]:
        """The kernels that become one with the pair, and what is to say of it."""
        attention = attention_of(pair) if "flash" in policies else ()
        if attention:
            text = f"{', '.join(attention)} are attention: a flash kernel keeps the scores on the chip"
            return list(attention), [Reason(text)]
        members, remarks = [self.first.label, self.second.label], reasons(pair)
        if policies and any(reason.blocks for reason in remarks):
            members = [label for label in self.scope.graph.kernels if label in {*members, *pair.between}]
            others = f" with {', '.join(pair.between)}, which lie between" if pair.between else ""
            remarks = [Reason(f"policy {policies[0]} makes one kernel of them{others}")]
        return members, remarks

    def _unites(self, policy: str) -> bool:
        """Tell whether a policy puts all of both kernels into one."""
        names = {node.name for side in (self.first, self.second) for node in side.nodes}
        return len({node.label for node in fuse(self.graph, policy).nodes if node.name in names}) == 1

    def _between(self) -> tuple[str, ...]:
        """Kernels on a way from the first to the second, in order."""
        down = _reach(self.scope, self.first.label, forwards=True)
        up = _reach(self.scope, self.second.label, forwards=False)
        return tuple(label for label in self.scope.graph.kernels if label in down & up)

    def _as_one(self, labels: Sequence[str]) -> Graph:
        """The program with some kernels as one."""
        return replace(self.graph, nodes=tuple(
            replace(node, kernel=labels[0]) if node.label in labels else node for node in self.graph.nodes
        ))  # fmt: skip

    def _computed_again(self, pair: Pair, members: Sequence[str]) -> StoreOrRecompute | None:
        """A producer with readers beside the pair: what computing it in each of them would take."""
        made = self.first.nodes[-1]
        all_readers = {label for name in made.outputs for label in _readers(self.scope, name)} - {self.first.label}
        alone = pair.handed and len(self.first.nodes) == 1 and self.first.kind == "loop"
        if self.chip is None or not alone or all_readers <= set(members):
            return None
        if any(self.side(label).main.count != made.count for label in all_readers):
            return None
        return store_or_recompute(self.graph, made.name, self.chip, **self.sizes)


def _reach(scope: Boundaries, start: str, forwards: bool) -> set[str]:
    """Return the kernels that wait for one, or that it waits for."""
    seen: set[str] = set()
    stack = [start]
    while stack:
        new = _next(scope, stack.pop(), forwards) - seen - {start}
        seen |= new
        stack += new
    return seen


def _next(scope: Boundaries, label: str, forwards: bool) -> set[str]:
    nodes = scope.graph.kernels[label]
    if forwards:
        return {reader for node in nodes for name in node.outputs for reader in _readers(scope, name)}
    bases = {scope.base(name) for node in nodes for name in node.inputs}
    return {scope.graph.producer[base].label for base in bases if base in scope.graph.producer} - {label}


def _readers(scope: Boundaries, name: str) -> set[str]:
    """Return the kernels that read a tensor, through views."""
    labels: set[str] = set()
    for reader in scope.graph.consumers.get(name, ()):
        if OPS[reader.op].kind == "view":
            labels |= {label for made in reader.outputs for label in _readers(scope, made)}
        else:
            labels.add(reader.label)
    return labels
