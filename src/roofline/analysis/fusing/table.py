"""The access table: what a program reads and writes under each fusion policy, unfused beside fused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from roofline.analysis.estimates import Estimate, estimate
from roofline.analysis.fusing.pressure import Pressure, pressure_of
from roofline.counting.counts import Counts, count_graph, kernel_boundaries
from roofline.counting.grid import grid
from roofline.counting.grid import one_point as one_point_only
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph, sizes_of
from roofline.ir.report import Report, subject
from roofline.ir.units import format_si
from roofline.ops.registry import OPS
from roofline.passes.fusion.fuse import POLICIES, fuse

#: A format of one byte: in it, bytes are elements.
_COUNTING = "int8"
#: Passes that only group: they are undone before policies are compared.
_GROUPING = frozenset({"fuse", "inductor", "flash", "ideal", "pad"})


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A program under one policy.

    Attributes:
        policy: Its name; ``given`` for the program's own kernels.
        kernels: Kernels of one run.
        accesses: Elements read and written over all kernel boundaries.
        bytes: The same [byte].
        spill_bytes: Registers that threads spill, written and read back, beyond that [byte]; ``None`` without a chip.
        time_s: Kernels one after the other, what is spilled included [s]; ``None`` without a chip.
        floor_s: The same at the datasheet's rates [s]; ``None`` without a chip.
        registers: Of the fullest thread; ``None`` without a chip or its limits.
    """

    policy: str
    kernels: int
    accesses: float
    bytes: float
    spill_bytes: float | None = None
    time_s: float | None = None
    floor_s: float | None = None
    registers: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """One kernel of a policy, unfused beside fused.

    Attributes:
        kernel: Label of its first occurrence.
        ops: Its operators in order, views left out.
        count: How often it runs.
        unfused_accesses: Elements that its operators read and write as kernels of their own, each time.
        accesses: Elements that it reads and writes, each time.
        unfused_bytes: The former [byte].
        bytes: The latter [byte].
    """

    kernel: str
    ops: tuple[str, ...]
    count: int
    unfused_accesses: float
    accesses: float
    unfused_bytes: float
    bytes: float


