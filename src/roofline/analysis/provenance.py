"""What each pass did: ``graph.history`` with FLOPs, bytes, memory and time before and after every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roofline.analysis.estimates import Mode, estimate
from roofline.cost.scratch import memory_on
from roofline.counting.counts import count_graph, kernels
from roofline.counting.grid import grid, one_point
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import MissingFigure
from roofline.ir.graph import Graph, sizes_of
from roofline.ir.report import Report, subject
from roofline.ir.units import format_bytes, format_si

#: What is set beside what for each step, with the unit that a person reads.
FIGURES = {
    "parameters": "", "kernels": "", "flops": "FLOP", "bytes": "B", "memory_bytes": "B", "time_s": "s",
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class PassHistory(Report):
    """The passes that made a program, and what each did.

    From :func:`roofline.analysis.pass_history`.

    Attributes:
        graph: The program.
        chip: Where it was timed, or ``None``.
        steps: What was applied, first to last, such as ``quantize(weights='int4-g128')``.
        notes: What each pass remarked.
        states: The figures of :data:`FIGURES` before the first step and after each; a figure that a state has not, such
            as a time in a format that the chip cannot run, is ``None``.
    """

    schema = "passes"

    graph: Graph
    chip: str | None
    steps: tuple[str, ...]
    notes: tuple[tuple[str, ...], ...]
    states: tuple[dict[str, Any], ...]

    def subject(self) -> dict[str, Any]:
        """Return the program and where it was timed."""
        return subject(self.graph, self.chip)

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per step: each figure before, after, and after over before."""
        rows = []
        for step, notes, before, after in zip(self.steps, self.notes, self.states, self.states[1:], strict=False):
            row: dict[str, Any] = {"step": step, "notes": list(notes)}
            for figure in FIGURES:
                row[f"{figure}_before"], row[figure] = before[figure], after[figure]
                row[f"{figure}_ratio"] = _ratio(after[figure], before[figure])
            rows.append(row)
        return rows

    def __repr__(self) -> str:
        if not self.steps:
            return f"<PassHistory {self.graph.name}: no pass was applied>"
        where = f" on {self.chip}" if self.chip else ""
        lines = [f"{self.graph.name}{where}: {_state(self.states[0])}"]
        for step, notes, state in zip(self.steps, self.notes, self.states[1:], strict=True):
            lines += [f"{step}: {_state(state)}", *(f"  {note}" for note in notes)]
        return "\n".join(lines)


def pass_history(
    program: Program,
    chip: AnyChip | None = None,
    *,
    mode: Mode = "eager",
    phase: str | None = None,
    dtype: str | None = None,
    **sizes: Any,
) -> PassHistory:
    """Say what each pass of ``graph.history`` did to FLOPs, bytes, memory and time.

    Args:
        program: The program after its passes: a graph, a shipped name, or the path of a model file, workload, config
            or script.
        chip: Where to time it; no times when absent.
        mode: As for :func:`roofline.estimate`.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``batch``, ``seq``, ``context`` and any other size of the program, single numbers.

    Returns:
        One step per pass, with the figures before and after it.

    Raises:
        UnboundSize: A symbol has no value.
        UsageError: A size that spans an axis.

    Example:
        >>> import roofline as rl
        >>> small = rl.passes.cast(rl.model("gpt2", phase="decode"), weights="int8")
        >>> step = pass_history(small, "h100-sxm", batch=1, context=1024).records()[0]
        >>> step["step"], step["flops_ratio"], step["bytes_ratio"] < 0.8
        ("cast(weights='int8')", 1.0, True)
    """
    graph, where = as_graph(program, phase, dtype), find_chip(chip) if chip is not None else None
    steps = graph.history
    programs = [*(step.before for step in steps), graph]
    known = frozenset().union(*(one.symbols for one in programs))
    sizes = sizes_of(graph, sizes, known)
    states = tuple(_figures(one, where, mode, sizes) for one in programs)
    return PassHistory(
        graph, where.name if where else None, tuple(map(repr, steps)), tuple(step.notes for step in steps), states
    )


def _figures(graph: Graph, chip: Chip | None, mode: Mode, sizes: dict[str, Any]) -> dict[str, Any]:
    # Passes bind and change sizes: one that this step of the way has no use for is left out.
    known = {name: size for name, size in sizes.items() if name in graph.symbols or name in ("B", "S", "C")}
    points = grid(graph.symbols, known)
    one_point(points.axes, "passes are compared at")
    totals = count_graph(graph, **points.sizes)
    return {
        "parameters": graph.parameters,
        "kernels": sum(kernel.count for kernel in kernels(graph)),
        "flops": totals.flops,
        "bytes": totals.bytes,
        "memory_bytes": memory_on(graph, points.sizes, chip).total,
        "time_s": _time(graph, chip, mode, points.sizes) if chip is not None else None,
    }


def _time(graph: Graph, chip: Chip, mode: Mode, sizes: dict[str, Any]) -> float | None:
    try:
        return float(estimate(graph, chip, mode=mode, **sizes).time)
    except MissingFigure:
        return None


def _ratio(after: Any, before: Any) -> float | None:
    return float(after / before) if after is not None and before else None


def _state(state: dict[str, Any]) -> str:
    parts = [f"{state['parameters']:,} parameters", f"{state['kernels']:,} kernels",
             format_si(float(state["flops"]), "FLOP"), f"{format_bytes(float(state['bytes']))} moved",
             f"{format_bytes(float(state['memory_bytes']))} of memory"]  # fmt: skip
    if state["time_s"] is not None:
        parts.append(format_si(state["time_s"], "s"))
    return ", ".join(parts)