@dataclass(frozen=True)
class Fusion(Report):
    """What fusing does to a program.

    From :func:`roofline.analysis.fusion`.

    Attributes:
        graph: The program with the kernels that it was given.
        chip: Where times are for; ``None`` without.
        sizes: A number for each symbol.
        programs: The program under each policy, ``given`` first.
        rows: One a policy, in the same order.
    """

    schema = "fuse"

    graph: Graph
    chip: Chip | None
    sizes: Mapping[str, int]
    programs: Mapping[str, Graph]
    rows: tuple[PolicyRow, ...]

    def __getitem__(self, policy: str) -> PolicyRow:
        """Return the row of a policy.

        Raises:
            UsageError: No such policy.
        """
        by_policy = {row.policy: row for row in self.rows}
        if policy not in by_policy:
            near = did_you_mean(str(policy), by_policy)
            raise UsageError(f"unknown fusion policy {str(policy)[:60]!r}; allowed: {', '.join(by_policy)}{near}")
        return by_policy[policy]

    @property
    def unfused(self) -> PolicyRow:
        """Every operator as a kernel of its own."""
        return self["eager"]

    @property
    def fused(self) -> PolicyRow:
        """As mode ``compiled`` fuses."""
        return self["chains"]

    def groups(self, policy: str = "chains") -> tuple[Group, ...]:
        """Return the kernels of a policy, unfused beside fused, most saved first; those of one operator left out.

        Raises:
            UsageError: No such policy.
        """
        self[policy]
        program = self.programs[policy]
        apart, together = self._by_kernel(self.programs["eager"]), self._by_kernel(program)
        joined = []
        for kernel in count_graph(program, **self.sizes).rows:
            nodes = [node for node in kernel.kernel.nodes if OPS[node.op].kind != "view"]
            if len(nodes) > 1:
                sums = [sum(part) for part in zip(*(apart[node.name] for node in nodes), strict=True)]
                accesses, moved = together[kernel.kernel.name]
                ops = tuple(node.op for node in nodes)
                joined.append(Group(kernel.kernel.name, ops, kernel.kernel.count, sums[0], accesses, sums[1], moved))
        return tuple(sorted(joined, key=lambda group: group.count * (group.bytes - group.unfused_bytes)))

    def _by_kernel(self, graph: Graph) -> dict[str, tuple[float, float]]:
        """Accesses and bytes of a launch, by every label."""
        pairs = (count_graph(form, **self.sizes) for form in (elements(graph), graph))
        accesses, moved = ({name: float(row.bytes) for row in c.rows for name in row.kernel.names} for c in pairs)
        return {name: (accesses[name], moved[name]) for name in moved}

    def subject(self) -> dict[str, Any]:
        """Return the program, where it runs, and its sizes."""
        return subject(self.graph, self.chip.name if self.chip else None, sizes=self.sizes)

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per policy."""
        return [asdict(row) for row in self.rows]

    def __repr__(self) -> str:
        a, b = self.unfused, self.fused
        times = "" if a.time_s is None or b.time_s is None else (
            f", {format_si(a.time_s, 's')} -> {format_si(b.time_s, 's')}"
        )  # fmt: skip
        return (
            f"<Fusion {self.graph.name}: unfused {a.kernels} kernels, {format_si(a.accesses, '')} accesses, "
            f"{format_si(a.bytes, 'B')} -> chains {b.kernels}, {format_si(b.accesses, '')}, "
            f"{format_si(b.bytes, 'B')}{times}>"
        )


def fusion(
    program: Program | Estimate,
    chip: AnyChip | None = None,
    *,
    phase: str | None = None,
    dtype: str | None = None,
    others: Mapping[str, Program] | None = None,
    **sizes: Any,
) -> Fusion:
    """Compare what a program reads and writes, and how long it takes, under each fusion policy.

    Args:
        program: A graph, a shipped name, the path of a model file, workload, config or script, or an estimate, whose
            chip and sizes are taken.
        chip: Where it runs, for times; without them when absent.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        others: Programs with kernels of their own, each a row by the name that it has here: what a compiler made of the
            same program, read by :func:`roofline.from_hlo`.
        sizes: ``batch``, ``seq``, ``context`` and any other size of the program, single numbers.

    Returns:
        One row per policy: kernels, accesses, bytes, registers, time.

    Raises:
        UsageError: Several values for a size, several chips, or a size that the graph does not know.
        UnboundSize: A symbol of the graph has no value.

    Example:
        >>> import roofline as rl
        >>> chain = rl.workload([dict(op="elementwise", n=10**6, count=5)], dtype="fp32")
        >>> found = fusion(chain)
        >>> found.unfused.accesses / 10**6, found.fused.accesses / 10**6
        (10.0, 2.0)
        >>> found.groups()[0].ops
        ('elementwise', 'elementwise', 'elementwise', 'elementwise', 'elementwise')
    """
    tf32 = program.tf32 if isinstance(program, Estimate) else None
    graph, chip, sizes = one_point(program, chip, sizes, phase, dtype)
    where = find_chip(chip) if chip is not None else None
    base = ungrouped(graph)
    programs = {"given": graph} | {policy: fuse(base, policy) for policy in POLICIES}
    programs |= {name: as_graph(other) for name, other in (others or {}).items()}
    points = {name: {size: sizes[size] for size in each.symbols & sizes.keys()} for name, each in programs.items()}
    rows = tuple(_row(policy, program, where, points[policy], tf32) for policy, program in programs.items())
    return Fusion(graph, where, MappingProxyType(sizes), MappingProxyType(programs), rows)


def one_point(
    program: Program | Estimate,
    chip: AnyChip | None,
    sizes: Mapping[str, Any],
    phase: str | None = None,
    dtype: str | None = None,
) -> tuple[Graph, AnyChip | None, dict[str, int]]:
    """One program, chip and set of sizes."""
    graph = as_graph(program.graph if isinstance(program, Estimate) else program, phase, dtype)
    sizes = sizes_of(graph, sizes)
    if isinstance(program, Estimate):
        one_point_only(program.axis_names, "fusion is shown at")
        sizes = {**program.grid.values, **sizes}
        chip = program.chip if chip is None else chip
    points = grid(graph.symbols, sizes)
    one_point_only(points.axes, "fusion is shown at")
    return graph, chip, points.point(())


def ungrouped(graph: Graph) -> Graph:
    """The program before the passes that were last applied only to group it; one that was unfused stays so."""
    while graph.history and (last := graph.history[-1]).name in _GROUPING and ("policy", "eager") not in last.options:
        graph = last.before
    return graph


def elements(graph: Graph) -> Graph:
    """The program in a format of one byte, so that its bytes are elements."""
    return graph.with_tensors(replace(tensor, dtype=_COUNTING) for tensor in graph.tensors.values())


def _row(policy: str, program: Graph, chip: Chip | None, sizes: Mapping[str, int], tf32: bool | None) -> PolicyRow:
    counts = count_graph(program, **sizes)
    accesses = float(count_graph(elements(program), **sizes).bytes)
    figures = PolicyRow(policy, counts.launches, accesses, float(counts.bytes))
    if chip is None:
        return figures
    at: dict[str, Any] = {**sizes}
    est = estimate(program, chip, mode="graph", tf32=tf32, **at)
    demands = pressures(program, counts, chip, sizes)
    spilled = sum(row.kernel.count * one.spill_bytes for row, one in zip(counts.rows, demands, strict=True))
    registers = [one.registers.needed for one in demands if one.registers]
    return replace(
        figures,
        spill_bytes=spilled,
        time_s=float(est.time) + spilled / (chip.bandwidth * chip.efficiency.memory),
        floor_s=float(est.floor) + spilled / chip.bandwidth,
        registers=max(registers, default=None),
    )


def pressures(program: Graph, counts: Counts, chip: Chip, sizes: Mapping[str, int]) -> Sequence[Pressure]:
    """Work out what each distinct kernel of several operators asks of registers and shared memory."""
    scope = kernel_boundaries(program)
    return [
        pressure_of(scope, row.kernel.name, row.kernel.nodes, chip, sizes)
        if sum(OPS[node.op].kind != "view" for node in row.kernel.nodes) > 1
        else Pressure(row.kernel.name)
        for row in counts.rows
    ]  # fmt: skip
